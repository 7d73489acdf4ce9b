"""The listening side of a conversation: a stranger gets a challenge, and 10 s for one frame.

Nothing that a stranger does, or leaves undone, takes more than that from anybody else.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence

from standfast.rendezvous import handshake
from standfast.rendezvous.channel import Channel, End, errno_name
from standfast.rendezvous.listen import text_of
from standfast.rendezvous.loop import READ, Loop, Timer
from standfast.rendezvous.protocol import (
    FRAME_BYTES_MAX,
    NO_ERRORS,
    Begin,
    Challenge,
    Malformed,
    Reader,
    Refused,
    frame,
)

log: logging.Logger = logging.getLogger("standfast")

ANSWER_S_MAX = 10.0
STRANGERS_MIN = 64
ACCEPTS_PER_TURN = 32
# Out of descriptors: leave the listener alone for a moment instead of spinning on it.
ACCEPT_PAUSE_S = 0.1

BEGIN: Reader[Begin] = Reader(Begin)


def strangers_max(size: int) -> int:
    """Return how many may be unproven at once; beyond that the oldest is dropped. Pure."""
    return max(STRANGERS_MIN, 2 * size)


class Stranger:
    """A connection that has not shown yet what it is."""

    def __init__(self, channel: Channel, nonce: bytes, address: str, timer: Timer) -> None:
        self.channel = channel
        self.nonce = nonce
        self.address = address
        self.timer = timer


class Door:
    """Calls `came(channel, begin, proof)` for each caller that proved itself; `proof` is our own.

    The callee answers it, or gives it to `refuse`.
    """

    def __init__(
        self,
        loop: Loop,
        listeners: Sequence[socket.socket],
        *,
        purpose: str,
        rank: int,
        size: int,
        secret: bytes | None,
        local_only: bool,
        came: Callable[[Channel, Begin, bytes], None],
    ) -> None:
        self._loop = loop
        self._listeners = listeners
        self._purpose = purpose
        self._rank = rank
        self._secret = secret
        self._local_only = local_only
        self._came = came
        self._strangers_max = strangers_max(size)
        # In the order in which they came.
        self._strangers: dict[Channel, Stranger] = {}
        self._open = False

    def open(self) -> None:
        """Begin to accept."""
        self._open = True
        for listener in self._listeners:
            self._watch(listener)

    def close(self) -> None:
        """Accept nobody any more, and part from those who have not proved themselves."""
        self._open = False
        for listener in self._listeners:
            self._loop.forget(listener)
        for stranger in list(self._strangers.values()):
            self._part(stranger)

    def refuse(self, channel: Channel, refusal: Refused) -> None:
        """Tell a caller why it cannot come in."""
        level = logging.INFO if refusal.kind in NO_ERRORS else logging.WARNING
        log.log(level, "refused a connection from %s: %s", peer_text(channel.sock), refusal.text)
        channel.send(frame(refusal))
        channel.finish()

    def _watch(self, listener: socket.socket) -> None:
        if self._open:
            self._loop.watch(listener, READ, lambda events: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept a connection: %s", errno_name(error.errno))
                self._loop.forget(listener)
                self._loop.later(ACCEPT_PAUSE_S, lambda: self._watch(listener))
                return
            self._greet(sock, text_of(address))

    def _greet(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        channel = Channel(self._loop, sock, frame_bytes_max=FRAME_BYTES_MAX)
        timer = self._loop.later(
            ANSWER_S_MAX, lambda: self._dismiss(stranger, f"no answer in {ANSWER_S_MAX:g} s")
        )
        stranger = Stranger(channel, handshake.nonce(), address, timer)
        self._strangers[channel] = stranger
        if len(self._strangers) > self._strangers_max:
            self._dismiss(next(iter(self._strangers.values())), "too many connections at once")
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            # macOS: it was reset before we looked.
            self._dismiss(stranger, errno_name(error.errno))
            return
        channel.on_frame = lambda payload: self._answered(stranger, payload)
        channel.on_end = lambda end: self._ended(stranger, end)
        challenge = Challenge(stranger.nonce, self._secret is not None, self._local_only)
        channel.send(frame(challenge))

    def _answered(self, stranger: Stranger, payload: bytes) -> None:
        try:
            begin = BEGIN.read(payload)
        except Malformed as error:
            self._dismiss(stranger, f"it sent {error}")
            return
        del self._strangers[stranger.channel]
        stranger.timer.cancel()
        objection = handshake.objection(
            begin,
            secret=self._secret,
            purpose=self._purpose,
            rank=self._rank,
            challenge_nonce=stranger.nonce,
        )
        if objection:
            self.refuse(stranger.channel, objection)
            return
        proof = handshake.prove(self._secret, handshake.LISTENS, stranger.nonce, begin)
        self._came(stranger.channel, begin, proof)

    def _ended(self, stranger: Stranger, end: End) -> None:
        self._dismiss(stranger, end.cause)

    def _dismiss(self, stranger: Stranger, why: str) -> None:
        log.info("dropped a connection from %s: %s", stranger.address, why)
        self._part(stranger)

    def _part(self, stranger: Stranger) -> None:
        self._strangers.pop(stranger.channel, None)
        stranger.timer.cancel()
        stranger.channel.close()


def peer_text(sock: socket.socket) -> str:
    """Return the address at the other end of a connection, or "?" if that is gone."""
    try:
        return text_of(sock.getpeername())
    except OSError:
        return "?"
