"""The exit status, and what may be tried again: tables."""

from __future__ import annotations

import pytest

from standfast import exits
from standfast.launch.classify import classify
from standfast.launch.records import RankEnd, Stop, StopReason
from standfast.launch.status import cause_status, exit_status, may_retry
from standfast.launch.verdicts import Report


def end(rank: int, status: int, *, told: bool = False) -> RankEnd:
    """A rank's end, all at different times."""
    at_ns = 1_000_000_000 * (1 + rank)
    return RankEnd(rank, 100 + rank, 0, at_ns, status, 15 if told else None, 5 if told else None)


def names(kind: str, rank: int) -> Report:
    """An error that names a rank, raised before anything ended."""
    return Report(kind, kind, "message", 1, (rank,))


STATUSES = [
    ("all 0", [0, 0], {}, 0),
    ("own code", [0, 3], {}, 3),
    ("SIGSEGV is 139", [0, -11], {}, 139),
    ("SIGKILL is 137", [75, -9], {}, 137),
    ("the first of two", [4, 3], {}, 4),
    ("75 of a victim does not hide the cause", [75, 3], {}, 3),
    ("75 of everybody", [75, 75], {}, 75),
    ("a rank that left has no status of its own", [0, 75], {1: names("left", 0)}, 75),
    ("its victim may have one", [0, 4], {1: names("left", 0)}, 4),
    ("a victim that handled it has none", [0, 0, 75], {1: names("left", 0)}, 75),
    ("mismatch", [76, 76], {}, 76),
]


@pytest.mark.parametrize(("what", "statuses", "reports", "status"), STATUSES)
def test_cause_status(
    what: str, statuses: list[int], reports: dict[int, Report], status: int
) -> None:
    """The launcher's status is the first cause's own, and 0 only if all returned 0."""
    ends = [end(rank, each) for rank, each in enumerate(statuses)]
    assert cause_status(classify(ends, reports)) == status, what


@pytest.mark.parametrize(
    ("kind", "status"), [("stalled", 75), ("unreachable", 75), ("died", 143), ("failed", 143)]
)
def test_status_of_an_accused_rank_that_was_stopped(kind: str, status: int) -> None:
    """A rank that hung has no status of its own; one that its peers saw dead tells how it died."""
    verdict = classify([end(0, 75), end(1, -15, told=True)], {0: names(kind, 1)})
    assert cause_status(verdict) == status


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (StopReason.INTERRUPT, 130),
        (StopReason.TERMINATE, 143),
        (StopReason.HANGUP, 129),
        (StopReason.TIMEOUT, 124),
        (StopReason.OUTPUT, 141),
    ],
)
def test_status_of_a_job_that_the_launcher_ended(reason: StopReason, status: int) -> None:
    """Whatever the ranks return then, the status tells why the launcher ended them."""
    verdict = classify([end(0, 0, told=True), end(1, -9, told=True)], {}, Stop(reason, 1))
    assert exit_status(verdict, used_up=True) == status
    assert not may_retry(verdict)


@pytest.mark.parametrize("status", [1, 3, 69, 70, 75, 126, 255, -9, -11])
def test_what_may_be_tried_again(status: int) -> None:
    """Signals, 75 and a program's own codes may be tried again; used up, that is 75."""
    verdict = classify([end(0, status)], {})
    assert may_retry(verdict)
    assert exit_status(verdict, used_up=True) == 75


@pytest.mark.parametrize("status", [2, 76, 78])
def test_what_must_not_be_tried_again(status: int) -> None:
    """Usage, mismatch and configuration errors keep their status, restarts or not."""
    verdict = classify([end(0, status)], {})
    assert not may_retry(verdict)
    assert exit_status(verdict, used_up=True) == status


def test_success_is_nothing_to_try_again() -> None:
    """A job that ended well is not run again, and is 0 even with all restarts used."""
    verdict = classify([end(0, 0)], {})
    assert not may_retry(verdict)
    assert exit_status(verdict, used_up=True) == 0


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended well"), (75, "sensible"), (124, "limit"), (139, "SIGSEGV"), (3, "program's own")],
)
def test_explanation(code: int, words: str) -> None:
    """Every status has a sentence."""
    assert words in exits.meaning(code)
