"""verify=True: results are compared between ranks, and damage is an error on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from standfast import DigestMismatch, Group, _core
from tests.ranks import Pool

VERIFY = {"verify": True}
SIZES = (1, 1000, 100_000)


def every_operation(group: Group, count: int) -> None:
    """Run all operations; what they give is what it is without verification."""
    me, size = group.rank, group.size
    x = np.arange(count, dtype=np.float32) + me
    both = np.concatenate([np.arange(count, dtype=np.float32) + rank for rank in range(size)])
    many = np.tile(x, size)
    np.testing.assert_array_equal(group.all_sum(x), both.reshape(size, -1).sum(0))
    np.testing.assert_array_equal(group.all_gather(x), both)
    np.testing.assert_array_equal(group.broadcast(x, 1), np.arange(count, dtype=np.float32) + 1)
    np.testing.assert_array_equal(group.all_to_all(many), both)
    np.testing.assert_array_equal(group.sum_scatter(many), both.reshape(size, -1).sum(0))
    gathered = group.gather(x, 0)
    assert gathered is None if me else np.array_equal(gathered, both)
    assert group.gather(b"x" * (me + 1), 1) == (
        [b"x" * (rank + 1) for rank in range(size)] if me == 1 else None
    )
    part = group.scatter(both if me == 0 else None, 0)
    np.testing.assert_array_equal(part, x)
    handle = group.send_async(x, (me + 1) % size)
    left = (me - 1) % size
    got = group.recv((count,), np.float32, left)
    handle.result()
    np.testing.assert_array_equal(got, np.arange(count, dtype=np.float32) + left)
    group.barrier()


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize("count", SIZES)
def test_all_is_well(pool: Pool, fabric: str, count: int) -> None:
    """Every operation passes its own check."""
    init = {**VERIFY, "fabric": fabric}
    for ended in pool.run(3, every_operation, count, init=init):
        assert ended.value is None, ended


OPERATIONS: dict[str, Callable[[Group], Any]] = {
    "all_sum": lambda group: group.all_sum(np.ones(1000)),
    "all_gather": lambda group: group.all_gather(np.ones(1000)),
    "broadcast": lambda group: group.broadcast(np.ones(1000), 0),
    "all_to_all": lambda group: group.all_to_all(np.ones(group.size)),
    "gather": lambda group: group.gather(np.ones(1000), 2),
    "scatter": lambda group: group.scatter(np.ones(3) if group.rank == 0 else None, 0),
    "recv": lambda group: (
        group.send(np.ones(5), 2) if group.rank == 0 else group.recv((5,), "float64", 0)
    ),
}


def damaged(group: Group, name: str) -> tuple[str, int | None, str]:
    """Rank 2 finds other data than the others have; all ranks hear of it."""
    if group.rank == 2:
        _core.damage_next(True)
    try:
        if name != "recv" or group.rank != 1:
            OPERATIONS[name](group)
        for _ in range(1000):
            group.barrier()
    except DigestMismatch as error:
        assert group.last_failure() is not None
        return type(error).__name__, error.rank, str(error)
    raise AssertionError("no rank has found the damage")


@pytest.mark.parametrize("name", OPERATIONS)
def test_damage(pool: Pool, name: str) -> None:
    """Damaged data is the same error on all ranks, which says where it was found."""
    found = [ended.value for ended in pool.run(3, damaged, name, init=VERIFY)]
    assert len({(kind, rank) for kind, rank, _ in found}) == 1, found
    _, rank, text = found[0]
    if name in ("all_sum", "all_gather", "broadcast"):
        assert rank == 2
        assert "ranks [0, 1] have digest" in text, text
    else:
        assert rank in (0, 1), text
        assert "and rank 2 has data of digest" in text, text
    assert "damaged data" in text, text


def damages(group: Group) -> list[float]:
    """Nobody compares: nobody finds."""
    _core.damage_next(True)
    try:
        return list(group.all_sum(np.ones(2)))
    finally:
        _core.damage_next(False)


def test_off_by_default(pool: Pool) -> None:
    """Without verify=True there is no comparison, and no cost."""
    for ended in pool.run(2, damages):
        assert ended.value == [2.0, 2.0]
