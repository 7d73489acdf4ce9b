"""The live table: events in their order, and a status that is never better than the truth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.launch.ledger import Ledger
from standfast.launch.records import RankEnd


def notice(kind: str, rank: int, generation: int = 1, **more: Any) -> bytes:
    return json.dumps({"kind": kind, "rank": rank, "generation": generation, **more}).encode()


def end(rank: int, status: int) -> RankEnd:
    return RankEnd(rank=rank, pid=10 + rank, started_ns=0, ended_ns=1, status=status)


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def ledger(told: list[dict[str, Any]]) -> Ledger:
    ledger = Ledger("job", ("x",), {"pid": 1, "pid_start": "2"}, told.append)
    ledger.started(1, {0: ("", 10), 1: ("", 11)})
    return ledger


def names(told: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in told]


def test_ready_means_all_of_this_generation(ledger: Ledger, told: list[dict[str, Any]]) -> None:
    """One rank is not enough, nor is one twice, nor one of the generation before."""
    ledger.noticed(notice("ready", 0))
    ledger.noticed(notice("ready", 0))
    ledger.noticed(notice("ready", 1, generation=0))
    assert (ledger.state, ledger.all_ready) == ("started", False)
    ledger.noticed(notice("ready", 1))
    assert (ledger.state, ledger.all_ready) == ("ready", True)
    assert names(told) == ["started", "ready"]


def test_a_death_is_a_failure_at_once(ledger: Ledger, told: list[dict[str, Any]]) -> None:
    """No rank needs to have noticed."""
    ledger.noticed(notice("ready", 0))
    ledger.noticed(notice("ready", 1))
    ledger.ended(end(1, -9))
    assert ledger.state == "failed"
    assert ledger.record()["ranks"][1]["ended"] == "ended by SIGKILL"
    assert (told[-1]["event"], told[-1]["rank"]) == ("peer_lost", 1)


def test_a_lost_peer_is_told_once(ledger: Ledger, told: list[dict[str, Any]]) -> None:
    """By whoever knows first; victims are no lost peers."""
    ledger.noticed(notice("fault", 0, lost=1, reason="rank 1 died"))
    ledger.ended(end(1, -9))
    ledger.ended(end(0, 75))
    ledger.failed(1, "the group failed: rank 1 was ended by SIGKILL", 137)
    ledger.restarting(2, 1, 3, 0.0)
    ledger.started(2, {0: ("", 20), 1: ("", 21)})
    assert names(told) == ["started", "peer_lost", "group_failed", "restarting", "started"]
    assert told[1]["reason"] == "rank 1 died"


def test_a_generation_that_failed_is_not_ready(ledger: Ledger) -> None:
    """A late word of a rank does not make it so."""
    ledger.ended(end(1, 1))
    ledger.noticed(notice("ready", 0))
    ledger.noticed(notice("ready", 1))
    assert ledger.state == "failed"


def test_started_waits_for_processes_elsewhere(told: list[dict[str, Any]]) -> None:
    """The event has every pid, unless something else happens first."""
    ledger = Ledger("job", ("x",), {}, told.append)
    ledger.started(1, {0: ("a", 0), 1: ("b", 0)})
    ledger.located({0: 5, 1: 0})
    assert told == []
    ledger.located({0: 5, 1: 6})
    assert [rank["pid"] for rank in told[0]["ranks"]] == [5, 6]
    ledger.started(2, {0: ("a", 0)})
    ledger.ended(end(0, 1))
    assert names(told) == ["started", "started", "peer_lost"]


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"null", notice("ready", 7), notice("beat", 0)])
def test_nonsense_is_ignored(ledger: Ledger, line: bytes) -> None:
    """The FIFO is the ranks' to write to, and ranks have bugs."""
    before = ledger.record()
    ledger.noticed(line)
    assert ledger.record() == before


def test_beats_only_grow(ledger: Ledger) -> None:
    """After a restart from a checkpoint the old step is reached again, which is no progress."""
    ledger.noticed(notice("beat", 0, step=5))
    ledger.noticed(notice("beat", 0, step=3))
    assert ledger.beats == {0: 5}


@pytest.mark.parametrize(
    ("notices", "expected"),
    [
        ([], False),
        ([("ready", 0, 1), ("ready", 1, 1), ("reform", 0, 1)], True),
        ([("ready", 1, 1), ("reform", 0, 1)], True),
        ([("ready", 0, 1), ("ready", 1, 1)], False),
        ([("ready", 0, 1), ("reform", 0, 1)], True),
        ([("ready", 0, 1), ("reform", 0, 1), ("ready", 0, 2)], False),
        ([("reform", 0, 1), ("reform", 1, 1), ("ready", 0, 2), ("ready", 1, 2)], False),
        ([("ready", 1, 2), ("reform", 0, 1), ("reform", 0, 2)], True),
    ],
)
def test_who_went_on(ledger: Ledger, notices: list[tuple[str, int, int]], expected: bool) -> None:
    """Rank 0 goes on without rank 1 if it has left the last group that rank 1 was in.

    Where rank 1's own word was lost with its agent, rank 0's is enough: a group has all or none.
    """
    for kind, rank, generation in notices:
        ledger.noticed(notice(kind, rank, generation))
    assert ledger.went_on([0], [1]) is expected


def test_ready_comes_before_the_loss(ledger: Ledger, told: list[dict[str, Any]]) -> None:
    """One that has joined proves that all were there, also one that dies before it says so."""
    ledger.noticed(notice("ready", 0, seat=0, size=2))
    ledger.ended(end(1, -9))
    ledger.noticed(notice("fault", 0, lost=1, reason="rank 1 died"))
    ledger.failed(1, "rank 1", 137)
    assert names(told) == ["started", "ready", "peer_lost", "group_failed"]
    assert told[-1]["was_ready"] is True


def test_what_was_never_ready_is_said_to_be_so(ledger: Ledger, told: list[dict[str, Any]]) -> None:
    """Where nobody had joined when a rank was lost, a later word changes nothing."""
    ledger.ended(end(1, -9))
    ledger.noticed(notice("ready", 0, seat=0, size=2))
    ledger.failed(1, "rank 1", 137)
    assert names(told) == ["started", "peer_lost", "group_failed"]
    assert told[-1]["was_ready"] is False


def reformed(ledger: Ledger) -> None:
    """Two ranks, of which 0 is lost, and 1 forms the group again."""
    for rank in (0, 1):
        ledger.noticed(notice("ready", rank, seat=rank, size=2))
    ledger.ended(end(0, -9))
    ledger.noticed(notice("reform", 1, address="h:1"))


def test_a_newcomer_in_the_table(ledger: Ledger, told: list[dict[str, Any]]) -> None:
    """Its story: restarting, started, ready; its number is used up, whatever becomes of it."""
    reformed(ledger)
    assert ledger.waits([1])
    assert ledger.addresses == {1: "h:1"}
    ledger.restarting(2, 1, 3, 0.0, [0])
    ledger.replaced(2, {0: ("", 20)})
    assert (ledger.is_joining(0), ledger.formed, ledger.group_generation) == (True, False, 2)
    ledger.noticed(notice("ready", 1, 2, seat=0, size=2))
    assert ledger.state == "restarting"
    ledger.noticed(notice("ready", 0, 2, seat=1, size=2))
    assert (ledger.state, ledger.formed) == ("ready", True)
    assert names(told)[3:] == ["restarting", "started", "ready"]
    assert told[-2]["ranks"] == [{"rank": 0, "host": "", "pid": 20}]


def test_a_group_that_was_formed_again_has_its_own_ranks(
    ledger: Ledger, told: list[dict[str, Any]]
) -> None:
    """Rank 1 of generation 2 is the launcher's rank 0, and is told as that."""
    reformed(ledger)
    ledger.replaced(2, {0: ("", 20)})
    for rank, seat in ((1, 0), (0, 1)):
        ledger.noticed(notice("ready", rank, 2, seat=seat, size=2))
    ledger.noticed(notice("fault", 1, 2, lost=1, reason="rank 1 died", error="PeerDied"))
    assert (told[-1]["event"], told[-1]["rank"]) == ("peer_lost", 0)


def test_a_newcomer_that_nobody_waits_for(ledger: Ledger) -> None:
    """The group is whole without it: its end, and its life, change nothing."""
    reformed(ledger)
    ledger.replaced(2, {0: ("", 20)})
    ledger.noticed(notice("ready", 1, 2, seat=0, size=1))
    assert (ledger.state, ledger.waits([0, 1])) == ("ready", False)
    assert not ledger.went_on([0], [1])
    ledger.ended(end(0, 69))
    assert ledger.state == "ready"
    assert ledger.went_on([1], [0])


def test_who_is_forsaken(ledger: Ledger) -> None:
    """A rank that runs, was given up, and that all others have left behind."""
    for rank in (0, 1):
        ledger.noticed(notice("ready", rank, seat=rank, size=2))
    ledger.noticed(notice("fault", 1, lost=0, reason="stalled", error="PeerStalled"))
    assert ledger.forsaken([0, 1]) == []
    ledger.noticed(notice("reform", 1, address="h:1"))
    assert ledger.forsaken([0, 1]) == [0]
    assert ledger.forsaken([1]) == []
