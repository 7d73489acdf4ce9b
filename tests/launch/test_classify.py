"""Who failed first: a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from standfast.launch.classify import classify
from standfast.launch.records import RankEnd, Stop, StopReason
from standfast.launch.verdicts import Report, Tag, Verdict

MS = 1_000_000


def end(rank: int, status: int, at_ms: float, *, told: tuple[int, float] | None = None) -> RankEnd:
    """A rank's end; `told` is the launcher's signal and its time."""
    return RankEnd(
        rank=rank,
        pid=1000 + rank,
        started_ns=0,
        ended_ns=int(at_ms * MS),
        status=status,
        told_signal=told[0] if told else None,
        told_ns=int(told[1] * MS) if told else None,
    )


def report(kind: str, *names: int, at_ms: float) -> Report:
    """A rank's error."""
    return Report(kind, kind.title(), "message", int(at_ms * MS), names, int(at_ms * MS))


@dataclass
class Case:
    """What was observed, and what has to be made of it."""

    what: str
    ends: Sequence[RankEnd]
    tags: str
    first: int | None
    reports: dict[int, Report] = field(default_factory=dict)


CASES = [
    Case("all returned 0", [end(0, 0, 5), end(1, 0, 9)], "ff", None),
    Case("one failed alone", [end(0, 0, 5), end(1, 3, 9)], "fc", 1),
    Case(
        "a killed rank, and survivors whose errors name it",
        [end(0, 75, 12), end(1, 75, 13), end(2, -9, 10)],
        "vvc",
        2,
        {0: report("died", 2, at_ms=11), 1: report("died", 2, at_ms=11)},
    ),
    Case(
        "the killed rank is reaped long after the survivors ended",
        [end(0, 75, 12), end(1, 75, 13), end(2, -9, 900)],
        "vvc",
        2,
        {0: report("died", 2, at_ms=11), 1: report("died", 2, at_ms=11)},
    ),
    Case(
        "survivors ended by the watch without a word, before the culprit was reaped",
        [end(0, 75, 8), end(1, 75, 9), end(2, -9, 40)],
        "vvc",
        2,
    ),
    Case(
        "a survivor whose program saved its work and ended with 4",
        [end(0, 4, 80), end(1, -11, 10)],
        "vc",
        1,
        {0: report("died", 1, at_ms=11)},
    ),
    Case(
        "a survivor that handled the error and ended with 0",
        [end(0, 0, 80), end(1, -11, 10)],
        "vc",
        1,
        {0: report("died", 1, at_ms=11)},
    ),
    Case(
        "blame is followed to its end",
        [end(0, 75, 20), end(1, 75, 15), end(2, 1, 10)],
        "vvc",
        2,
        {0: report("died", 1, at_ms=16), 1: report("failed", 2, at_ms=11)},
    ),
    Case(
        "a rank left with 0 while the others needed it",
        [end(0, 0, 10), end(1, 75, 15), end(2, 75, 16)],
        "cvv",
        0,
        {1: report("left", 0, at_ms=11), 2: report("left", 0, at_ms=12)},
    ),
    Case(
        "a frozen rank that the launcher had to stop",
        [end(0, 75, 2000), end(1, -9, 9000, told=(15, 8000))],
        "vc",
        1,
        {0: report("stalled", 1, at_ms=1900)},
    ),
    Case(
        "a rank that was stopped is not guilty because others then missed it",
        [end(0, 3, 10), end(1, 75, 8020), end(2, -15, 8010, told=(15, 8000))],
        "cvs",
        0,
        {1: report("died", 2, at_ms=8011)},
    ),
    Case(
        "a program that does not use standfast: survivors hang and are stopped",
        [end(0, -15, 10010, told=(15, 10000)), end(1, 1, 10)],
        "sc",
        1,
    ),
    Case(
        "a rank that missed the rendezvous, because it had failed before",
        [end(0, 69, 60000), end(1, 1, 50)],
        "vc",
        1,
        {0: report("rendezvous", 1, at_ms=59990)},
    ),
    Case(
        "a rank that came late to the rendezvous, and was stopped",
        [end(0, 69, 60000), end(1, -15, 70010, told=(15, 70000))],
        "vc",
        1,
        {0: report("rendezvous", 1, at_ms=59990)},
    ),
    Case(
        "somebody aborted the group: its own error names itself",
        [end(0, 75, 20), end(1, 75, 20)],
        "cv",
        0,
        {0: report("aborted", 0, at_ms=10), 1: report("aborted", 0, at_ms=11)},
    ),
    Case(
        "ranks that blame one another: nobody is the cause",
        [end(0, 75, 20), end(1, 75, 21)],
        "vv",
        None,
        {0: report("link_lost", 1, at_ms=10), 1: report("link_lost", 0, at_ms=11)},
    ),
    Case(
        "no progress: whoever says so is a victim, though nobody is named",
        [end(0, 75, 20), end(1, 1, 21)],
        "vv",
        None,
        {0: report("no_progress", at_ms=10), 1: report("no_progress", at_ms=11)},
    ),
    Case(
        "ranks disagree: each is a cause, the first to say so is the first",
        [end(0, 76, 20), end(1, 76, 19)],
        "cc",
        1,
        {0: report("mismatch", at_ms=11), 1: report("mismatch", at_ms=10)},
    ),
    Case(
        "a mismatch that names the odd one",
        [end(0, 76, 20), end(1, 76, 21), end(2, 76, 19)],
        "vcv",
        1,
        {rank: report("mismatch", 1, at_ms=10 + rank) for rank in range(3)},
    ),
    Case(
        "two that failed by themselves: the earlier is first, the other is a cause too",
        [end(0, 3, 100), end(1, 3, 10)],
        "cc",
        1,
    ),
    Case(
        "reaped in the same instant: a signal goes before an exit code",
        [end(0, 1, 10), end(1, -9, 10.2)],
        "cc",
        1,
    ),
    Case(
        "SIGABRT and SIGPIPE are echoes, and win no tie",
        [end(0, -6, 10), end(1, -13, 10), end(2, -11, 10.3)],
        "ccc",
        2,
    ),
    Case(
        "an accused rank wins a tie against a signal",
        [end(0, -9, 10), end(1, 1, 11), end(2, 75, 20)],
        "ccv",
        1,
        {2: report("failed", 1, at_ms=11)},
    ),
    Case(
        "an error that names a rank outside the group accuses nobody",
        [end(0, 75, 20), end(1, 0, 10)],
        "vf",
        None,
        {0: report("died", 7, at_ms=10)},
    ),
    Case(
        "a victim that was too slow to end, and was stopped",
        [end(0, -15, 10020, told=(15, 10010)), end(1, -9, 10)],
        "sc",
        1,
        {0: report("died", 1, at_ms=11)},
    ),
    Case(
        "everybody ended with 75 and nobody said why",
        [end(0, 75, 20), end(1, 75, 21)],
        "vv",
        None,
    ),
]


def letters(verdict: Verdict) -> str:
    """The tags' first letters, by rank."""
    return "".join(each.tag.value[0] for each in verdict.ranks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_cause_and_tags(case: Case) -> None:
    """Each observed ending gives the right first cause and the right part to every rank."""
    verdict = classify(case.ends, case.reports, Stop(StopReason.FAILURE, 0))
    assert (letters(verdict), verdict.first) == (case.tags, case.first)
    assert (verdict.reason is None) == (case.tags.strip("f") == "")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_order_of_ranks_does_not_matter(case: Case) -> None:
    """The verdict does not depend on the order in which ends are listed."""
    there = classify(case.ends, case.reports, None)
    back = classify(list(reversed(case.ends)), case.reports, None)
    assert there.first == back.first
    assert letters(there) == letters(back)[::-1]


@pytest.mark.parametrize("reason", [each for each in StopReason if each is not StopReason.FAILURE])
def test_the_launcher_is_the_reason(reason: StopReason) -> None:
    """When the launcher ended the job for a reason of its own, no rank is called the cause."""
    ends = [end(0, 0, 5), end(1, -15, 20, told=(15, 10)), end(2, 0, 30, told=(15, 10))]
    verdict = classify(ends, {}, Stop(reason, 10 * MS))
    assert (letters(verdict), verdict.first, verdict.reason) == ("fss", None, reason)


def test_times_count_from_the_first_failure() -> None:
    """Errors and ends are told in milliseconds after the first failure was seen by anybody."""
    ends = [end(0, 75, 40), end(1, 75, 50), end(2, -9, 300), end(3, 0, 5)]
    reports = {0: report("died", 2, at_ms=12), 1: report("died", 2, at_ms=10)}
    verdict = classify(ends, reports, None)
    assert verdict.first_ns == 10 * MS
    assert [each.error_ms for each in verdict.ranks] == [2.0, 0.0, None, None]
    assert [each.exit_ms for each in verdict.ranks] == [30.0, 40.0, 290.0, None]


def test_tagged_lists_in_order_of_time() -> None:
    """Ranks of one tag are listed as they ended."""
    ends = [end(0, 75, 40), end(1, 75, 30), end(2, -9, 10)]
    verdict = classify(ends, {}, None)
    assert [each.rank for each in verdict.tagged(Tag.VICTIM)] == [1, 0]
