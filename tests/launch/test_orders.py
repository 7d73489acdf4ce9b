"""Frames between launcher and agent."""

from __future__ import annotations

import pytest

from standfast.launch.environment import Formation, Place
from standfast.launch.orders import (
    MAGIC,
    NOISE_BYTES_MAX,
    Broken,
    Frames,
    Order,
    Ping,
    Start,
    frame,
)

START = Start(
    formation=Formation("job", 2, 4, "k" * 64, port=5, host="fd00::1"),
    place=Place(3, 1, 2, 1, "10.0.0.1"),
    path="/bin/true",
    command=("true", "x"),
    environment={"A": "1"},
    cwd="/tmp",
    watch=False,
    kill_after_s=5.0,
)


def test_messages_arrive_as_they_were() -> None:
    """Whatever the pieces in which they come."""
    data = frame(START) + frame(Ping(7)) + frame(START)
    for step in (1, 3, len(data)):
        frames = Frames(Order)
        got = [m for i in range(0, len(data), step) for m in frames.feed(data[i : i + step])]
        assert got == [START, Ping(7), START]


def test_noise_before_the_first_frame() -> None:
    """What a login shell prints is skipped, but not without end."""
    frames = Frames(Order, magic=MAGIC)
    assert list(frames.feed(b"Welcome to host\n\x00\xff" + MAGIC[:5])) == []
    assert list(frames.feed(MAGIC[5:] + frame(Ping(1)))) == [Ping(1)]
    with pytest.raises(Broken, match="none of them an agent's"):
        list(Frames(Order, magic=MAGIC).feed(b"x" * (NOISE_BYTES_MAX + 1)))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\x01"])
def test_what_is_no_frame(data: bytes) -> None:
    """A length without measure, and a body that is no order, are refused."""
    with pytest.raises(Broken):
        list(Frames(Order).feed(data))
