"""Group.native(): the table of C functions for native code of others, called here by ctypes."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import _core
from tests.ranks import Pool, be_killed

HEADER = Path(standfast.__file__).parent / "include" / "standfast" / "native.h"
NAME = b"standfast.native.1"
FLOAT32, INT64 = 11, 4
SUM, MAX = 0, 1
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV = range(5)


class Operation(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("reduction", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
    )


class Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("group", ctypes.c_void_p),
        ("retain", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)),
        ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        (
            "run",
            ctypes.CFUNCTYPE(
                ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Operation), ctypes.c_void_p
            ),
        ),
        ("describe", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)),
        ("as_python", ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)),
        ("forget", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


def table_of(group: standfast.Group) -> tuple[Table, object]:
    """Return the table, and the capsule that keeps it."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    capsule = group.native()
    return Table.from_address(pointer(capsule, NAME)), capsule


def run(table: Table, kind: int, src: Any, dst: Any, **more: int) -> int | None:
    """Run an operation; return the address of its failure."""
    counted = dst if kind in (REDUCE_SCATTER, RECV) else src
    operation = Operation(
        kind=kind,
        dtype={"f": FLOAT32, "i": INT64}[counted.dtype.kind],
        count=counted.size,
        src=None if src is None else src.ctypes.data,
        dst=None if dst is None else dst.ctypes.data,
        **more,
    )
    failure: int | None = table.run(table.group, ctypes.byref(operation), None)
    return failure


def every_operation(group: standfast.Group) -> None:
    table, _capsule = table_of(group)
    rank, size = group.rank, group.size
    assert (table.version, table.bytes) == (1, ctypes.sizeof(Table))
    assert (table.rank, table.size) == (rank, size)
    x = np.arange(2 * size, dtype=np.float32) + rank
    every = [np.arange(2 * size, dtype=np.float32) + r for r in range(size)]
    total, most, part = np.empty_like(x), np.empty_like(x), np.empty(2, np.float32)
    gathered = np.empty(2 * size * size, np.float32)
    assert run(table, ALL_REDUCE, x, total, reduction=SUM) is None
    assert run(table, ALL_REDUCE, x, most, reduction=MAX) is None
    assert run(table, ALL_GATHER, x, gathered) is None
    assert run(table, REDUCE_SCATTER, x, part) is None
    everything = np.sum(every, axis=0)
    np.testing.assert_array_equal(total, everything)
    np.testing.assert_array_equal(most, every[-1])
    np.testing.assert_array_equal(gathered, np.concatenate(every))
    np.testing.assert_array_equal(part, everything[2 * rank : 2 * rank + 2])
    numbers = np.arange(5) if rank == 0 else np.zeros(5, np.int64)
    if rank == 0:
        assert run(table, SEND, numbers, None, peer=1) is None
    elif rank == 1:
        assert run(table, RECV, None, numbers, peer=0) is None
    assert rank > 1 or numbers.tolist() == [0, 1, 2, 3, 4]


def test_every_operation(pool: Pool) -> None:
    """Each does what the group's method of that name does."""
    pool.run(3, every_operation)


def failing(group: standfast.Group) -> tuple[str, str, str, int, str]:
    table, _capsule = table_of(group)
    share = table.retain(table.group)
    x = np.ones(3, np.float32)
    assert run(table, ALL_REDUCE, x, x) is None
    if group.rank == 1:
        be_killed()
    failure = run(table, ALL_REDUCE, x, x)
    assert failure is not None
    text = ctypes.create_string_buffer(200)
    table.describe(failure, text, len(text))
    cut = ctypes.create_string_buffer(b"x" * 20)
    table.describe(failure, cut, 6)
    told = table.as_python(failure)
    assert isinstance(told, _core.Failure)
    error = group.ended_by(told, "all_sum", "float32[3]")
    table.forget(failure)
    group.close()
    with pytest.raises(standfast.PeerDied):
        group.native()
    # The share outlives the group, which refuses.
    late = table.run(share, ctypes.byref(Operation(dtype=FLOAT32)), None)
    assert late is not None
    table.forget(late)
    table.release(share)
    return (
        text.value.decode(),
        cut.value.decode(),
        type(error).__name__,
        error.rank or -1,
        str(error),
    )


def test_a_failure(pool: Pool) -> None:
    """A lost peer is a failure with words, which Python can look at; a share outlives its group."""
    ended = pool.run(2, failing, check=False)
    assert ended[0].returned, str(ended[0])
    text, cut, kind, rank, message = ended[0].value
    assert text.startswith("died: rank 1: ")
    assert cut == "died:"
    assert (kind, rank) == ("PeerDied", 1)
    assert "in all_sum #2 (float32[3])" in message


def test_what_it_does_not_know() -> None:
    """A code of a later version is refused, and ends nothing."""
    with standfast.init(rank=0, size=1) as group:
        table, _capsule = table_of(group)
        for wrong in (Operation(kind=99), Operation(dtype=99), Operation(reduction=-1)):
            failure = table.run(table.group, ctypes.byref(wrong), None)
            text = ctypes.create_string_buffer(100)
            table.describe(failure, text, len(text))
            table.forget(failure)
            assert b"this version does not know" in text.value
        assert group.healthy()


def test_the_header_is_shipped() -> None:
    """It lies in the package, and names the version that the module has."""
    text = HEADER.read_text(encoding="utf-8")
    assert re.search(r'STANDFAST_NATIVE_CAPSULE "standfast\.native\.(\d+)"', text)
    assert NAME.decode() in text
