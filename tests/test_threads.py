"""Several threads of a rank in one group: what CPython without a GIL lets run at the same time.

Where there is a GIL, the same holds, and is easier to keep.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import standfast
from tests.ranks import run_ranks

THREADS = 4
ROUNDS = 300


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Call `work(number)` in THREADS threads that begin together; what each returned or raised."""
    results: list[Any] = [None] * THREADS
    ready = threading.Barrier(THREADS)

    def run(number: int) -> None:
        ready.wait()
        try:
            results[number] = work(number)
        except standfast.StandfastError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def sums(group: standfast.Group) -> list[Any]:
    """The same operation in all threads, whose order is nobody's, from the first array on."""

    def work(number: int) -> int:
        ones = np.ones(5, np.float32)
        right = np.full(5, group.size, np.float32)
        return sum(bool((group.all_sum(ones) == right).all()) for _ in range(ROUNDS))

    return in_threads(work)


def own_groups(group: standfast.Group) -> list[Any]:
    """Each thread has a group of its own, and operations, dtypes and memory of its own."""
    parts = [group.split(0) for _ in range(THREADS)]
    dtypes = ("float32", "int64", "uint8", "float64")

    def work(number: int) -> int:
        part = parts[number]
        assert part is not None
        mine = np.full(3 + number, number + part.rank, dtypes[number])
        out = np.empty((part.size * mine.shape[0],), mine.dtype)
        right = np.repeat(np.arange(part.size) + number, mine.shape[0]).astype(mine.dtype)
        good = 0
        for _ in range(ROUNDS):
            part.all_gather(mine, out=out)
            good += bool((out == right).all())
            part.barrier()
        return good

    results = in_threads(work)
    for part in parts:
        assert part is not None
        part.close()
    return results


def aborted(group: standfast.Group) -> list[str]:
    """One thread ends the group while the others are at work."""

    def work(number: int) -> None:
        mine = np.ones(4, np.float64)
        for step in range(1_000_000):
            if step == 50 and number == 0 and group.rank == 0:
                group.abort("enough")
            group.all_sum(mine)

    results = in_threads(work)
    assert all(isinstance(each, standfast.GroupAborted) for each in results), results
    return [each.cause for each in results]


@pytest.mark.parametrize("scenario", [sums, own_groups])
def test_threads_get_right_results(scenario: Callable[..., list[Any]]) -> None:
    """Every operation of every thread has the right result."""
    for ended in run_ranks(2, scenario):
        assert ended.value == [ROUNDS] * THREADS, ended


def test_all_threads_hear_of_the_end() -> None:
    """Each thread of each rank raises the one first cause."""
    causes = [ended.value for ended in run_ranks(2, aborted)]
    assert {cause for each in causes for cause in each} == {"enough"}, causes


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_the_module_needs_no_gil() -> None:
    """Importing the native module leaves the GIL off."""
    import standfast._core  # noqa: F401

    assert not sys._is_gil_enabled()  # type: ignore[attr-defined]
