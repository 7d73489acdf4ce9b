"""Hints: what one rank sees of another, and everybody may know. Nobody is ended by one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

WORDS: Mapping[str, str] = {
    "silent": "is silent",
    "frozen": "is frozen",
    "unreachable": "is unreachable",
    "late": "is late",
    "wedged": "does not go on",
    "cut": "has lost its control link",
}


class Seen(Protocol):
    """A hint as the core tells it."""

    @property
    def kind(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def reporter(self) -> int: ...
    @property
    def cause(self) -> str: ...
    @property
    def evidence(self) -> list[str]: ...
    @property
    def since_ns(self) -> int: ...


@dataclass(frozen=True)
class Hint:
    """What is seen of a rank at the moment. It may pass; only a verdict ends a group.

    Fields:
        kind: "frozen", "silent", "unreachable", "late", "wedged" or "cut".
        rank: the rank that the hint is about.
        host: its host.
        reporter: the rank that saw it.
        cause: what was seen, e.g. ``"no beat for 3.1 s while TCP acknowledges"``.
        evidence: further observations, each with its time.
        since_s: for how long this rank has known it, in seconds.
    """

    kind: str
    rank: int
    host: str
    reporter: int
    cause: str
    evidence: tuple[str, ...]
    since_s: float

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        words = WORDS.get(self.kind, f"is suspect ({self.kind})")
        because = f": {self.cause}" if self.cause else ""
        return f"rank {self.rank}{where} {words}{because} (seen by rank {self.reporter})"


def hint_of(seen: Seen, hosts: Sequence[str], now_ns: int) -> Hint:
    """Return the core's hint with the host's name and its age."""
    known = 0 <= seen.rank < len(hosts)
    return Hint(
        kind=seen.kind,
        rank=seen.rank,
        host=hosts[seen.rank] if known else "",
        reporter=seen.reporter,
        cause=seen.cause,
        evidence=tuple(seen.evidence),
        since_s=max(0, now_ns - seen.since_ns) / 1e9,
    )


def changes(before: Iterable[Hint], after: Iterable[Hint]) -> tuple[list[Hint], list[Hint]]:
    """Return the hints that are new, and those that are over; a hint is its kind and its rank."""
    old = {(hint.kind, hint.rank): hint for hint in before}
    new = {(hint.kind, hint.rank): hint for hint in after}
    began = [hint for key, hint in new.items() if key not in old]
    ended = [hint for key, hint in old.items() if key not in new]
    return began, ended


def event_of(kind: str, hint: Hint) -> dict[str, Any]:
    """Return what a listener is told: kind "hint" or "hint_over"."""
    return {
        "kind": kind,
        "rank": hint.rank,
        "host": hint.host,
        "text": str(hint),
        "evidence": list(hint.evidence),
        "since_s": hint.since_s,
    }
