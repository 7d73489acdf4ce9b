"""A lost peer in MLX's operations: an error at mx.eval with our words, no abort, no hang."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from tests.mlx import failing
from tests.mlx.here import needs_extension
from tests.ranks import Ended, Pool, run_ranks

pytestmark = needs_extension


def survivors(ended: list[Ended], victim: int) -> list[dict[str, Any]]:
    """Return what the others say; they have ended well."""
    left = [rank for rank in ended if rank.rank != victim]
    assert all(rank.returned for rank in left), "\n".join(map(str, left))
    return [rank.value for rank in left]


@pytest.mark.parametrize(
    ("victim", "how"), [(0, "eval"), (1, "item"), (2, "async"), (2, "memoryview")]
)
def test_a_rank_dies_at_work(pool: Pool, victim: int, how: str) -> None:
    """However the graph is evaluated: the text, the structure, and the same cause ever after."""
    ended = pool.run(3, failing.work_until_lost, victim, how, form=False, check=False)
    for said in survivors(ended, victim):
        assert f"rank {victim} on " in said["text"]
        assert "died" in said["text"]
        assert "hint: why it ended shows in the output" in said["text"]
        assert said["again"] == said["text"] == said["told"]
        assert said["failure"]["type"] == "PeerDied"
        assert said["failure"]["rank"] == victim
        assert said["failure"]["op"] == "all_sum"
        assert "float32[100000]" in said["text"]
        assert not said["healthy"]


@pytest.mark.parametrize("operation", ["all_sum", "all_max", "all_min", "all_gather", "recv"])
def test_in_each_operation(pool: Pool, operation: str) -> None:
    """The text names the operation and its array."""
    said = pool.run(2, failing.lost_in, operation, form=False)[0].value
    assert "rank 1 on " in said["text"]
    assert "aborted the group: enough of this" in said["text"]
    assert f"in {operation} #" in said["text"] or f"into {operation} #" in said["text"]
    assert "(float32[4,3])" in said["text"]
    assert (said["failure"]["type"], said["failure"]["rank"]) == ("GroupAborted", 1)


def test_nobody_catches_it() -> None:
    """A rank that does not catch the error ends with status 75, as with our own exceptions."""
    ended = run_ranks(3, failing.uncaught, 1, form=False, check=False)
    assert [rank.status for rank in ended] == [75, -9, 75]
    for rank in (ended[0], ended[2]):
        assert "RuntimeError: rank 1 on " in rank.stderr, rank.stderr


def test_the_words_come_without_python(pool: Pool) -> None:
    """Where the GIL cannot be had for 2 s, the core's own words do; the structure is whole."""
    ended = pool.run(2, failing.lost_behind_the_lock, form=False, check=False)
    (said,) = survivors(ended, 1)
    assert said["text"].startswith("standfast: died: rank 1: ")
    assert "in all_sum (float32[5]); Python could not be asked for more" in said["text"]
    assert (said["failure"]["type"], said["failure"]["rank"]) == ("PeerDied", 1)


@pytest.mark.parametrize("waits_s", [0.5, 1.5])
def test_leaving_with_work_under_way(waits_s: float) -> None:
    """A program that ends while MLX waits for a lost peer ends by itself, and does not crash."""
    ended = run_ranks(2, failing.leave_with_work_under_way, waits_s, form=False, check=False)
    assert ended[0].returned, str(ended[0])
    assert ended[0].status is not None
    assert ended[0].status >= 0, str(ended[0])


def test_closed_and_aborted(pool: Pool) -> None:
    """Both are told in words."""
    for ended in pool.run(2, failing.after_the_end, form=False):
        closed, aborted = ended.value
        assert "was closed" in closed
        assert "aborted the group: enough of this" in aborted


@pytest.mark.parametrize("victim", [0, 2])
def test_training_goes_on(pool: Pool, victim: int) -> None:
    """A training loses a rank, forms its group again, and learns on: one model on all."""
    ended = pool.run(3, failing.train, victim, form=False, check=False)
    said = survivors(ended, victim)
    for one in said:
        assert one["lost"] == [victim]
        assert one["equal"]
        # The step before may have been done by three, or again by two.
        for step, size in one["sizes"].items():
            if step != failing.LOST_AT - 1:
                assert size == (3 if step < failing.LOST_AT else 2)
        losses = one["losses"]
        assert set(range(failing.BATCHES)) - set(losses) <= {failing.LOST_AT - 1}
        assert all(losses[step] == said[0]["losses"].get(step, losses[step]) for step in losses)
        assert losses[failing.BATCHES - 1] < losses[0] / 3
