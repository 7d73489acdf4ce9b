"""The ranks of a host meet in one piece of memory for their beacons, and its name goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.rendezvous.beacons import KEY_DIGITS, name_parts
from standfast.rendezvous.protocol import Entry, Table
from tests.rendezvous.processes import Ranks, assert_formed


def table(token: bytes, *hosts: str) -> Table:
    """A table of ranks on the given hosts; the pid of rank r is 100 + r."""
    entries = [
        Entry(host, f"id-{host}", 100 + rank, 5000, [], False) for rank, host in enumerate(hosts)
    ]
    return Table(token, entries)


def test_the_name_is_that_of_a_host_and_a_group() -> None:
    """The ranks of a host derive one name, which tells the first one's pid; others another."""
    group = table(b"t" * 32, "a", "b", "a", "b")
    names = [name_parts(rank, group) for rank in range(4)]
    assert names[0] == names[2]
    assert names[1] == names[3]
    assert [maker for maker, _ in names[:2]] == [100, 101]
    other = table(b"u" * 32, "a", "b", "a", "b")
    keys = {name_parts(rank, each)[1] for rank in (0, 1) for each in (group, other)}
    assert len(keys) == 4
    assert all(len(key) == KEY_DIGITS and int(key, 16) >= 0 for key in keys)


def test_the_ranks_of_a_host_share_their_beacons(ranks: Ranks) -> None:
    """All ranks of a host hold the same memory, those of another host another one."""
    team = [ranks.start(rank, 5, host="ab"[rank % 2]) for rank in range(5)]
    beacons = [outcome.beacon for outcome in assert_formed(team)]
    assert beacons[0] == beacons[2] == beacons[4]
    assert beacons[1] == beacons[3]
    assert None not in beacons
    assert beacons[0] != beacons[1]
    assert ranks.segments() == []


def test_a_group_is_formed_without_beacons(ranks: Ranks) -> None:
    """A rank that cannot have its beacon is in the group all the same; the others have theirs."""
    team = [ranks.start(rank, 3, broken=("beacon",) if rank == 1 else ()) for rank in range(3)]
    beacons = [outcome.beacon for outcome in assert_formed(team)]
    assert beacons[1] is None
    assert beacons[0] is not None
    assert beacons[0] == beacons[2]


def test_beacons_can_be_turned_off(ranks: Ranks) -> None:
    """The setting is shared: nobody has one then."""
    team = ranks.start_all(2, beacon=False)
    assert [outcome.beacon for outcome in assert_formed(team)] == [None, None]


def test_the_native_core_makes_the_beacons(ranks: Ranks) -> None:
    """Without a stand-in, the memory is the core's own, and none of it keeps its name."""
    pytest.importorskip("standfast._core")
    team = ranks.start_all(3, native=True)
    beacons = {outcome.beacon for outcome in assert_formed(team)}
    assert len(beacons) == 1
    pids = {str(rank.pid) for rank in team}
    assert not [path for path in Path("/dev/shm").glob("sf-*") if path.name.split("-")[1] in pids]
