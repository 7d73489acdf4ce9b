"""What survivors of a broken network must say, and what must not be said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.death.harness import Case
from tests.network.cluster import LIMITS

SLACK_S = 1.5
"""A verdict comes at most so long after the silence limit."""
HINT_SLACK_S = 0.15
"""A hint comes at most so long after its limit, our own looking included."""
RESET_S = 2.0
TURNS, TURNS_S = 3, 8.0
"""So many operations shall be done within that time, which is TCP's: its pauses grow to seconds."""
LOST = ("PeerUnreachable", "LinkLost")


def check_verdict(
    case: Case,
    ranks: Iterable[int],
    since_ns: int,
    label: str,
    *,
    types: Iterable[str] = ("PeerUnreachable",),
    named: Iterable[int],
    limit_s: float = LIMITS["silence_s"] + SLACK_S,
) -> dict[str, Any]:
    """Assert that these ranks raise one and the same verdict, in time; return it as one tells it.

    Args:
        case: whose ranks.
        ranks: who must raise.
        since_ns: when the fault began.
        label: for the table of times.
        types: of the exception, one of them.
        named: the rank that it is about, one of them.
        limit_s: from the fault to the exception.
    """
    ranks = list(ranks)
    events = {rank: case.error(rank) for rank in ranks}
    for rank, event in events.items():
        error = event.error
        assert error["type"] in types, f"rank {rank}: {error}\n{case.story()}"
        assert error["rank"] in named, f"rank {rank}: {error}\n{case.story()}"
        assert error["host"] == f"host{error['rank']}", f"rank {rank}: {error}"
        assert f"rank {error['rank']} on host{error['rank']}" in error["message"], error
        assert error["cause"], error
        assert error["here"] == rank, error
        case.prompt(label, since_ns, event.ns, limit_s)
    verdicts = {(event.error["type"], event.error["rank"]) for event in events.values()}
    assert len(verdicts) == 1, f"several verdicts: {verdicts}\n{case.story()}"
    first: dict[str, Any] = events[ranks[0]].error
    return first


def check_well(case: Case) -> None:
    """End the work, and assert that nothing was raised on any rank."""
    for rank in case.others():
        case.tell(rank)
    for rank in case.others():
        worked = case.wait(rank, "worked")
        assert worked["healthy"], f"rank {rank}: {worked}\n{case.story()}"
        assert case.ranks[rank].said("raised") is None, case.story()
    case.finish()


def turns_of(case: Case, rank: int) -> int:
    """Return how many operations a rank has said to have done well."""
    told = [event for event in case.ranks[rank].events if event.name == "turns"]
    return int(told[-1]["count"]) if told else 0


def check_goes_on(case: Case, seconds: float) -> None:
    """Let time pass, and assert that every rank does more operations, then at the latest."""
    before = {rank: turns_of(case, rank) for rank in case.others()}
    case.pause(seconds)

    def is_over_or_goes_on(rank: int) -> bool:
        gone_on = turns_of(case, rank) > before[rank] + TURNS
        return gone_on or case.ranks[rank].said("raised") is not None

    for rank in before:
        case.until(f"rank {rank} goes on", lambda rank=rank: is_over_or_goes_on(rank), TURNS_S)  # type: ignore[misc]
        assert case.ranks[rank].said("raised") is None, case.story()


def hints_about(case: Case, rank: int) -> set[int]:
    """Return the ranks that this rank has had a hint about."""
    return {event["rank"] for event in case.ranks[rank].events if event.name == "hint"}
