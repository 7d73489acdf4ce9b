"""Who the ranks of a group are through all its generations, and who takes part in the next. Pure.

Ranks change from generation to generation; a process's **number** does not. The ranks of the first
generation are numbered by rank, newcomers by the next numbers that nobody has had. Ranks are in
the order of numbers, so survivors keep their old order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from standfast.endpoint import Endpoint
from standfast.errors import RendezvousError, StaleGroup
from standfast.rendezvous import admission
from standfast.rendezvous.protocol import AGAIN, Comer, Hello, Outcome, Refused, clipped

NEWCOMER = -1


@dataclass(frozen=True)
class Lineage:
    """A generation of a group, as one of its ranks knows it.

    group: the id of the group in all generations. numbers: of its ranks, by rank. me: this rank's.
    routes: where each is found, by number. hosts: by number. full_size: ranks when nobody is
    missing. attempted, top: the highest generation that was tried, the highest number given.
    """

    group: str
    generation: int
    numbers: tuple[int, ...]
    me: int
    routes: Mapping[int, tuple[Endpoint, ...]]
    hosts: Mapping[int, str]
    full_size: int
    attempted: int
    top: int

    def rank_of(self, number: int) -> int:
        """Return the rank that a number has in this generation, or -1."""
        return self.numbers.index(number) if number in self.numbers else NEWCOMER

    def named(self, numbers: Collection[int]) -> str:
        """Return "rank 1" or "ranks 1, 3" of this generation."""
        ranks = [self.rank_of(number) for number in sorted(numbers)]
        return f"rank{'s'[: len(ranks) != 1]} {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class Lost:
    """What the verdict says of others. dead: are no more; doubtful: may come, nobody waits for."""

    dead: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Wish:
    """When a group may form again.

    min_size: ranks, newcomers too; None: more than half of the ranks of the generation before.
    max_size: no more than so many; wait_s: for so long they are waited for.
    """

    min_size: int | None
    max_size: int
    wait_s: float

    def suffices(self, old_size: int, survivors: int, size: int) -> bool:
        """Tell whether these are enough."""
        if self.min_size is None:
            return 2 * survivors > old_size
        return size >= self.min_size

    def text(self, old_size: int) -> str:
        """Say how many are needed."""
        if self.min_size is None:
            return f"{old_size // 2 + 1} of the {old_size} ranks are needed (min_size)"
        return f"min_size={self.min_size}"


def lost_by(
    kind: str, rank: int | None, numbers: Sequence[int], hosts: Mapping[int, str], me: int
) -> Lost:
    """Return whom the verdict that ended a generation concerns.

    A rank that died is no more. One that stalled, or that the network has lost with all of its
    host, may come, but is not waited for. Who raised, left, or lost a link is asked as any other.
    """
    if rank is None or not 0 <= rank < len(numbers):
        return Lost()
    number = numbers[rank]
    if kind == "died":
        return Lost(dead=frozenset({number} - {me}))
    if kind == "stalled":
        return Lost(doubtful=frozenset({number}))
    if kind == "unreachable":
        mine = hosts.get(me)
        there = {n for n in numbers if hosts.get(n) == hosts.get(number) != mine}
        return Lost(doubtful=frozenset(there | {number}))
    return Lost()


def before(me: int, numbers: Collection[int], lost: Lost) -> list[int]:
    """Return who is to serve rather than this rank, the first first: lower, and not in doubt."""
    order = sorted(set(numbers) - lost.dead | {me}, key=lambda n: (n in lost.doubtful, n))
    return order[: order.index(me)]


def is_time(
    wish: Wish, *, old_size: int, survivors: int, newcomers: int, missing: int, elapsed_s: float
) -> bool:
    """Tell whether those who serve should go on with whom they have.

    Args:
        wish: what was asked for.
        old_size: ranks of the generation before.
        survivors: who has come of them, this rank too.
        newcomers: who has come besides.
        missing: survivors that are there, but have not come.
        elapsed_s: since the beginning.
    """
    size = survivors + min(newcomers, max(0, wish.max_size - survivors))
    if missing or not wish.suffices(old_size, survivors, size):
        return False
    return size >= wish.max_size or elapsed_s >= wish.wait_s


def outcome_of(
    lineage: Lineage, comers: Mapping[int, Comer], newcomers: Sequence[Comer], port: int
) -> Outcome:
    """Return the next generation, for the rank that serves.

    Args:
        lineage: what this rank knows.
        comers: the other survivors, by number.
        newcomers: in the order in which they came.
        port: where it listens.
    """
    known = [*comers.values(), *newcomers]
    top = max(lineage.top, *(comer.top for comer in known)) if known else lineage.top
    attempted = [lineage.attempted, lineage.generation]
    attempted += [max(c.attempted, c.hello.generation) for c in known]
    # Who serves is rank 0: before one that was in doubt, or late, and came after all.
    numbers = [lineage.me, *sorted(comers)] + [top + 1 + i for i in range(len(newcomers))]
    return Outcome(
        group=lineage.group,
        generation=max(attempted) + 1,
        rank=0,
        port=port,
        numbers=numbers,
        old_ranks=[lineage.rank_of(number) for number in numbers],
        full_size=lineage.full_size,
    )


def objection(comer: Comer, lineage: Lineage, ours: Hello) -> Refused | None:
    """Say why this comer does not belong to the group that forms again, or None."""
    hello = comer.hello
    who = f"a newcomer ({hello.host}, pid {hello.pid})"
    if comer.number != NEWCOMER:
        who = f"the process that was number {comer.number} ({hello.host}, pid {hello.pid})"
    other = admission.other_group(who, hello, ours)
    if other or (comer.number != NEWCOMER and comer.group != lineage.group):
        text = other or f"{who} belongs to group {comer.group}; this is group {lineage.group}"
        return Refused(RendezvousError.kind, clipped(text))
    if comer.number != NEWCOMER and comer.number not in lineage.numbers:
        return Refused(StaleGroup.kind, clipped(gone_on(lineage)))
    problem = admission.other_kind(who, hello, ours)
    return Refused("config", clipped(problem)) if problem else None


def gone_on(lineage: Lineage) -> str:
    """Say to a rank that is not in this generation that the group went on without it."""
    return (
        f"the group went on without this rank: its generation is {lineage.generation} now, "
        f"of {len(lineage.numbers)} ranks"
    )


def answer_at_work(
    comer: Comer, lineage: Lineage, ours: Hello, closed: Refused | None = None
) -> Refused:
    """Return what is said to those who come while the group is at work.

    closed: why newcomers cannot be taken in at all, if so.
    """
    text = f"the group is at work in generation {lineage.generation}"
    never = closed if comer.number == NEWCOMER else None
    return objection(comer, lineage, ours) or never or Refused(AGAIN, text)
