"""The connecting side of a conversation: dial, answer the challenge, check the other's proof.

It dials again if the connection breaks before the reply. Used for the control link and each wire.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from standfast.endpoint import Endpoint
from standfast.rendezvous import handshake
from standfast.rendezvous.channel import Channel, End
from standfast.rendezvous.dial import Dial
from standfast.rendezvous.handshake import named
from standfast.rendezvous.loop import Loop, Timer
from standfast.rendezvous.protocol import (
    FRAME_BYTES_MAX,
    Begin,
    Challenge,
    Malformed,
    Reader,
    Refused,
    frame,
)

# How long a connected peer may say nothing. It may be a listener whose owner has not started yet.
SILENCE_S_MAX = 15.0

CHALLENGE: Reader[Challenge | Refused] = Reader(Challenge | Refused)


class Reply(Protocol):
    """The listening side's first frame after our answer: Joined or Offer."""

    @property
    def proof(self) -> bytes:
        """The listening side's proof."""


R = TypeVar("R", bound=Reply)


@dataclass(frozen=True)
class Caller(Generic[R]):
    """What a call is about.

    body(challenge, channel) makes the body of our answer; answered(channel, reply) takes over when
    the other side has proved itself; refused(refusal, address) and ended(end, address) say whether
    to try on (by returning) or to give up (by raising).
    """

    purpose: str
    rank: int
    target: int
    secret: bytes | None
    reader: Reader[R | Refused]
    body: Callable[[Challenge, Channel], bytes]
    answered: Callable[[Channel, R], None]
    refused: Callable[[Refused, str], None]
    ended: Callable[[End, str], None]


class Call(Generic[R]):
    """One call at a time to a rank, until it has answered."""

    def __init__(
        self,
        loop: Loop,
        endpoints: Sequence[Endpoint],
        caller: Caller[R],
        nobody: Callable[[], None] | None = None,
    ) -> None:
        """`nobody()`: see Dial."""
        self.dial: Dial = Dial(loop, endpoints, self._connected, nobody)
        self.channel: Channel | None = None
        self.address: str = ""
        self._loop = loop
        self._caller = caller
        self._patience: Timer | None = None
        self._challenge: Challenge | None = None
        self._begin: Begin | None = None
        self._stopped = False
        # The other side has proved itself, and the connection has not ended since.
        self.is_answered: bool = False

    def start(self) -> None:
        """Begin to dial."""
        self.dial.start()

    def again(self, why: str) -> None:
        """Dial again, e.g. because the connection ended after the answer."""
        self._again(why)

    def take(self) -> int:
        """Give the answered connection away; nothing is called any more."""
        assert self.channel is not None
        channel, self.channel = self.channel, None
        self._stopped = True
        return channel.detach()

    def stop(self) -> None:
        """Give up: close the connection, dial no more."""
        self._stopped = True
        if self._patience:
            self._patience.cancel()
        if self.channel:
            self.channel.close()
            self.channel = None
        self.dial.stop()

    def _connected(self, sock: socket.socket, address: str) -> None:
        self.address = address
        channel = self.channel = Channel(self._loop, sock, frame_bytes_max=FRAME_BYTES_MAX)
        channel.on_frame = self._guarded(self._challenged)
        channel.on_end = self._ended
        silence = f"connected, but no word in {SILENCE_S_MAX:g} s"
        self._patience = self._loop.later(SILENCE_S_MAX, lambda: self._again(silence))
        channel.start()

    def _guarded(self, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Treat a frame that is none of ours as the end of the connection."""

        def guarded(payload: bytes) -> None:
            try:
                take(payload)
            except Malformed as error:
                self._ended(End("foreign", f"it sent {error}"))

        return guarded

    def _challenged(self, payload: bytes) -> None:
        assert self.channel is not None
        caller, challenge = self._caller, CHALLENGE.read(payload)
        if isinstance(challenge, Refused):
            self._refused(challenge)
            return
        if caller.secret is not None and not challenge.keyed:
            who, whom = (named(rank, caller.purpose) for rank in (caller.rank, caller.target))
            text = f"{who} has a key and {whom} has none"
            self._refused(Refused("config", text, handshake.KEY_HINT))
            return
        self._challenge = challenge
        self._begin = handshake.answer(
            challenge,
            secret=caller.secret,
            purpose=caller.purpose,
            rank=caller.rank,
            target=caller.target,
            body=caller.body(challenge, self.channel),
        )
        self.channel.on_frame = self._guarded(self._replied)
        self.channel.send(frame(self._begin))

    def _replied(self, payload: bytes) -> None:
        assert self.channel is not None
        assert self._challenge is not None
        assert self._begin is not None
        caller, reply = self._caller, self._caller.reader.read(payload)
        if isinstance(reply, Refused):
            self._refused(reply)
            return
        nonce = self._challenge.nonce
        if not handshake.proves_itself(
            reply.proof, secret=caller.secret, challenge_nonce=nonce, begin=self._begin
        ):
            whom = named(caller.target, caller.purpose)
            text = f"{whom} did not prove that it has the key"
            self._refused(Refused("config", text, handshake.KEY_HINT))
            return
        assert self._patience is not None
        self._patience.cancel()
        self.is_answered = True
        self._caller.answered(self.channel, reply)

    def _refused(self, refusal: Refused) -> None:
        self._caller.refused(refusal, self.address)
        self._again(refusal.text)

    def _ended(self, end: End) -> None:
        self._caller.ended(end, self.address)
        self._again(end.cause)

    def _again(self, why: str) -> None:
        if self._stopped:
            return
        self.is_answered = False
        assert self.channel is not None
        assert self._patience is not None
        self._patience.cancel()
        self.channel.close()
        self.channel = None
        self.dial.again(why)
