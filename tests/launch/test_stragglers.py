"""Which ranks need not be waited for."""

from __future__ import annotations

import pytest

from standfast.launch.stragglers import hopeless


@pytest.mark.parametrize(
    ("running", "ended", "named", "expected"),
    [
        ([1], [0, 2], [[1]], True),
        ([1], [0, 2], [[1], [1]], True),
        ([1, 2], [0], [[1], [2]], True),
        ([1, 2], [0], [[1]], False),
        ([1], [0, 2], [], False),
        ([], [0, 1, 2], [[1]], False),
        ([0, 1], [], [[1]], False),
    ],
)
def test_hopeless(
    running: list[int], ended: list[int], named: list[list[int]], expected: bool
) -> None:
    """Only when somebody has ended, and all who run were given up by those who did."""
    assert hopeless(running, ended, named) is expected
