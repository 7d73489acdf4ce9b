"""What a rank tells its launcher at once, and what the launcher tells ranks that still wait.

Both in the report directory: `notices` is a FIFO that the launcher, or its agent on this host,
reads; each notice is a line of JSON, short enough to be written whole. `lost-gen<generation>.json`
tells of a rank that ended before it had joined: nobody else could know. Without a launcher neither
is there, and nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from standfast.errors import PeerDied, PeerLeft, StandfastError

FIFO = "notices"
TEXT_MAX = 600
BEAT_EVERY_S = 1.0
LOOK_EVERY_S = 0.1


def obituary_name(generation: int) -> str:
    """Return the file's name."""
    return f"lost-gen{generation}.json"


def tell(directory: str | None, kind: str, rank: int, generation: int, **more: Any) -> None:
    """Send a notice; a launcher that is gone, or does not keep up, misses it."""
    if directory is None:
        return
    import json  # the launcher, which needs only the names above, starts sooner without

    line = json.dumps({"kind": kind, "rank": rank, "generation": generation, **more}) + "\n"
    with contextlib.suppress(OSError):
        fd = os.open(os.path.join(directory, FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


def tell_fault(directory: str | None, rank: int, generation: int, error: StandfastError) -> None:
    """Send the notice that this rank has learned of a fault."""
    tell(
        directory,
        "fault",
        rank,
        generation,
        error=type(error).__name__,
        lost=error.rank,
        host=error.host,
        reason=error.message[:TEXT_MAX],
    )


class Beats:
    """Sends what a rank's program beats, at most once a second."""

    def __init__(self, directory: str | None, rank: int, generation: int) -> None:
        self._to = (directory, "beat", rank, generation)
        self._next_s = 0.0 if directory is not None else float("inf")

    def beat(self, step: int) -> None:
        """Tell of a step, unless one was told a moment ago."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + BEAT_EVERY_S
            tell(*self._to, step=step)


class Obituaries:
    """Looks now and then whether the launcher has told of a rank that will not come."""

    def __init__(self, directory: str | None, rank: int, generation: int) -> None:
        self._rank = rank
        self._generation = generation
        self._path = (
            None if directory is None else os.path.join(directory, obituary_name(generation))
        )
        self._next_s = 0.0

    def check(self) -> None:
        """Raise PeerDied or PeerLeft if a rank ended before it had joined."""
        now_s = time.monotonic()
        if self._path is None or now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_EVERY_S
        import json

        try:
            with open(self._path, encoding="utf-8") as file:
                told = json.load(file)
        except (OSError, ValueError):
            return
        if told["rank"] != self._rank:
            raise self._error(told["rank"], told["host"] or None, told["status"], told["how"])

    def _error(self, lost: int, host: str | None, status: int, how: str) -> StandfastError:
        kind = PeerLeft if status == 0 else PeerDied
        where = "" if host is None else f" on {host}"
        return kind(
            f"rank {lost}{where} ended before it joined the group: {how}",
            hint="its own output and exit status say why; then form the group again",
            rank=lost,
            host=host,
            cause=how,
            evidence=("the launcher has reaped it",),
            here=self._rank,
            generation=self._generation,
        )
