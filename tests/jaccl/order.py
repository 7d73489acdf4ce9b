"""In which order JACCL's operations add floats: NumPy's answer, written from the contract. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SMALL_BYTES, SMALL_SCATTER_BYTES = 32768, 65536


def data_of(rank: int, count: int) -> Floats:
    """Return numbers whose sum depends on the order in which they are added."""
    random = np.random.default_rng(1000 + rank)
    values = random.standard_normal(count) * 10.0 ** random.integers(-4, 5, count)
    return values.astype(np.float32)


def added(parts: Sequence[Floats], order: Sequence[int]) -> Floats:
    """Add up, left to right."""
    total = parts[order[0]].copy()
    for rank in order[1:]:
        total = total + parts[rank]
    return total


def own_first(rank: int, size: int) -> list[int]:
    return [rank, *(peer for peer in range(size) if peer != rank)]


def mesh_all_sum(parts: Sequence[Floats]) -> Floats:
    size, count = len(parts), parts[0].size
    whole = added(parts, range(size))
    chunk = count // size
    if size == 2 or 4 * count <= SMALL_BYTES or chunk == 0:
        return whole
    for rank in range(size):
        at = slice(rank * chunk, (rank + 1) * chunk)
        whole[at] = added([part[at] for part in parts], own_first(rank, size))
    return whole


def mesh_sum_scatter(parts: Sequence[Floats], rank: int) -> Floats:
    size = len(parts)
    blocks = [part.reshape(size, -1)[rank] for part in parts]
    return added(blocks, own_first(rank, size))


def around(start: int, step: int, size: int) -> list[int]:
    return [(start + step * i) % size for i in range(size)]


def halves(chunk: int, directions: int, wires: int) -> Iterator[tuple[int, slice]]:
    """Cut a chunk into what each direction carries."""
    share = -(-chunk // (directions * wires))
    for direction in range(directions):
        begin = direction * wires * share
        yield direction, slice(min(begin, chunk), min(begin + wires * share, chunk))


def ring_all_sum(parts: Sequence[Floats], wires: int) -> Floats:
    size, count = len(parts), parts[0].size
    small = 4 * count <= SMALL_BYTES or count < 2 * size * wires
    directions, wires = (1, 1) if small else (2, wires)
    chunk = -(-count // size)
    result = np.empty(count, np.float32)
    for number in range(size):
        for direction, part in halves(chunk, directions, wires):
            begin = min(number * chunk + part.start, count)
            at = slice(begin, min(number * chunk + part.stop, count))
            order = around(number, 1 if direction == 0 else -1, size)
            result[at] = added([each[at] for each in parts], order)
    return result


def ring_sum_scatter(parts: Sequence[Floats], wires: int, rank: int) -> Floats:
    size = len(parts)
    blocks = [part.reshape(size, -1)[rank] for part in parts]
    chunk = blocks[0].size
    if 4 * chunk <= SMALL_SCATTER_BYTES or size * chunk < 2 * size * wires:
        wires = 1
    result = np.empty(chunk, np.float32)
    for direction, at in halves(chunk, 2, wires):
        step = 1 if direction == 0 else -1
        result[at] = added([each[at] for each in blocks], around(rank + step, step, size))
    return result
