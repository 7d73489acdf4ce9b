"""Who failed first, and what part everybody else had: a pure function of what was observed.

The rules, in the order in which they decide:

1. If the launcher ended the generation for a reason of its own (Ctrl-C, time limit, ...), no rank
   is a cause.
2. A rank whose error names another rank is a victim of that one. So is one that ended with 75, or
   whose error is only "no progress" or "aborted": such a rank saw trouble, and was not the trouble.
3. Blame is followed to its end: if 0 names 2 and 2 names 3, then 3 is accused. Ranks that blame one
   another in a circle accuse nobody.
4. Causes are the ranks that failed by themselves and are no victims, and the accused who did not
   fail: they left with 0, or hung and were stopped. A cause's time is that of its end or of the
   first accusation, whichever is earlier; the kernel may need seconds to take apart a killed
   process that its peers missed within a millisecond.
5. The earliest cause is the first. Within 5 ms the launcher cannot order ends by its own clock (it
   may have been off the processor itself), so there an accused rank goes before others, and a
   signal before an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from standfast import exits
from standfast.launch.records import RankEnd, Stop, StopReason
from standfast.launch.verdicts import RankVerdict, Report, Tag, Verdict

TIE_NS = 5_000_000
SAW_ONLY = frozenset({"no_progress", "aborted"})
ECHOES = frozenset({-6, -13})
"""SIGABRT and SIGPIPE often follow a peer's death, so they do not win a tie."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """The earliest error that led to a rank."""

    at_ns: int
    kind: str


def classify(
    ends: Sequence[RankEnd], reports: Mapping[int, Report], stop: Stop | None = None
) -> Verdict:
    """Judge a generation whose ranks have all ended; `stop` is the launcher's first decision."""
    if stop is not None and stop.reason is not StopReason.FAILURE:
        ranks = tuple(
            _judge(end, reports.get(end.rank), frozenset(), {}, stop.at_ns) for end in ends
        )
        return Verdict(reason=stop.reason, ranks=ranks, first_ns=stop.at_ns, stop=stop)
    if all(end.status == 0 for end in ends):
        return Verdict(reason=None, ranks=tuple(RankVerdict(Tag.FINISHED, end) for end in ends))
    accused = _accusations(ends, reports)
    causes = _causes(ends, reports, accused)
    first = _first(ends, causes, accused)
    first_ns = causes[first] if first is not None else _earliest(ends, reports)
    ranks = tuple(
        _judge(end, reports.get(end.rank), causes.keys(), accused, first_ns) for end in ends
    )
    return Verdict(reason=StopReason.FAILURE, ranks=ranks, first=first, first_ns=first_ns)


def _accusations(
    ends: Sequence[RankEnd], reports: Mapping[int, Report]
) -> Mapping[int, Accusation]:
    known = {end.rank for end in ends}
    accused: dict[int, Accusation] = {}
    for reporter, report in sorted(reports.items(), key=lambda item: (item[1].seen_ns, item[0])):
        for named in _others(report, reporter):
            root = _root(named, reports, seen={reporter})
            if root in known and root not in accused:
                accused[root] = Accusation(report.seen_ns, report.kind)
    return accused


def _others(report: Report | None, rank: int) -> tuple[int, ...]:
    return () if report is None else tuple(name for name in report.names if name != rank)


def _root(rank: int, reports: Mapping[int, Report], seen: set[int]) -> int:
    """Follow the blame to the rank that blames nobody; -1 where it goes in a circle."""
    while rank not in seen:
        seen.add(rank)
        named = _others(reports.get(rank), rank)
        if not named:
            return rank
        rank = named[0]
    return -1


def _is_victim(end: RankEnd, report: Report | None) -> bool:
    if _others(report, end.rank):
        return True
    if report is not None and end.rank in report.names:
        return False
    return end.status == exits.RETRY or (report is not None and report.kind in SAW_ONLY)


def _causes(
    ends: Sequence[RankEnd], reports: Mapping[int, Report], accused: Mapping[int, Accusation]
) -> dict[int, int]:
    """Return each cause with its time."""
    causes: dict[int, int] = {}
    doubtful: dict[int, int] = {}
    for end in ends:
        accusation = accused.get(end.rank)
        if _is_victim(end, reports.get(end.rank)):
            if accusation is not None:
                doubtful[end.rank] = accusation.at_ns
        elif end.status != 0 and not end.stopped:
            causes[end.rank] = min([end.ended_ns, *([accusation.at_ns] if accusation else [])])
        elif accusation is not None and (end.told_ns is None or accusation.at_ns < end.told_ns):
            causes[end.rank] = accusation.at_ns
    return causes or doubtful


def _first(
    ends: Sequence[RankEnd], causes: Mapping[int, int], accused: Mapping[int, Accusation]
) -> int | None:
    if not causes:
        return None
    earliest = min(causes.values())
    near = [end for end in ends if causes.get(end.rank, earliest + TIE_NS + 1) <= earliest + TIE_NS]
    return min(near, key=lambda end: _precedence(end, causes[end.rank], accused)).rank


def _precedence(
    end: RankEnd, at_ns: int, accused: Mapping[int, Accusation]
) -> tuple[bool, bool, int, int]:
    hit = end.status < 0 and end.status not in ECHOES
    return (end.rank not in accused, not hit, at_ns, end.rank)


def _earliest(ends: Sequence[RankEnd], reports: Mapping[int, Report]) -> int:
    failed = [end.ended_ns for end in ends if end.status != 0 and not end.stopped]
    return min([*failed, *(report.seen_ns for report in reports.values())])


def _judge(
    end: RankEnd,
    report: Report | None,
    causes: Iterable[int],
    accused: Mapping[int, Accusation],
    first_ns: int,
) -> RankVerdict:
    accusation = accused.get(end.rank)
    return RankVerdict(
        tag=_tag(end, report, causes),
        end=end,
        report=report,
        accused=None if accusation is None else accusation.kind,
        error_ms=None if report is None else _ms(report.raised_ns, first_ns),
        exit_ms=_ms(end.ended_ns, first_ns),
    )


def _tag(end: RankEnd, report: Report | None, causes: Iterable[int]) -> Tag:
    if end.rank in causes:
        return Tag.CAUSE
    if end.stopped:
        return Tag.STOPPED
    if end.status == 0 and not _others(report, end.rank):
        return Tag.FINISHED
    return Tag.VICTIM


def _ms(at_ns: int, since_ns: int) -> float | None:
    return None if at_ns < since_ns else (at_ns - since_ns) / 1e6
