"""Inputs that encode rank and index, and plain NumPy answers. Used in the ranks' processes.

Sums and products are exact in float32, so that float16 and bfloat16 have one right answer: the
float32 result, rounded once. Moved data repeats only every 251 elements, which divides no frame.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from standfast import Group, _core

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64"),
        )
    },
    "bfloat16": BFLOAT16,
}
WIDE = ("uint8", "bfloat16", "float32", "complex64")
"""One dtype per element size, for reductions at the borders of frames."""
MOVED = ("uint8", "float32")
"""For operations that only move bytes."""

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


def moved(rank: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return elements that tell rank and index, exact in every dtype; a read-only array."""
    return _moved(rank, count, dtype)


@functools.lru_cache(maxsize=512)
def _moved(rank: int, count: int, dtype: np.dtype[Any]) -> Array:
    x = _encode(rank, count, dtype)
    x.flags.writeable = False
    return x


def _encode(rank: int, count: int, dtype: np.dtype[Any]) -> Array:
    index = np.arange(count, dtype=np.int64)
    value = (index + 97 * rank + rank) % 251
    if dtype.kind == "b":
        return np.asarray(((index * 2654435761 + rank * 40503) >> 13) & 1, dtype)
    if dtype == np.int8:
        value = value - 125
    if dtype.kind == "c":
        return np.asarray(value + 1j * ((3 * index + rank) % 241), dtype)
    return value.astype(dtype)


@functools.lru_cache(maxsize=512)
def reduced(rank: int, count: int, dtype: np.dtype[Any], op: str) -> Array:
    """Return elements whose sums and products over up to 8 ranks are exact in float32."""
    index = np.arange(count, dtype=np.int64)
    if op != "prod":
        value = moved(rank, count, dtype)
        # 8 ranks of up to 251 stay exact in float16: steps of 8 make their sum round.
        return value * dtype.type(8) + dtype.type(1) if dtype == np.float16 else value
    if dtype.kind == "b":
        return np.asarray((index + rank) % 5 > 0, dtype)
    if dtype.kind == "c":
        # No part is zero: the sign of a zero would depend on the order of the factors.
        return np.asarray(np.array([1 + 2j, 2 - 1j, 1 + 1j])[(index + rank) % 3], dtype)
    return ((index + rank) % 3 + 1).astype(dtype)


def combined(inputs: list[Array], op: str) -> Array:
    """Return the reduction of all ranks' inputs; the halves by float32, rounded once."""
    dtype = inputs[0].dtype
    if dtype in (np.float16, BFLOAT16) and op in ("sum", "prod"):
        wide = combined([x.astype(np.float32) for x in inputs], op)
        with np.errstate(over="ignore"):
            return np.asarray(wide.astype(dtype))
    with np.errstate(over="ignore"):
        return np.asarray(functools.reduce(OPS[op], inputs))


def frame_counts(dtype: np.dtype[Any], size: int) -> list[int]:
    """Return element counts at the borders: nothing, one, a frame less and more, not divisible."""
    frame = _core.FRAME_BYTES // dtype.itemsize
    return [0, 1, size - 1, size + 1, frame - 1, frame, frame + 1, 2 * frame + size - 1]


def alike(group: Group, found: Any, expected: Callable[[], Array], what: str) -> bytes:
    """As same(), where all ranks get one result: rank 0 compares, the others tell their bits."""
    if group.rank == 0:
        return same(found, expected(), what)
    return bytes(found.tobytes())


def same(found: Any, expected: Array, what: str) -> bytes:
    """Assert equality in dtype, shape and every bit; return the bits."""
    assert isinstance(found, np.ndarray), f"{what}: got a {type(found).__name__}"
    assert found.dtype == expected.dtype, f"{what}: {found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {found.shape}, not {expected.shape}"
    bits, wanted = found.tobytes(), expected.tobytes()
    if bits != wanted:
        wrong = np.nonzero((found != expected).reshape(-1))[0]
        first = int(wrong[0]) if len(wrong) else -1
        raise AssertionError(
            f"{what}: {len(wrong)} of {found.size} differ, first at {first}:"
            f" {found.reshape(-1)[first]!r}, not {expected.reshape(-1)[first]!r}"
        )
    return bits
