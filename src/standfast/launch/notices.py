"""The launcher's side of standfast/notices.py: reads the FIFO, writes the obituaries."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable

from standfast.notices import FIFO, obituary_name

READ_BYTES = 65536


class NoticeBoard:
    """Calls `tell(line)` for each notice that a rank of this host sends."""

    def __init__(
        self, selector: selectors.BaseSelector, directory: str, tell: Callable[[bytes], None]
    ) -> None:
        path = os.path.join(directory, FIFO)
        os.mkfifo(path, mode=0o600)
        # For writing, too: so it has no end when the last rank closes it.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selector
        self._tell = tell
        self._rest = b""
        selector.register(self._fd, selectors.EVENT_READ, self.read)

    def read(self) -> None:
        """Take what is there."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._tell(line)

    def close(self) -> None:
        """Stop reading."""
        self._selector.unregister(self._fd)
        os.close(self._fd)


def obituary(rank: int, host: str, status: int, how: str) -> str:
    """Return the text that the waiting ranks read; see standfast.notices.Obituaries. Pure."""
    import json  # only needed once a rank has ended early

    return json.dumps({"rank": rank, "host": host, "status": status, "how": how})


def write_obituary(directory: str, generation: int, text: str) -> None:
    """Put it where they look, whole or not at all."""
    path = os.path.join(directory, obituary_name(generation))
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
