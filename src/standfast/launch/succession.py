"""Newcomers in the places of lost ranks, while the others form their group again in process.

Called by generation.py on each turn. It starts nobody before the last process that had the rank is
gone with all of its group, and nobody at all unless the others wait for newcomers at that moment.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from standfast.launch.clock import now_ns
from standfast.launch.crew import Crew, Member
from standfast.launch.environment import Newcomers
from standfast.launch.ledger import Ledger
from standfast.launch.output import Output
from standfast.launch.policy import Budget, Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOK_NS = 100_000_000
"""How soon to look again for a place that is not free yet."""
FINAL = frozenset({0, 2, 69, 76, 78})
"""Whoever ended so is not started again: it was done, would only end so again, or has given up on
the group (69), as the others are about to."""


class Succession:
    """Who follows whom in one generation."""

    def __init__(
        self,
        members: dict[int, Member],
        crew: Crew,
        ledger: Ledger,
        output: Output,
        budget: Budget,
        mark: Callable[[], Mark],
        wait_refill_s: float,
    ) -> None:
        """`mark`: how far the program has got."""
        self._members = members
        self._crew = crew
        self._ledger = ledger
        self._output = output
        self._budget = budget
        self._mark = mark
        self._wait_refill_ns = int(wait_refill_s * 1e9)
        self._vacant: set[int] = set()
        self._counted: set[int] = set()
        self._due_ns: int | None = None
        self._waited_for = False
        self.former: list[Member] = []
        """Those whose ranks others have now: all gone, but their output may not be."""

    def lost(self, ranks: Collection[int]) -> None:
        """The others go on without these: fill their places, as far as that is of any use."""
        ends = {rank: self._members[rank].end(0) for rank in ranks}
        gone = sorted(rank for rank, end in ends.items() if end.shell_status not in FINAL)
        if not gone:
            return
        self._budget.lost(self._mark(), formed=self._ledger.formed)
        self._vacant |= set(gone)
        self._see_whether_it_is_of_use()

    def _see_whether_it_is_of_use(self) -> None:
        """Give up the places for which there is no restart, or none that leads anywhere."""
        uncounted = sorted(self._vacant - self._counted)
        if uncounted and (self._budget.stuck or not self._budget.left):
            why = "no restart is left" if not self._budget.left else "the last ones led nowhere"
            self._output.say([f"standfast: {_named(uncounted)} not started again: {why}"])
            self._vacant -= set(uncounted)

    def due_ns(self) -> int | None:
        """Return when attend() is to be called next, whatever happens."""
        if not self._vacant or not self._waited_for:
            return None  # a notice tells when survivors wait
        return max(self._due_ns or 0, now_ns() + LOOK_NS)

    def forsake(self, running: Collection[int]) -> None:
        """End those that all others go on without, although they run: frozen, or cut off."""
        for rank in self._ledger.forsaken(running):
            if self._members[rank].killed_ns is None:
                self._output.say(
                    [f"standfast: the others go on without rank {rank}, which still runs: SIGKILL"]
                )
                self._members[rank].tell(signal.SIGKILL)

    def attend(self, running: Collection[int]) -> list[int]:
        """Start whoever is due; return the ranks that have new processes."""
        self._waited_for = self._ledger.waits(running)
        if not self._vacant or not self._waited_for:
            return []
        self._see_whether_it_is_of_use()
        if not self._vacant <= self._counted:
            self._announce()
        if self._due_ns is None or now_ns() < self._due_ns:
            return []
        join = ",".join(filter(None, (self._ledger.addresses.get(rank) for rank in running)))
        number = self._ledger.group_generation + 1
        filled: dict[int, Member] = {}
        for rank in sorted(self._vacant):
            if self._members[rank].gone and self._crew.may_follow(rank):
                member = self._start(rank, Newcomers(number, join))
                if member is not None:
                    filled[rank] = member
        if filled:
            self._take_over(number, filled)
        return sorted(filled)

    def _announce(self) -> None:
        """Use a restart for those that it is not used for yet."""
        ranks = sorted(self._vacant - self._counted)
        self._counted |= self._vacant
        pause_s = self._budget.pause_s
        self._budget.spend()
        self._due_ns = now_ns() + int(pause_s * 1e9)
        used, limit = self._budget.used, self._budget.limit
        pause = f" in {pause_s:g} s" if pause_s else ""
        self._output.say(
            [f"standfast: starting {_named(ranks)} again{pause} (restart {used} of {limit})"]
        )
        number = self._ledger.group_generation + 1
        self._ledger.restarting(number, used, limit, pause_s, ranks)

    def _start(self, rank: int, newcomers: Newcomers) -> Member | None:
        """Start one; give it up where that is impossible, or there was no room for too long."""
        why = "there is no room"
        try:
            member = self._crew.newcomer(newcomers, rank, self._members[rank])
        except OSError as error:
            member, why = None, error.strerror or str(error)
        assert self._due_ns is not None
        waiting = why == "there is no room" and now_ns() < self._due_ns + self._wait_refill_ns
        if member is None and not waiting:
            self._vacant.discard(rank)
            self._counted.discard(rank)
            self._output.say([f"standfast: {_named([rank])} not started again: {why}"])
        return member

    def _take_over(self, number: int, filled: Mapping[int, Member]) -> None:
        for rank, member in filled.items():
            self.former.append(self._members[rank])
            self._members[rank] = member
        self._vacant -= filled.keys()
        self._counted -= filled.keys()
        self._ledger.replaced(number, {r: (each.host, each.pid) for r, each in filled.items()})


def _named(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"
