"""What ranks put in, and what must come out: the second computation behind the #wrong column.

Every element is a function of rank and index, periodic with a prime, so that what comes from the
wrong rank or place differs; and all results are exact in every dtype, so that they are compared bit
by bit. Needs NumPy (and ml_dtypes for bfloat16); loaded in ranks only.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from standfast.bench.plan import Cell

Array = NDArray[Any]
PERIOD = 1021
STRIDE = 131  # from rank to rank; no multiple of it is one of the period, for fewer than 1021 ranks
EXACT_MAX = 256  # integers up to here are exact in bfloat16
TWOS_EVERY = 8
COMBINE: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
NEUTRAL = {"prod": 1}


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype.

    Raises:
        ModuleNotFoundError: bfloat16 needs ml_dtypes.
    """
    if name == "bfloat16":
        import ml_dtypes

        made: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return made
    return np.dtype(name)


def row(cell: Cell, rank: int, ranks: int, start: int = 0) -> Array:
    """Return one period of what a rank puts in, from the element with index `start` on."""
    index = (np.arange(PERIOD) + start + STRIDE * rank) % PERIOD
    if cell.redop == "prod":
        # Few twos, so that the product of many ranks is exact in float16 too.
        values = 1 + ((np.arange(PERIOD) + start) % PERIOD % TWOS_EVERY == rank % TWOS_EVERY)
    else:
        levels = 2 if cell.dtype == "bool" else min(64, max(2, EXACT_MAX // ranks))
        values = _pattern(levels)[index]
    made = values.astype(dtype_of(cell.dtype))
    if cell.dtype == "complex64" and cell.redop != "prod":
        made = made + 1j * np.roll(made.real, 7)
    typed: Array = made.astype(dtype_of(cell.dtype))
    return typed


@functools.cache
def _pattern(levels: int) -> Array:
    return np.random.default_rng(PERIOD).integers(0, levels, PERIOD)


def combined(cell: Cell, ranks: int, start: int = 0) -> Array:
    """Return one period of the reduction over all ranks."""
    rows = [row(cell, rank, ranks, start) for rank in range(ranks)]
    if cell.dtype == "bool":
        either = cell.redop in ("sum", "max")
        return functools.reduce(np.logical_or if either else np.logical_and, rows)
    with np.errstate(over="ignore"):
        return functools.reduce(COMBINE[cell.redop], rows).astype(dtype_of(cell.dtype))


def fill(to: Array, one_period: Array) -> None:
    """Repeat a period over an array of one dimension."""
    whole = len(to) // PERIOD * PERIOD
    to[:whole].reshape(-1, PERIOD)[:] = one_period
    to[whole:] = one_period[: len(to) - whole]


def still(to: Array, cell: Cell) -> None:
    """Fill an array with what a reduction in place leaves as it is, however often it is done."""
    to[:] = NEUTRAL.get(cell.redop, 0)


def wrong(found: Array, one_period: Array) -> int:
    """Count the elements that differ from a repeated period."""
    whole = len(found) // PERIOD * PERIOD
    blocks = found[:whole].reshape(-1, PERIOD)
    tail = found[whole:]
    return int(np.count_nonzero(blocks != one_period)) + int(
        np.count_nonzero(tail != one_period[: len(tail)])
    )


def expected(cell: Cell, rank: int, ranks: int) -> list[Array]:
    """Return what the result of a rank must be: one period for each of its equal parts.

    An empty list: the operation gives this rank nothing.
    """
    share = cell.count(ranks)
    match cell.op:
        case "all_reduce":
            return [combined(cell, ranks)]
        case "reduce_scatter":
            return [combined(cell, ranks, rank * share)]
        case "all_gather":
            return [row(cell, each, ranks) for each in range(ranks)]
        case "gather":
            return [row(cell, each, ranks) for each in range(ranks)] if rank == cell.root else []
        case "all_to_all":
            return [row(cell, each, ranks, rank * share) for each in range(ranks)]
        case "scatter":
            return [row(cell, cell.root, ranks, rank * share)]
        case "broadcast":
            return [row(cell, cell.root, ranks)]
        case "send_recv":
            return [row(cell, (rank - 1) % ranks, ranks)]
        case "ping_pong":
            return [row(cell, 1 - rank, ranks)]
    return []


def count_wrong(result: Array, cell: Cell, rank: int, ranks: int) -> int:
    """Count the wrong elements of a rank's result."""
    parts = expected(cell, rank, ranks)
    if not parts:
        return 0
    share = len(result) // len(parts)
    return sum(wrong(result[k * share :][:share], part) for k, part in enumerate(parts))
