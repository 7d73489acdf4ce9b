"""What a new agent can know of the processes that a lost one left."""

from __future__ import annotations

import pytest

from standfast.launch.agents import Left, what_is_left
from standfast.launch.orders import Hello, Home

BEFORE = Home("gpu-1", "boot-1", "pid:[1]")
TABLE = {
    "the same": (BEFORE, Left.ASK),
    "started anew": (Home("gpu-1", "boot-2", "pid:[1]"), Left.GONE),
    "another container": (Home("gpu-1", "boot-1", "pid:[2]"), Left.WAIT),
    "another machine": (Home("gpu-2", "boot-2", "pid:[1]"), Left.WAIT),
    "another name for the same": (Home("gpu-2", "boot-1", "pid:[1]"), Left.WAIT),
}


@pytest.mark.parametrize(("home", "left"), TABLE.values(), ids=TABLE)
def test_what_is_left(home: Home, left: Left) -> None:
    """Only where process ids mean what they meant can it look; else the lease must run out."""
    hello = Hello("1", 7, home.host, home.boot, home.space, "", "")
    assert hello.home == home
    assert what_is_left(BEFORE, hello) is left
