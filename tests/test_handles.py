"""handles.py: operations under way, plainly and in asyncio, well and badly ended."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Group, errors
from tests.ranks import Pool, be_killed, run_ranks

PROMPT_S = 5.0


def plain(group: Group) -> list[Any]:
    handle = group.all_sum_async(np.full(10, group.rank + 1.0))
    assert handle.wait() is True
    assert handle.done()
    first = handle.result()
    assert handle.result() is first
    out = np.zeros(3)
    assert group.broadcast_async(np.ones(3), out=out).result() is out
    assert group.barrier_async().result() is None
    assert group.agree_async(group.rank == 0).result() is False
    gathered = group.gather_async(b"x" * group.rank).result()
    share = group.scatter_async(np.arange(group.size) if group.rank == 0 else None).result()
    assert "done" in repr(handle)
    return [first.tolist(), out.tolist(), gathered, share.tolist()]


def test_results(pool: Pool) -> None:
    """A handle gives what the plain form gives, each time it is asked."""
    for rank, ended in enumerate(pool.run(3, plain)):
        gathered = [b"", b"x", b"xx"] if rank == 0 else None
        assert ended.value == [[6.0] * 10, [1.0] * 3, gathered, [rank]]


def wait_a_little(group: Group) -> list[Any]:
    if group.rank == 1:
        time.sleep(0.4)
    handle = group.barrier_async()
    found: list[Any] = [handle.done(), handle.wait(0), handle.wait(0.05), repr(handle)]
    with pytest.raises(ValueError, match="timeout_s is -1"):
        handle.wait(-1)
    return [*found, handle.wait(30), handle.done()]


def test_wait_with_a_limit(pool: Pool) -> None:
    """wait(t) returns False when the time is up; the operation goes on."""
    ended = pool.run(2, wait_a_little)
    assert ended[0].value == [
        False,
        False,
        False,
        "<standfast.Handle barrier under way>",
        True,
        True,
    ]


def memory(group: Group) -> bool:
    """Forget all arrays at once, and see that the operation still has them."""
    x = np.full(300_000, 1.0)
    alive = weakref.ref(x)
    if group.rank == 1:
        time.sleep(0.3)
    group.all_sum_async(x, out=x)
    del x
    gc.collect()
    kept = alive() is not None
    group.barrier()
    group.barrier_async().wait()
    gc.collect()
    return kept and alive() is None


def test_memory_is_kept_until_the_operation_is_done(pool: Pool) -> None:
    """Arrays live as long as the core may touch them, without any handle, and not longer."""
    assert [ended.value for ended in pool.run(2, memory)] == [True, True]


def order(group: Group) -> float:
    handles = [group.all_sum_async(float(turn)) for turn in range(50)]
    plain = group.all_sum(1000.0)
    assert all(handle.wait(PROMPT_S) for handle in handles), "all were before the plain call"
    assert [handle.result() for handle in handles] == [group.size * t for t in range(50)]
    return float(plain)


def test_order(pool: Pool) -> None:
    """Plain calls come after what was submitted before them."""
    assert [ended.value for ended in pool.run(3, order)] == [3000.0] * 3


# --- failing --------------------------------------------------------------------------------------


def fail(group: Group) -> Any:
    group.barrier()
    if group.rank == 1:
        be_killed()
    handles = [group.all_sum_async(np.ones(4)), group.barrier_async()]
    told = []
    for handle in handles:
        for ask in (handle.wait, handle.result, handle.wait):
            try:
                ask()
            except errors.PeerDied as error:
                told.append(error.to_dict())
        assert handle.done()
        assert "failed" in repr(handle)
    group.close()  # the program knows already
    return told


def test_a_failed_handle_raises_each_time() -> None:
    """wait and result raise the stored error as often as asked; close() does not repeat it."""
    ended = run_ranks(2, fail, check=False)
    told = ended[0].value
    assert len(told) == 6, str(ended[0])
    assert told == [told[0]] * 6
    assert told[0]["rank"] == 1


def unread(group: Group) -> Any:
    group.barrier()
    if group.rank == 1:
        be_killed()
    handle = group.all_sum_async(np.ones(4))
    told = []
    for _ in range(2):
        try:
            group.close()
        except errors.PeerDied as error:
            told.append(error.to_dict())
    try:
        handle.result()
    except errors.PeerDied as error:
        told.append(error.to_dict())
    group.close()
    return told


def test_close_tells_of_an_unread_failure() -> None:
    """close() raises a failure that nobody has asked for, each time, until somebody has."""
    ended = run_ranks(2, unread, check=False)
    told = ended[0].value
    assert len(told) == 3, str(ended[0])
    assert told == [told[0]] * 3


def forget(size_unused: int) -> None:
    group = standfast.init()
    group.barrier()
    if group.rank == 1:
        be_killed()
    group.all_sum_async(np.ones(4))
    kept = group.barrier_async()
    while not kept.done():
        time.sleep(0.01)
    globals()["kept"] = kept


def test_an_unread_failed_handle_does_not_break_exit() -> None:
    """A program that never looks at its failed handles ends as it would have."""
    ended = run_ranks(2, forget, 0, form=False, check=False)
    assert ended[0].status == 0, str(ended[0])
    assert "Traceback" not in ended[0].stderr


# --- asyncio --------------------------------------------------------------------------------------


async def _many(group: Group) -> list[float]:
    async def one(turn: int) -> float:
        return float(await group.all_sum_async(float(turn)))

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticker = asyncio.ensure_future(tick())
    if group.rank == 1:
        await asyncio.sleep(0.2)
    before = threading.active_count()
    found = await asyncio.gather(*(one(turn) for turn in range(100)))
    assert threading.active_count() == before, "no thread per call"
    ticker.cancel()
    assert group.rank == 1 or ticks > 5, "the loop runs while operations wait"
    await group.barrier_async()
    return found


def many(group: Group) -> list[float]:
    found = asyncio.run(_many(group))
    assert asyncio.run(_many(group)) == found, "and in the next loop again"
    return found


def test_awaiting_many(pool: Pool) -> None:
    """A hundred awaits at once, in one loop and then in another; other tasks run meanwhile."""
    for ended in pool.run(3, many):
        assert ended.value == [3.0 * turn for turn in range(100)]


async def _one_after_the_other(group: Group) -> float:
    total = 0.0
    for turn in range(30):
        total += await group.all_sum_async(float(turn))
        await asyncio.sleep(0)
    return total


def two_loops(group: Group) -> list[float]:
    found: list[float] = []
    inner = group.split(0)
    assert inner is not None
    groups = [group, inner]
    threads = [
        threading.Thread(target=lambda g=g: found.append(asyncio.run(_one_after_the_other(g))))
        for g in groups
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inner.close()
    return found


def test_two_loops_in_two_threads(pool: Pool) -> None:
    """Loops of two threads wait for two groups side by side."""
    for ended in pool.run(2, two_loops):
        assert ended.value == [2.0 * sum(range(30))] * 2


def one_group_two_loops(group: Group) -> list[float]:
    """Every rank submits in one order; two loops await one half each."""
    handles = [group.all_sum_async(float(turn)) for turn in range(40)]
    found: dict[int, list[float]] = {}

    async def take(half: int) -> None:
        found[half] = [float(await handle) for handle in handles[half::2]]

    threads = [
        threading.Thread(target=lambda half=half: asyncio.run(take(half))) for half in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return sorted(found[0] + found[1])


def test_one_group_in_two_loops(pool: Pool) -> None:
    """Handles of one group can be awaited in loops of different threads."""
    for ended in pool.run(2, one_group_two_loops):
        assert ended.value == [2.0 * turn for turn in range(40)]


async def _await_the_dead(group: Group) -> Any:
    handle = group.all_sum_async(np.ones(4))
    told = []
    for _ in range(2):
        try:
            await handle
        except errors.PeerDied as error:
            told.append(error.to_dict())
    return told


def await_the_dead(group: Group) -> Any:
    group.barrier()
    if group.rank == 1:
        be_killed()
    return asyncio.run(_await_the_dead(group))


def test_await_raises() -> None:
    """A failed operation raises from await, each time."""
    ended = run_ranks(3, await_the_dead, check=False)
    for rank in (0, 2):
        told = ended[rank].value
        assert len(told) == 2, str(ended[rank])
        assert told[0] == told[1]
        assert told[0]["rank"] == 1


async def _cancel(group: Group) -> float:
    handle = group.all_sum_async(np.ones(4))
    task = asyncio.ensure_future(_awaiting(handle))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return time.monotonic() - began
    raise AssertionError("not cancelled")


async def _awaiting(handle: Any) -> Any:
    return await handle


def cancel(group: Group) -> Any:
    if group.rank == 0:
        asyncio.run(_cancel(group))
    else:
        time.sleep(0.5)
    try:
        group.barrier()
    except errors.GroupAborted as error:
        return error.to_dict()
    return None


def test_cancelling_an_await_aborts_the_group(pool: Pool) -> None:
    """A cancelled collective ends on all ranks, as an abort that says what was cancelled."""
    for ended in pool.run(2, cancel):
        assert (ended.value["rank"], ended.value["cause"]) == (0, "await of all_sum was cancelled")


async def _cancel_a_write(group: Group, out: Any) -> Any:
    handle = group.broadcast_async(np.ones(1 << 20), 1, out=out)
    task = asyncio.ensure_future(_awaiting(handle))
    await asyncio.sleep(0.1)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    try:
        await task
    except asyncio.CancelledError:
        return handle.done(), asyncio.current_task().cancelling()  # type: ignore[union-attr]
    raise AssertionError("not cancelled")


def cancel_a_write(group: Group) -> Any:
    if group.rank == 0:
        return asyncio.run(_cancel_a_write(group, np.zeros(1 << 20)))
    return _aborted(group)


def _aborted(group: Group) -> str | None:
    """Take part in nothing until the group is over; return why."""
    while group.healthy():
        time.sleep(0.01)
    try:
        group.barrier()
    except errors.GroupAborted as error:
        return error.cause
    return None


def test_a_cancelled_await_leaves_the_arrays_alone(pool: Pool) -> None:
    """It returns once the operation has ended, however often it is cancelled."""
    here, there = pool.run(2, cancel_a_write)
    assert (here.value, there.value) == ((True, 0), "await of broadcast was cancelled")


async def _await_within(handle: Any) -> Any:
    async with asyncio.timeout(0.2):
        return await handle


def await_within(group: Group) -> str | None:
    if group.rank == 0:
        try:
            asyncio.run(_await_within(group.barrier_async()))
        except TimeoutError:
            return "timed out"
    return _aborted(group)


def test_a_timeout_of_asyncio_is_a_cancelled_await(pool: Pool) -> None:
    """asyncio.timeout() raises as ever, and ends the group on all ranks."""
    here, there = pool.run(2, await_within)
    assert (here.value, there.value) == ("timed out", "await of barrier was cancelled")


async def _one(group: Group) -> float:
    return float(await group.all_sum_async(1.0))


def loop_after_loop(group: Group) -> int:
    asyncio.run(_one(group))
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        assert asyncio.run(_one(group)) == group.size
    return len(os.listdir("/dev/fd")) - before


def test_loops_that_were_closed_leave_no_descriptor(pool: Pool) -> None:
    """One loop after the other may wait for a group: closed ones are forgotten."""
    for ended in pool.run(2, loop_after_loop):
        assert ended.value < 5, "each would have left one"


def in_a_child(group: Group) -> list[str]:
    """Fork while an operation is under way, and ask for it in the child."""
    handle = group.recv_async(1, "float32", 1 - group.rank)
    done = group.send_async(np.ones(1, np.float32), 1 - group.rank)
    done.result()
    other = group.barrier_async() if group.rank == 0 else None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = [str(done.result()), str((other or handle).done())]
        for call in ((other or handle).result, lambda: asyncio.run(_awaiting(other or handle))):
            try:
                call()
                told.append("nothing")
            except errors.GroupClosed as error:
                told.append(error.message)
        os.write(writing, "\n".join(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert float(handle.result()[0]) == 1.0
    if other is None:
        group.barrier()
    else:
        assert asyncio.run(_awaiting(other)) is None, "nobody has taken the parent's wake-up"
    return told


def test_a_handle_in_a_forked_child(pool: Pool) -> None:
    """There it raises that the group is the parent's, at once; the parent's goes on."""
    for ended in pool.run(2, in_a_child):
        settled, is_done, result, awaited = ended.value
        assert (settled, is_done) == ("None", "True")
        assert "forked child" in result
        assert "forked child" in awaited


async def _close_in_loop(group: Group) -> int:
    await group.barrier_async()
    before = len(os.listdir("/dev/fd"))
    group.close()
    await asyncio.sleep(0)
    return before - len(os.listdir("/dev/fd"))


def close_in_loop(group: Group) -> int:
    return asyncio.run(_close_in_loop(group))


def test_close_in_a_loop_leaves_no_descriptor(pool: Pool) -> None:
    """The loop stops watching when the group is closed."""
    for ended in pool.run(2, close_in_loop):
        assert ended.value > 0
