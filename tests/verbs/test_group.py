"""A group over RDMA, as users see it; conformance and death suites run over it as well."""

from __future__ import annotations

import numpy as np

from standfast import Group
from tests.ranks import Pool


def adds(group: Group, count: int) -> list[float]:
    """Add up what encodes rank and index."""
    x = np.arange(count, dtype=np.float32) + group.rank
    return list(group.all_sum(x)[:4])


def test_all_sum(pool: Pool) -> None:
    """Two ranks, each on a Mac of its own, add up."""
    for count in (1, 5000, 1_000_000):
        for ended in pool.run(2, adds, count, init={"fabric": "verbs"}):
            assert ended.value == [2 * i + 1 for i in range(min(4, count))]
