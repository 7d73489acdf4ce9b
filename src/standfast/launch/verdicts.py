"""What is made of a generation once it is over, as plain values; reports of the ranks included.

Kept apart from records.py because nothing of it is needed to start ranks, and that should be fast.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.launch.records import RankEnd, Stop, StopReason


@dataclass(frozen=True, slots=True)
class Report:
    """The standfast error that a rank raised, as its report file tells it.

    `names` are the ranks the error is about; it may hold the rank itself.
    """

    kind: str
    type: str
    message: str
    raised_ns: int
    names: tuple[int, ...] = ()
    detected_ns: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seen_ns(self) -> int:
        """When this rank first knew."""
        return self.raised_ns if self.detected_ns is None else self.detected_ns


class Tag(enum.Enum):
    """What part a rank had in the end of its generation."""

    CAUSE = "cause"
    VICTIM = "victim"
    STOPPED = "stopped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """A rank's part in the end of its generation.

    `accused` is the kind of the first error that named this rank ("died", "left", "stalled", ...).
    `error_ms` and `exit_ms` count from the first failure; None where the rank raised no error, or
    ended before it.
    """

    tag: Tag
    end: RankEnd
    report: Report | None = None
    accused: str | None = None
    error_ms: float | None = None
    exit_ms: float | None = None

    @property
    def rank(self) -> int:
        """The rank this is about."""
        return self.end.rank


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a generation ended.

    `reason` is None when all ranks returned 0. `first` is the first cause; None when the launcher
    itself ended the generation (`stop`), or when ranks only blamed one another. `first_ns` is the
    moment from which times are counted.
    """

    reason: StopReason | None
    ranks: tuple[RankVerdict, ...]
    first: int | None = None
    first_ns: int | None = None
    stop: Stop | None = None

    @property
    def cause(self) -> RankVerdict | None:
        """The verdict about the first cause."""
        return next((each for each in self.ranks if each.rank == self.first), None)

    def tagged(self, tag: Tag) -> list[RankVerdict]:
        """Return the ranks with this tag, in the order in which they ended."""
        return sorted(
            (each for each in self.ranks if each.tag is tag),
            key=lambda each: (each.end.ended_ns, each.rank),
        )


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """Everything that is known about one generation after its last process was reaped.

    `leftovers` are the process groups that could not be killed, as a user finds them, and
    `leftover_hosts` their hosts. `mark` is how far the program got, `formed` whether all ranks had
    joined their group.
    """

    generation: int
    began_ns: int
    over_ns: int
    ends: tuple[RankEnd, ...]
    reports: Mapping[int, Report]
    stops: tuple[Stop, ...] = ()
    leftovers: tuple[str, ...] = ()
    leftover_hosts: tuple[str, ...] = ()
    mark: tuple[object, ...] = ()
    formed: bool = False
