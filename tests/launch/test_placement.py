"""Which rank runs where."""

from __future__ import annotations

import pytest

from standfast.launch.environment import Place
from standfast.launch.placement import Host, place_newcomer, place_ranks, slots_of


def test_hosts_are_filled_one_after_the_other() -> None:
    """Rank by rank, with numbers among the ranks of the same host; what is left has none."""
    placed = place_ranks(3, [Host("a", 2), Host("b", 2, "10.0.0.2"), Host("c")])
    assert placed == [
        ("a", Place(0, 0, 2, 0)),
        ("a", Place(1, 1, 2, 0)),
        ("b", Place(2, 0, 1, 1, "10.0.0.2")),
    ]


def test_a_host_twice_is_one_node() -> None:
    """MLX's host file names a host once per rank, and the rank is the position."""
    placed = place_ranks(4, [Host("a"), Host("b"), Host("a"), Host("b")])
    assert [(name, p.local_rank, p.local_size, p.node) for name, p in placed] == [
        ("a", 0, 2, 0),
        ("b", 0, 2, 1),
        ("a", 1, 2, 0),
        ("b", 1, 2, 1),
    ]


def test_too_many() -> None:
    """Ranks that have no room are an error, not a crowd."""
    assert slots_of([Host("a", 2), Host("b")]) == 3
    with pytest.raises(ValueError, match="4 ranks do not fit on 3 slots"):
        place_ranks(4, [Host("a", 2), Host("b")])


@pytest.mark.parametrize(
    ("used", "rather", "found"),
    [
        ({"a": [1], "b": [0]}, "a", ("a", Place(3, 0, 2, 0))),
        ({"a": [0, 1], "b": [0]}, "a", ("b", Place(3, 1, 2, 1, "10.0.0.2"))),
        ({"a": [0]}, "gone", ("a", Place(3, 1, 2, 0))),
        ({"a": [0, 1], "b": [0, 1]}, "a", None),
    ],
)
def test_a_newcomers_place(
    used: dict[str, list[int]], rather: str, found: tuple[str, Place] | None
) -> None:
    """Where the lost rank was if there is room, else on the first host that has some."""
    hosts = [Host("a", 2), Host("b", 2, "10.0.0.2")]
    assert place_newcomer(3, hosts, used, nodes=["a", "b"], rather=rather) == found
