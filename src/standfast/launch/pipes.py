"""Two descriptors of a peer process that must never block us: frames in, frames out."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable

from standfast.launch.orders import Broken, Frames, News, Order, frame

READ_BYTES = 1 << 18


class Pipes:
    """The launcher's ends towards an agent, or the agent's towards its launcher.

    `heard(message)` is called for each message, `lost(reason)` once, when no more can come.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        read_fd: int,
        write_fd: int,
        frames: Frames,
        heard: Callable[[object], None],
        lost: Callable[[str], None],
    ) -> None:
        self.open: bool = True
        self._selector = selector
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._frames = frames
        self._heard = heard
        self._lost = lost
        self._pending: deque[memoryview] = deque()
        self._writing = False
        for each in (read_fd, write_fd):
            os.set_blocking(each, False)
        selector.register(read_fd, selectors.EVENT_READ, self._read)

    def say(self, message: Order | News) -> None:
        """Send a message now, or as soon as there is room for it."""
        self.push(frame(message))

    def push(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self.open:
            self._pending.append(memoryview(data))
            self._write()

    @property
    def empty(self) -> bool:
        """Whether all was sent, or can never be."""
        return not self._pending

    def close(self) -> None:
        """Let go of both descriptors."""
        if not self.open:
            return
        self.open = False
        self._selector.unregister(self._read_fd)
        self._want_room(False)
        self._pending.clear()
        for each in (self._read_fd, self._write_fd):
            os.close(each)

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if not data:
            self._lose("the connection has ended")
            return
        try:
            for message in self._frames.feed(data):
                if not self.open:
                    return
                self._heard(message)
        except Broken as error:
            self._lose(f"what came is not an agent's: {error}")

    def _write(self) -> None:
        while self._pending:
            head = self._pending.popleft()
            try:
                written = os.write(self._write_fd, head)
            except BlockingIOError:
                self._pending.appendleft(head)
                break
            except OSError as error:
                self._lose(error.strerror or str(error))
                return
            if written < len(head):
                self._pending.appendleft(head[written:])
        self._want_room(bool(self._pending))

    def _want_room(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._selector.register(self._write_fd, selectors.EVENT_WRITE, self._write)
        elif self._writing and not wanted:
            self._selector.unregister(self._write_fd)
        self._writing = wanted

    def _lose(self, reason: str) -> None:
        self.close()
        self._lost(reason)
