"""What a survivor's error must say, and what must hold of it afterwards."""

from __future__ import annotations

from typing import Any

from tests.death.harness import Case
from tests.death.processes import Event

PROMISE_S = 1.0
SAME_FIELDS = ("type", "rank", "cause", "op", "seq")


def check_death(
    case: Case, rank: int, victim: int, killed_ns: int, label: str | None, *, began: bool = True
) -> dict[str, Any]:
    """Assert that a rank raises PeerDied about the victim, in time and in full; return the error.

    Args:
        case: whose rank.
        rank: the survivor.
        victim: who was killed, or several of whom one is named.
        killed_ns: when.
        label: for the table of times; None: this rank learned of it when it called, later.
        began: the rank was in an operation when it learned of it.
    """
    event = case.error(rank)
    error = event.error
    assert error["type"] == "PeerDied", f"rank {rank}: {error}\n{case.story()}"
    assert error["rank"] == victim, f"rank {rank}: {error}\n{case.story()}"
    assert error["here"] == rank, error
    assert error["cause"], error
    assert error["host"], error
    assert f"rank {victim}" in error["message"], error
    if began:
        assert error["op"], error
        assert error["op"] in error["message"], error
    assert error["detected_ns"] >= killed_ns, f"told before it happened: {error}\n{case.story()}"
    if label is not None:
        case.prompt(label, killed_ns, event.ns, PROMISE_S)
    return error


def check_aftermath(case: Case, survivors: list[int]) -> None:
    """Assert that the group is over for all survivors, for the same reason; let them end well."""
    for rank in survivors:
        first = case.error(rank).error
        state = case.wait(rank, "state")
        again = [event for event in case.ranks[rank].events if event.name == "again"]
        assert len(again) == 3, f"rank {rank}: a later call went well\n{case.story()}"
        for event in again:
            check_same(case, rank, first, event)
        assert state["healthy"] is False, f"rank {rank} calls itself healthy\n{case.story()}"
        assert state["last"]["rank"] == first["rank"], state
    case.finish(*case.others(*survivors))
    for rank in survivors:
        closed = case.wait(rank, "closed")
        assert "error" not in closed.fields, f"rank {rank}: close() raised\n{case.story()}"
        allowed_s = case.allowed_s(2.0)
        assert closed["took_s"] < allowed_s, f"rank {rank}: close() took long\n{case.story()}"


def check_same(case: Case, rank: int, first: dict[str, Any], event: Event) -> None:
    """Assert that a later call raised the first cause, at once."""
    assert "error" in event.fields, f"rank {rank}: a later call went well\n{case.story()}"
    for field in SAME_FIELDS:
        assert event.error.get(field) == first.get(field), f"{field}: {event}\nfirst: {first}"
    assert event["took_s"] < case.allowed_s(0.5), (
        f"rank {rank}: a later call waited\n{case.story()}"
    )
