"""The side channel of stock JACCL's start-up over our rendezvous: bounded, with named errors."""

from __future__ import annotations

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

import standfast
import standfast.mlx
from tests.mlx import exchanging
from tests.ranks import Pool


def test_exchange(pool: Pool) -> None:
    """All ranks get all blocks, in the order of ranks, however often."""
    for ended in pool.run(3, exchanging.exchange, form=False):
        *blocks, refusal = ended.value
        expected = [b"".join(bytes([r]) * n for r in range(3)) for n in (4, 1, 5000)]
        assert blocks == [*expected, bytes(12)]
        assert refusal == b"4 bytes were announced, 3 were given"


def test_a_rank_dies_on_the_way(pool: Pool) -> None:
    """The others learn who, at once: stock's own side channel would wait, or not say."""
    ended = pool.run(3, exchanging.lost_on_the_way, form=False, check=False)
    for rank in (0, 2):
        assert ended[rank].returned, str(ended[rank])
        assert (ended[rank].value["type"], ended[rank].value["rank"]) == ("PeerDied", 1)


def test_a_rank_does_not_come(pool: Pool) -> None:
    """It is named after the limit."""
    said = pool.run(2, exchanging.late, form=False)[0].value
    assert said["type"] == "RendezvousError"
    assert "rank 1" in said["message"] or "1 of 2" in said["message"]
    assert 0.9 < said["took_s"] < 30


def test_arguments() -> None:
    """A limit must be one; and there is no group before MLX has asked for it."""
    with pytest.raises(standfast.ConfigError, match="timeout_s is 0"):
        standfast.mlx.all_gather_factory(timeout_s=0)
    with standfast.mlx.all_gather_factory() as channel:
        assert channel.last_failure() is None
        with pytest.raises(standfast.ConfigError, match="has not asked"):
            _ = channel.group


def test_mlx_takes_it(pool: Pool) -> None:
    """MLX's init() accepts it as a factory; its wheels for Linux have no JACCL, and it says so."""
    for ended in pool.run(2, exchanging.through_mlx, form=False):
        assert "jaccl" in ended.value.lower(), ended.value
