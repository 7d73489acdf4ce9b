"""The launcher's stdin on its way to one rank, or to all: `--stdin 0`, `--stdin all`.

No more is read than every taker has room for, so a rank that does not read holds up the others'
input, and memory is bounded. What was read is not read again: after a restart it goes on.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from standfast.launch.output import pollable

READ_BYTES = 65536


class Taker(Protocol):
    """A rank's stdin, here or elsewhere."""

    @property
    def full(self) -> bool:
        """Whether it can take no more for now."""

    def feed(self, data: bytes) -> None:
        """Pass this on; nothing is the end."""

    def close(self) -> None:
        """The rank is gone: drop what it did not take."""


class RankStdin:
    """The writing end of a rank's stdin. `took(bytes)` is called for what the pipe has taken."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        fd: int,
        took: Callable[[int], None] = lambda count: None,
    ) -> None:
        os.set_blocking(fd, False)
        self._selector = selector
        self._fd: int | None = fd
        self._took = took
        self._pending: deque[memoryview] = deque()
        self._ending = False
        self._registered = False

    @property
    def full(self) -> bool:
        """Whether it can take no more for now."""
        return bool(self._pending)

    def feed(self, data: bytes) -> None:
        """Write it now, or as soon as the rank reads; nothing is the end."""
        if data:
            self._pending.append(memoryview(data))
        else:
            self._ending = True
        self._write()

    def close(self) -> None:
        """Drop what was not taken."""
        if self._fd is None:
            return
        self._want_room(False)
        os.close(self._fd)
        self._fd = None
        for piece in self._pending:
            self._took(len(piece))
        self._pending.clear()

    def _write(self) -> None:
        while self._pending:
            head = self._pending.popleft()
            if self._fd is None:
                self._took(len(head))
                continue
            try:
                written = os.write(self._fd, head)
            except BlockingIOError:
                self._pending.appendleft(head)
                break
            except OSError:  # it does not want it: that is its own matter
                self._pending.appendleft(head)
                self.close()
                return
            self._took(written)
            if written < len(head):
                self._pending.appendleft(head[written:])
        if self._ending and not self._pending:
            self.close()
        else:
            self._want_room(bool(self._pending))

    def _want_room(self, wanted: bool) -> None:
        if self._fd is not None and wanted != self._registered:
            if wanted:
                self._selector.register(self._fd, selectors.EVENT_WRITE, self._write)
            else:
                self._selector.unregister(self._fd)
            self._registered = wanted


@contextlib.contextmanager
def rank_stdin(
    selector: selectors.BaseSelector,
    *,
    wanted: bool,
    took: Callable[[int], None] = lambda count: None,
) -> Iterator[tuple[int, RankStdin | None]]:
    """Yield what a rank is started with as its stdin, and our end of it, if it gets one."""
    if not wanted:
        yield subprocess.DEVNULL, None
        return
    read_fd, write_fd = os.pipe()
    taker = RankStdin(selector, write_fd, took)
    try:
        yield read_fd, taker
    except BaseException:
        taker.close()
        raise
    finally:
        os.close(read_fd)


class Stdin:
    """Descriptor 0, and those ranks of the current generation that get it."""

    def __init__(self, selector: selectors.BaseSelector, wanted: str, fd: int = 0) -> None:
        """`wanted`: "none", "0" or "all"."""
        self._selector = selector
        self._wanted = wanted
        self._fd = fd
        self._ended = wanted == "none"
        self._pollable = not self._ended and pollable(fd)
        self._takers: list[Taker] = []
        self._registered = False

    def goes_to(self, rank: int) -> bool:
        """Whether this rank gets it."""
        return self._wanted == "all" or (self._wanted == "0" and rank == 0)

    def add(self, taker: Taker) -> None:
        """Take a rank in; what has ended has ended for it as well."""
        self._takers.append(taker)
        if self._ended:
            taker.feed(b"")

    def settle(self) -> None:
        """Read if there is room."""
        if not self._pollable:
            while self._has_room():
                self._read()
        wanted = self._pollable and self._has_room()
        if wanted != self._registered:
            if wanted:
                self._selector.register(self._fd, selectors.EVENT_READ, self._read)
            else:
                self._selector.unregister(self._fd)
            self._registered = wanted

    def over(self) -> None:
        """The generation is over."""
        for taker in self._takers:
            taker.close()
        self._takers.clear()
        self.settle()

    def _has_room(self) -> bool:
        return not self._ended and bool(self._takers) and not any(t.full for t in self._takers)

    def _read(self) -> None:
        data = b""
        with contextlib.suppress(OSError):  # a terminal that is gone has ended
            data = os.read(self._fd, READ_BYTES)
        self._ended = not data
        for taker in self._takers:
            taker.feed(data)
