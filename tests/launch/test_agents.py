"""What the launcher makes of agents that come, and come again."""

from __future__ import annotations

import pytest

from standfast.launch.agents import Left, knowledge
from standfast.launch.orders import Hello


def hello(boot: str, name: str) -> Hello:
    """Return the greeting of an agent."""
    return Hello(version="1", pid=7, name=name, boot=boot, address="", launcher="")


@pytest.mark.parametrize(
    ("boot", "name", "expected"),
    [
        ("a pid:[1]", "host", Left.ASK),
        ("b pid:[1]", "host", Left.GONE),  # it was started again
        ("b pid:[1]", "other", Left.WAIT),  # Ray gave the place on another machine
        ("a pid:[2]", "host", Left.WAIT),  # in another container of the same machine
    ],
)
def test_what_is_left_of_a_lost_agent(boot: str, name: str, expected: Left) -> None:
    """Only who sees the same processes can look; only the same host, started anew, has none."""
    assert knowledge("a pid:[1]", "host", hello(boot, name)) is expected
