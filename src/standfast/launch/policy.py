"""Whether, when and how large the group is formed again. Pure: the job's spec against its past."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
STUCK_GENERATIONS = 3
"""So many generations in a row that got no further than the one before end the job."""

Mark = tuple[object, ...]
"""How far a generation got: whatever changes when a program gets on. Empty if nothing tells."""


class Size(enum.Enum):
    """Answers of next_size that are no number."""

    WAIT = "wait for hosts"
    GIVE_UP = "too few"


def pause_s(failed_in_a_row: int) -> float:
    """Return how long to wait before the next generation.

    Args:
        failed_in_a_row: generations that ended since one had formed its group, that one not
            counted: a group that was formed makes it 0, and the next starts at once.
    """
    if failed_in_a_row <= 1:
        return 0.0
    return min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** (failed_in_a_row - 2))


def next_size(slots: int, ranks: int, min_ranks: int | None, *, waited: bool) -> int | Size:
    """Return how many ranks the next generation has.

    Args:
        slots: places for ranks that there are at the moment.
        ranks: as many as wanted.
        min_ranks: as few as will do; None: all of them.
        waited: whether --wait-refill is over.
    """
    if slots >= ranks:
        return ranks
    if not waited:
        return Size.WAIT
    return slots if min_ranks is not None and slots >= min_ranks else Size.GIVE_UP


@dataclass
class Budget:
    """What is left of --restarts, and what has become of those that were used.

    A restart is a generation of new processes, or newcomers for ranks that go on by themselves.

    Fields:
        limit: --restarts.
        used: how many.
    """

    limit: int
    used: int = 0
    _marks: list[Mark] = field(default_factory=list)
    _unformed: int = 0

    def lost(self, mark: Mark, *, formed: bool) -> None:
        """Note a loss: how far the program had got, and whether a group was formed before it."""
        self._marks.append(mark)
        self._unformed = 0 if formed else self._unformed + 1

    def spend(self) -> None:
        """Use a restart."""
        self.used += 1

    @property
    def left(self) -> bool:
        """Whether one can be used."""
        return self.used < self.limit

    @property
    def used_up(self) -> bool:
        """Whether there were any, and all are used."""
        return 0 < self.limit <= self.used

    @property
    def stuck(self) -> bool:
        """Whether the next one leads nowhere."""
        return is_stuck(self._marks)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next one."""
        return pause_s(self._unformed)


def is_stuck(marks: Sequence[Mark]) -> bool:
    """Whether the last generations got no further: they began where they end.

    Args:
        marks: how far each generation got, the oldest first.
    """
    last = marks[-STUCK_GENERATIONS - 1 :]
    return len(last) > STUCK_GENERATIONS and bool(last[0]) and len(set(last)) == 1
