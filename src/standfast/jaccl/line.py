"""One connection of the side channel: bytes out, bytes in, and how it ended. Never blocks."""

from __future__ import annotations

import socket

from standfast.rendezvous.channel import errno_name
from standfast.rendezvous.listen import text_of
from standfast.rendezvous.loop import READ, WRITE, Loop

READ_BYTES = 64 * 1024
# Nobody sends more than this before it has an answer.
UNREAD_BYTES_MAX = 1 << 20


class Line:
    """A connection, watched by the loop, which closes it unless `hand_over` was called."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._in = bytearray()
        self._out = bytearray()
        self.end: str | None = None
        """How it ended, or None while it goes on."""
        self.host: str = ""
        self.address: str = "an address that is gone"
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.adopt(sock)
        try:
            peer = sock.getpeername()
        except OSError as error:
            self._finish(f"was broken: {errno_name(error.errno)}")
            return
        self.host = text_of(peer)
        self.address = f"{self.host}:{peer[1]}"
        loop.watch(sock, READ, self._ready)

    @property
    def is_sent(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._out

    def has(self, count: int) -> bool:
        """Tell whether so many bytes have come."""
        return len(self._in) >= count

    def take(self, count: int) -> bytes:
        """Return the next bytes, which must have come."""
        taken = bytes(self._in[:count])
        del self._in[:count]
        return taken

    def look(self) -> None:
        """Read what lies there now, the end included, rather than in the loop's next turn."""
        if self.end is None:
            self._read()

    def send(self, data: bytes) -> None:
        """Send, now or when there is room."""
        self._out += data
        self._write()

    def close(self) -> None:
        """Close the connection."""
        if self.end is None:
            self._finish("closed here")

    def hand_over(self) -> int:
        """Return the descriptor, which is the caller's from here on."""
        self._loop.release(self._sock)
        self.end = "handed over"
        return self._sock.detach()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if events & READ and self.end is None:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(f"was broken: {errno_name(error.errno)}")
            return
        if not data:
            self._finish("was closed")
            return
        self._in += data
        if len(self._in) > UNREAD_BYTES_MAX:
            self._finish("carried more than JACCL ever sends")

    def _write(self) -> None:
        try:
            while self._out and self.end is None:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._finish(f"was broken: {errno_name(error.errno)}")
        if self.end is None:
            self._loop.watch(self._sock, READ | WRITE if self._out else READ, self._ready)

    def _finish(self, how: str) -> None:
        self.end = how
        self._loop.drop(self._sock)
