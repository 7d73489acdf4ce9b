"""Parting in failure: telling others why, and cleaning up behind a rank that died."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from standfast.rendezvous.channel import Channel
from standfast.rendezvous.formation import Segments
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.protocol import Failed, frame

# How long the others may take to read it; those who are alive take a millisecond.
PART_S_MAX = 0.5
# A dead process's connections end a little before its pid does.
SWEEP_S_MAX = 1.0
SWEEP_AGAIN_S = 0.01


def announce(
    channels: Collection[Channel],
    failed: Failed,
    heard: Callable[[bytes], None] | None = None,
) -> None:
    """Send a failure over all channels, in a loop that is calm; `heard` gets what still comes."""
    encoded = frame(failed)
    for channel in channels:
        channel.unwatched()
        channel.send(encoded)
        channel.finish(heard)


def part(loop: Loop, channels: Collection[Channel]) -> None:
    """Wait a moment until the others have read it, and closed their ends."""
    until = time.monotonic() + PART_S_MAX
    while not all(channel.closed for channel in channels) and time.monotonic() < until:
        loop.turn(until)


def sweep(loop: Loop, segments: Segments, pid: int | None) -> None:
    """Remove segments that a dead rank of this host made and told nobody of, once it is gone."""
    until = time.monotonic() + SWEEP_S_MAX
    while pid is not None and _exists(pid) and time.monotonic() < until:
        loop.turn(time.monotonic() + SWEEP_AGAIN_S)
    segments.shm_sweep()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
