"""Frames over one non-blocking stream socket, watched by the loop. Both ends of every connection.

It reads exactly the frames of rendezvous: the byte after the last one belongs to the native core.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import NamedTuple

from standfast.rendezvous.loop import READ, WRITE, Loop
from standfast.rendezvous.protocol import LENGTH, MAGIC, OPENING

# Frames read from one connection before the others get their turn.
FRAMES_PER_TURN = 16
DISCARD_BYTES = 64 * 1024
# How long a connection that has nothing more to say stays for the other side to read it.
LINGER_S = 1.0

CLOSED = "closed"
FOREIGN = "foreign"
OTHER_VERSION = "other version"


class End(NamedTuple):
    """Why a connection carries no more frames: its kind, and what was seen."""

    kind: str
    cause: str


class Ended(Exception):
    """Carries an End out of the reading functions."""

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(cause)
        self.end: End = End(kind, cause)


def errno_name(code: int | None) -> str:
    """Return an errno's name, e.g. ECONNRESET."""
    return errno.errorcode.get(code, f"errno {code}") if code else "an error without a number"


def check_opening(first: bytes) -> None:
    """Judge the first bytes of a connection, as far as they have come.

    Raises:
        Ended: they do not open our protocol, or open another version of it.
    """
    if first[: len(MAGIC)] != MAGIC[: len(first)]:
        raise Ended(FOREIGN, f"it is not standfast: it sent {first!r}")
    if len(first) >= len(OPENING) and first[: len(OPENING)] != OPENING:
        theirs, ours = first[len(OPENING) - 1], OPENING[-1]
        raise Ended(OTHER_VERSION, f"it speaks version {theirs} of the protocol, this rank {ours}")


class Channel:
    """Calls `on_frame(payload)` for each frame, `on_end(End)` once when there will be no more."""

    def __init__(self, loop: Loop, sock: socket.socket, *, frame_bytes_max: int) -> None:
        self.on_frame: Callable[[bytes], None] = lambda payload: None
        self.on_end: Callable[[End], None] = lambda end: None
        self.frame_bytes_max = frame_bytes_max
        self.sock = sock
        self._loop = loop
        self._out = bytearray(OPENING)
        self._in = bytearray()
        # The first read takes the opening and the first length in one.
        self._want = len(OPENING) + LENGTH.size
        self._opened = False
        self._in_header = True
        self._reading = True
        self._discarding = False
        self._watched = 0
        self.closed: bool = False
        self._after_flush: Callable[[], None] | None = None
        loop.adopt(sock)

    def start(self) -> None:
        """Begin to read."""
        self._rewatch()

    def send(self, frame: bytes, then: Callable[[], None] | None = None) -> None:
        """Send a frame (behind the opening bytes, if it is the first); `then()` when it has gone.

        A broken connection is not an error here: reading tells of it.
        """
        if self.closed:
            return
        self._out += frame
        self._after_flush = then
        self._flush()

    def unwatched(self) -> None:
        """The loop watches nothing any more (Loop.calm); the next send or finish begins anew."""
        self._watched = 0

    def flushed(self) -> bool:
        """Tell whether everything has been handed to the kernel."""
        return not self._out

    def hold(self) -> None:
        """Read no more: what comes now is not for rendezvous."""
        self._reading = False
        self._rewatch()

    def finish(self, heard: Callable[[bytes], None] | None = None) -> None:
        """Send what is left, end our direction, and close when the other side has ended its own.

        Frames that still come are given to `heard`, or not looked at. Closing at once could reset
        the connection, and a reset could overtake the last frame.
        """
        if self.closed:
            return
        self.on_end = lambda end: self.close()
        self._discarding = heard is None
        self.on_frame = heard or self.on_frame
        self._reading = True
        self._after_flush = self._end_output
        self._loop.later(LINGER_S, self.close)
        self._flush()

    def close(self) -> None:
        """Close the connection; nothing is called any more."""
        self.closed = True
        self._reading = False
        self._watched = 0
        self._out.clear()
        self._after_flush = None
        self._loop.drop(self.sock)

    def detach(self) -> int:
        """Give the descriptor away, as it is: non-blocking, close-on-exec, nothing read too far."""
        self.closed = True
        self._reading = False
        self._watched = 0
        self._loop.release(self.sock)
        return self.sock.detach()

    def read_one(self) -> bytes | None:
        """Return one more frame if it has already come; for cleaning up."""
        try:
            return self._next_frame()
        except (Ended, OSError):
            return None

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & READ and self._reading:
            self._read()

    def _read(self) -> None:
        try:
            for _ in range(FRAMES_PER_TURN):
                if self._discarding:
                    self._discard()
                    return
                frame = self._next_frame()
                if frame is None:
                    return
                self.on_frame(frame)
                if not self._reading:
                    return
        except Ended as ended:
            self.hold()
            self.on_end(ended.end)

    def _next_frame(self) -> bytes | None:
        """Return a whole frame, None if it has not come yet.

        Raises:
            Ended: it never will.
        """
        while len(self._in) < self._want:
            some = self._receive(self._want - len(self._in))
            if some is None:
                return None
            self._in += some
            if self._in_header:
                self._look_at_header()
        payload = bytes(self._in)
        self._in.clear()
        self._in_header = True
        self._want = LENGTH.size
        return payload

    def _discard(self) -> None:
        """Read on to the other side's end, for its sake only."""
        while self._receive(DISCARD_BYTES):
            pass

    def _receive(self, count: int) -> bytes | None:
        """Return up to `count` bytes, None if there are none yet."""
        try:
            some = self.sock.recv(count)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise Ended(CLOSED, f"connection lost: {errno_name(error.errno)}") from error
        if not some:
            raise Ended(CLOSED, "connection closed")
        return some

    def _look_at_header(self) -> None:
        """Check what has come of opening and length; when all has, go on to the payload."""
        if not self._opened:
            check_opening(bytes(self._in))
        if len(self._in) < self._want:
            return
        (length,) = LENGTH.unpack(self._in[-LENGTH.size :])
        if not 0 < length <= self.frame_bytes_max:
            raise Ended(FOREIGN, f"it announced a frame of {length} bytes")
        self._opened = True
        self._in.clear()
        self._in_header = False
        self._want = length

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self.sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._out.clear()
                break
            del self._out[:sent]
        self._rewatch()
        if not self._out and self._after_flush:
            then, self._after_flush = self._after_flush, None
            then()

    def _rewatch(self) -> None:
        if self.closed:
            return
        events = (READ if self._reading else 0) | (WRITE if self._out else 0)
        if events == self._watched:
            return
        self._watched = events
        if events:
            self._loop.watch(self.sock, events, self._ready)
        else:
            self._loop.forget(self.sock)

    def _end_output(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
