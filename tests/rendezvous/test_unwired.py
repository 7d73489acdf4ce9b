"""Ranks that only watch each other: control links, and nothing else."""

from __future__ import annotations

import pytest

from standfast.errors import ConfigError
from tests.rendezvous.processes import Ranks


@pytest.mark.parametrize("key", [None, b"sixteen bytes or more"])
def test_a_group_without_wires_has_its_control_links(ranks: Ranks, key: bytes | None) -> None:
    """A star of control links that carry data, no wire, no data port, no segment."""
    team = ranks.start_all(4, wires=False, key=key, talk=True)
    for rank, one in enumerate(team):
        outcome = one.outcome()
        assert outcome.error is None, outcome.traceback
        assert outcome.faults == []
        assert outcome.control == ((1, 2, 3) if rank == 0 else (0,))
        assert outcome.wires == {}
        assert [peer.address for peer in outcome.peers] == [""] * 4
        assert outcome.ranks_here == 4


def test_hosts_without_shared_memory_are_no_matter(ranks: Ranks) -> None:
    """fabric='shm', which cannot join two hosts, says nothing about ranks without wires."""
    team = [
        ranks.start(rank, 2, wires=False, fabric="shm", host=host)
        for rank, host in enumerate(("here", "there"))
    ]
    for one in team:
        outcome = one.outcome()
        assert outcome.error is None, outcome.traceback


def test_watch_and_group_never_form_one_group(ranks: Ranks) -> None:
    """A rank that only watches is refused by a group, and hears what rank 0 does instead."""
    group = [ranks.start(rank, 2, init_timeout_s=20.0) for rank in (0,)]
    group[0].reached("listening")
    stranger = ranks.start(1, 2, wires=False).outcome()
    assert isinstance(stranger.error, ConfigError)
    assert "called standfast.watch(), rank 0 standfast.init()" in str(stranger.error)
    assert stranger.leaked == []
    right = ranks.start(1, 2)
    assert right.outcome().error is None
    assert group[0].outcome().error is None
