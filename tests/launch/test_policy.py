"""Whether, when and how large the group is formed again."""

from __future__ import annotations

import pytest

from standfast.launch.policy import Budget, Size, is_stuck, next_size, pause_s


def test_pauses_grow_until_a_group_was_formed() -> None:
    """The first two attempts are immediate, later ones wait longer and longer, up to a limit."""
    assert [pause_s(failed) for failed in range(6)] == [0.0, 0.0, 0.5, 1.0, 2.0, 4.0]
    assert pause_s(50) == 30.0


@pytest.mark.parametrize(
    ("slots", "min_ranks", "waited", "size"),
    [
        (4, None, False, 4),
        (6, None, False, 4),
        (3, None, False, Size.WAIT),
        (3, None, True, Size.GIVE_UP),
        (3, 2, False, Size.WAIT),
        (3, 2, True, 3),
        (3, 3, True, 3),
        (2, 3, True, Size.GIVE_UP),
        (0, 1, True, Size.GIVE_UP),
    ],
)
def test_next_size(slots: int, min_ranks: int | None, waited: bool, size: int | Size) -> None:
    """All ranks if there is room, fewer only when waiting is over, and never below the least."""
    assert next_size(slots, 4, min_ranks, waited=waited) == size


@pytest.mark.parametrize(
    ("marks", "stuck"),
    [
        ([], False),
        ([(1,)] * 3, False),
        ([(1,)] * 4, True),
        ([(0,), *[(1,)] * 4], True),
        ([(1,), (1,), (1,), (2,)], False),
        ([(2,), (1,), (1,), (1,)], False),
        ([()] * 9, False),
    ],
)
def test_is_stuck(marks: list[tuple[object, ...]], stuck: bool) -> None:
    """Three generations that got no further than the one before; nothing known proves nothing."""
    assert is_stuck(marks) is stuck


def test_a_budget_is_of_generations_and_of_newcomers() -> None:
    """Each restart is used once; pauses begin where no group was formed; no progress ends it."""
    budget = Budget(9)
    for formed, pause in ((True, 0.0), (False, 0.0), (False, 0.5), (True, 0.0)):
        assert budget.left
        budget.lost((1,), formed=formed)
        assert budget.pause_s == pause
        budget.spend()
    assert (budget.used, budget.used_up, budget.stuck) == (4, False, True)
    budget.lost((2,), formed=True)
    assert not budget.stuck


def test_a_budget_that_was_never_given_is_not_used_up() -> None:
    """Nobody asked for restarts: the status is the rank's own, not 75."""
    assert not Budget(0).left
    assert not Budget(0).used_up
    budget = Budget(1)
    budget.spend()
    assert budget.used_up
