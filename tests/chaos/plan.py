"""What will be done to a job: who is hit, by which signal, at which moment. Pure, and seeded."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from standfast import exits


class Kind(StrEnum):
    """How the job runs."""

    LOCAL = "local"
    HOSTS = "hosts"
    """Over agents, some places kept free."""
    REFORMING = "reforming"
    """Survivors form the group again in process, as long as two are left."""


class Moment(StrEnum):
    """When the blow falls: some time after this."""

    START = "start"
    """A generation's first process was started; for the first, the launcher."""
    RUN = "run"
    """All ranks have joined."""
    AGAIN = "again"
    """A blow before has ended something: the group is being formed again."""
    END = "end"
    """Ranks have done their work, and leave."""


class Victim(StrEnum):
    """Which of the job's processes."""

    RANK = "rank"
    FIRST = "rank 0"
    AGENT = "agent"
    GUARDIAN = "guardian"
    SENTINEL = "sentinel"
    LAUNCHER = "launcher"


SPREAD_S = {Moment.START: 0.8, Moment.RUN: 0.2, Moment.AGAIN: 0.6, Moment.END: 0.1}
"""How long after its moment a blow may fall."""
WEIGHTS = {
    Victim.RANK: 8,
    Victim.FIRST: 4,
    Victim.AGENT: 3,
    Victim.GUARDIAN: 1,
    Victim.SENTINEL: 1,
    Victim.LAUNCHER: 1,
}
SIGNALS = {signal.SIGKILL: 4, signal.SIGTERM: 1, signal.SIGSTOP: 1}
FROZEN_S = 3.0
"""The longest that a process is stopped: beyond the silence limit of these jobs."""
BLOWS_MAX = 8
SIZES = {Kind.LOCAL: 3, Kind.HOSTS: 3, Kind.REFORMING: 5}


@dataclass(frozen=True)
class Blow:
    """One hit, while the launcher lives."""

    moment: Moment
    delay_s: float
    victim: Victim
    signal: signal.Signals
    frozen_s: float
    """After SIGSTOP: when SIGCONT follows."""
    lot: float
    """In [0, 1): chooses among several victims."""


@dataclass(frozen=True)
class Job:
    """One `standfast run`, and what will be done to it."""

    number: int
    kind: Kind
    blows: tuple[Blow, ...]

    @property
    def size(self) -> int:
        """How many ranks it has at first."""
        return SIZES[self.kind]


def job_of(seed: int, number: int, blows_left: int) -> Job:
    """Return a job of a seeded storm that has so many blows left; the same for the same numbers."""
    chance = random.Random(f"{seed} {number}")
    kind = list(Kind)[number % len(Kind)]
    count = min(blows_left, chance.randint(3, BLOWS_MAX))
    blows: list[Blow] = []
    for place in range(count):
        blows.append(_blow(chance, _moment(chance, blows, last=place == count - 1)))
    return Job(number, kind, tuple(blows))


def _moment(chance: random.Random, before: list[Blow], *, last: bool) -> Moment:
    if last and chance.random() < 0.5:
        return Moment.END
    if not before:
        return chance.choice([Moment.START, Moment.RUN])
    # A group that is never formed is tried at longer and longer intervals: it is formed at times.
    formed = any(each.moment is Moment.RUN for each in before[-2:])
    return chance.choice([Moment.START, Moment.RUN, Moment.AGAIN]) if formed else Moment.RUN


def _blow(chance: random.Random, moment: Moment) -> Blow:
    return Blow(
        moment=moment,
        delay_s=chance.uniform(0.0, SPREAD_S[moment]),
        victim=chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0],
        signal=chance.choices(list(SIGNALS), list(SIGNALS.values()))[0],
        frozen_s=chance.uniform(0.0, FROZEN_S),
        lot=chance.random(),
    )


def chosen(blow: Blow, living: Mapping[Victim, list[int]]) -> tuple[Victim, int] | None:
    """Return whom the blow hits among those that live, or None if nobody does.

    Where there is no such victim at this moment, a rank is hit; where there is no rank, whoever
    there is.
    """
    ranks = living.get(Victim.RANK, [])
    for victim in (blow.victim, Victim.RANK, *WEIGHTS):
        found = ranks[:1] if victim is Victim.FIRST else living.get(victim, [])
        if found:
            return victim, found[int(blow.lot * len(found))]
    return None


def allowed_statuses(struck: set[tuple[Victim, signal.Signals]]) -> frozenset[int]:
    """Return how a launcher may end, by what has hit its job. Negative: by that signal.

    It has more restarts than there are blows, so whatever hits others ends well.
    """
    allowed = {0}
    if (Victim.LAUNCHER, signal.SIGKILL) in struck:
        allowed.add(-signal.SIGKILL)
    if (Victim.LAUNCHER, signal.SIGTERM) in struck:
        # By the signal itself where it came before there was anything to end; and with the status
        # of a rank that had failed before, which stays the cause.
        allowed |= {-signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGKILL, exits.RETRY}
    return frozenset(allowed)


def may_stay(*, killed: bool, unguarded: bool, empty: bool) -> bool:
    """Whether a directory may be left of a launcher or agent.

    Only of one that was killed, and has no guardian that could remove it: that was killed as well,
    or was not there yet, when the directory is still empty.
    """
    return killed and (unguarded or empty)
