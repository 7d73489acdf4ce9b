"""standfast.empty(): memory that ranks read in place, and that goes when its last array goes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Group, NoProgress, PeerDied, _core
from tests.ranks import Job, Pool

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that a test gives its memory back."""
    gc.collect()
    before = _core.shared_memory_taken()
    yield
    gc.collect()
    assert _core.shared_memory_taken() == before


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", "bool", np.float16, np.int64])
@pytest.mark.parametrize("shape", [(), 7, (3, 0), (4, 5, 6), [2, 2]])
def test_shapes(shape: int | list[int] | tuple[int, ...], dtype: Any) -> None:
    """An array has the shape and dtype that were asked for, can be written, and is contiguous."""
    made = standfast.empty(shape, dtype)
    assert made.shape == np.empty(shape).shape
    assert made.dtype == np.dtype(dtype)
    assert made.flags.c_contiguous
    made[...] = 1
    assert (made == 1).all()


def test_bfloat16() -> None:
    """So does one of ml_dtypes' bfloat16."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    made = standfast.empty((3, 4), "bfloat16")
    assert made.dtype == ml_dtypes.bfloat16
    assert made.shape == (3, 4)


def test_refusals() -> None:
    """What cannot be is refused with a word of why."""
    with pytest.raises(ValueError, match=r"shape is \(-1,\)"):
        standfast.empty(-1)
    with pytest.raises(TypeError, match=r"is no dtype|supported are"):
        standfast.empty(3, "float128x")
    with pytest.raises(MemoryError, match=r"no shared memory for uint8\[\d+\], \d+ bytes"):
        standfast.empty(1 << 50, "uint8")


def test_memory_goes() -> None:
    """Memory goes with the last view of it, and not before."""
    before = _core.shared_memory_taken()
    made = standfast.empty(MIB, "uint8")
    part = made[100:200].view("int32")
    part[...] = 7
    del made
    assert _core.shared_memory_taken() == before + MIB
    assert (part == 7).all()
    del part
    assert _core.shared_memory_taken() == before


COUNTS = (1, 5000, 32 * 1024, 100_003, 400_000)


def every_operation(group: Group, count: int) -> None:
    """Run all operations from and to such arrays; in place as well."""
    me, size = group.rank, group.size

    def given(rank: int) -> np.ndarray:
        made: np.ndarray = standfast.empty(count)
        made[...] = np.arange(count) % 1000 + rank
        return made

    x = given(me)
    both = np.concatenate([given(rank) for rank in range(size)])
    total = both.reshape(size, -1).sum(0)
    out = standfast.empty(count)
    stacked = standfast.empty(size * count)
    many = standfast.empty(size * count)
    many[...] = np.tile(x, size)
    for _ in range(2):  # from the second on, the others know the memory
        np.testing.assert_array_equal(group.all_sum(x, out=out), total)
        np.testing.assert_array_equal(group.all_gather(x, out=stacked), both)
        np.testing.assert_array_equal(group.broadcast(x, 1, out=out), given(1))
        np.testing.assert_array_equal(group.all_to_all(many, out=stacked), both)
        np.testing.assert_array_equal(group.sum_scatter(many, out=out), total)
        group.gather(x, 0, out=stacked if me == 0 else None)
        np.testing.assert_array_equal(stacked, both)
        group.scatter(stacked if me == 0 else None, 0, out=out)
        np.testing.assert_array_equal(out, x)
        handle = group.send_async(x, (me + 1) % size)
        left = (me - 1) % size
        np.testing.assert_array_equal(group.recv_like(out, left, out=out), given(left))
        handle.result()
        np.testing.assert_array_equal(x, given(me))
        np.testing.assert_array_equal(group.all_gather(x), both)
        np.testing.assert_array_equal(group.all_sum(x.copy(), out=out), total)
    own = stacked[me * count : (me + 1) * count]
    own[...] = x
    np.testing.assert_array_equal(group.all_gather(own, out=stacked), both)
    np.testing.assert_array_equal(group.all_sum(x, out=x), total)


@pytest.mark.parametrize("options", [{}, {"topology": "ring"}, {"fabric": "tcp"}], ids=str)
@pytest.mark.parametrize("count", COUNTS)
def test_operations(pool: Pool, options: dict[str, str], count: int) -> None:
    """Every operation gives the same from and to such arrays, on every fabric, in every place."""
    for ended in pool.run(3, every_operation, count, init=options):
        assert ended.value is None, ended


def buffered(group: Group) -> float:
    """Exchange messages that each rank sends before it receives; return the sum of what came."""
    x, y = standfast.empty(64 * 1024), standfast.empty(64 * 1024)
    x[...] = 1
    for _ in range(3):
        group.send(x, 1 - group.rank)
        group.recv_like(y, 1 - group.rank, out=y)
    return float(y.sum())


def test_small_messages_do_not_wait(pool: Pool) -> None:
    """A message of 256 KiB is sent before anybody receives, as from any other array."""
    assert [ended.value for ended in pool.run(2, buffered)] == [64 * 1024.0] * 2


def waits(group: Group) -> float:
    """Wait for a rank that comes a second late; return the seconds of CPU that took."""
    x, out = standfast.empty(MIB), standfast.empty(2 * MIB)
    x[...] = 1
    group.all_gather(x, out=out)
    if group.rank == 0:
        time.sleep(1.0)
    before = time.thread_time()
    group.all_gather(x, out=out)
    return time.thread_time() - before


def test_waiting_is_idle(pool: Pool) -> None:
    """A rank whose arrays are still to be read sleeps while it waits."""
    used_s = [ended.value for ended in pool.run(2, waits)]
    assert max(used_s) < 0.5, used_s


def gives_up(group: Group, folder: str) -> str:
    """Send what nobody receives in time, then write to it; the other rank receives later."""
    x = standfast.empty(MIB)
    x[...] = 1
    group.all_sum(x)
    if group.rank == 0:
        try:
            group.send(x, 1, timeout_s=0.3)
        except NoProgress:
            x[...] = 2
            Path(folder, "written").touch()
            return "gave up"
        return "sent"
    while not Path(folder, "written").exists():
        time.sleep(0.01)
    try:
        y = group.recv_like(x, 0)
    except NoProgress:
        return "was told"
    return f"received {set(y.tolist())}"


def test_memory_that_was_taken_back(pool: Pool, tmp_path: Path) -> None:
    """What the sender writes after its send has failed is never received."""
    ended = pool.run(2, gives_up, str(tmp_path))
    assert [each.value for each in ended] == ["gave up", "was told"], ended


def sums_for_ever(group: Group) -> str:
    """Add up until somebody dies; what was added until then was right."""
    x, out = standfast.empty(4 * MIB), standfast.empty(4 * MIB)
    x[...] = 1
    group.all_sum(x, out=out)
    print("at work", flush=True)
    try:
        for step in range(1, 1_000_000):
            x[...] = step
            group.all_sum(x, out=out)
            assert (out == 3 * step).all()
    except PeerDied as error:
        return f"rank {error.rank} died"
    return "nobody died"


def test_the_owner_dies() -> None:
    """A rank is killed while others read its arrays: they say so, and nothing of it is left."""
    with Job(3, sums_for_ever) as job:
        for rank in range(3):
            job.wait_for(rank, "at work")
        job.kill(1)
        ended = job.wait()
    assert ended[1].status == -signal.SIGKILL
    assert [ended[rank].value for rank in (0, 2)] == ["rank 1 died"] * 2, ended
    if sys.platform == "linux":
        own = tuple(f"sf-{process.pid}-" for process in job.processes)
        assert [name for name in os.listdir("/dev/shm") if name.startswith(own)] == []


def test_without_numpy() -> None:
    """Where NumPy is not installed, there are memoryviews."""
    program = (
        "import sys; sys.modules['numpy'] = None; import standfast;"
        "x = standfast.empty((2, 3), 'int32'); x[1, 2] = 5; print(x.shape, x.format, x.tolist())"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 3) i [[0, 0, 0], [0, 0, 5]]\n", done.stderr
