"""Whether, when and how large the group is formed again. Pure: the job's spec against its past."""

from __future__ import annotations

import enum
from collections.abc import Sequence

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


def is_stuck(marks: Sequence[Mark]) -> bool:
    """Whether the last generations got no further: they began where they end.

    Args:
        marks: how far each generation got, the oldest first.
    """
    last = marks[-STUCK_GENERATIONS - 1 :]
    return len(last) > STUCK_GENERATIONS and bool(last[0]) and len(set(last)) == 1
