"""A process that was in no generation of a group asks to be taken in when the group forms again.

It calls all addresses that it was given, those of the group's ranks, until the rank that serves the
re-forming takes it in. Runs in init()'s thread, before form().
"""

from __future__ import annotations

from collections.abc import Sequence

from standfast.endpoint import Endpoint
from standfast.errors import PeerError, RendezvousError
from standfast.rendezvous import failures
from standfast.rendezvous.call import Call
from standfast.rendezvous.channel import Channel
from standfast.rendezvous.lineage import NEWCOMER
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.muster import ANSWER, OP, Summons, caller_of, raise_refusal, summons_from
from standfast.rendezvous.protocol import (
    MEMBER_FRAME_BYTES_MAX,
    Comer,
    Failed,
    Hello,
    Joined,
    Malformed,
    Refused,
)

JOIN = "join (STANDFAST_JOIN)"


class Newcomer:
    """This process's part in it."""

    def __init__(
        self, loop: Loop, endpoints: Sequence[Endpoint], *, hello: Hello, key: bytes | None
    ) -> None:
        self._loop = loop
        self._comer = Comer(hello, "", NEWCOMER, True, 0, 0)
        self._summons: Summons | None = None
        self._said: dict[Endpoint, str] = {}
        self._calls = [self._call(endpoint, key) for endpoint in endpoints]

    def run(self) -> Summons:
        """Wait to be taken in.

        Raises:
            RendezvousError: nobody did before the deadline.
            ConfigError: this process is set up otherwise than the ranks of the group.
        """
        for call in self._calls:
            call.start()
        while self._summons is None:
            if self._loop.expired():
                raise self._too_late()
            self._loop.turn()
        for call in self._calls:
            call.stop()
        return self._summons

    def _call(self, endpoint: Endpoint, key: bytes | None) -> Call[Joined]:
        def answered(channel: Channel, joined: Joined) -> None:
            channel.frame_bytes_max = MEMBER_FRAME_BYTES_MAX
            channel.on_frame = heard
            channel.on_end = lambda end: call.again(end.cause)
            self._said[endpoint] = "has not called together yet"

        def heard(payload: bytes) -> None:
            try:
                message = ANSWER.read(payload)
            except Malformed as error:
                call.again(f"it sent {error}")
                return
            if isinstance(message, Failed):
                why = failures.from_told(message, here=NEWCOMER)
                if not isinstance(why, PeerError):
                    raise why
                call.again(why.message)  # it alone leaves: somebody else serves
                return
            self._summons = summons_from(message, call)

        def refused(refusal: Refused, address: str) -> None:
            raise_refusal(refusal, address, generation=0)
            self._said[endpoint] = refusal.text

        caller = caller_of(
            key, lambda: self._comer, answered=answered, refused=refused, foreign=lambda: None
        )
        call: Call[Joined] = Call(self._loop, [endpoint], caller)
        return call

    def _too_late(self) -> RendezvousError:
        said = [f"{endpoint}: {text}" for endpoint, text in self._said.items()]
        tried = [call.dial.attempts.text() for call in self._calls]
        attempts = sum(call.dial.attempts.count for call in self._calls)
        return RendezvousError(
            f"this newcomer was not taken into a group within {self._loop.timeout_s:g} s: "
            + "; ".join(filter(None, said or tried) if any(said or tried) else ["no answer"]),
            hint="a group takes newcomers in when its ranks call reform(), with wait_s= long "
            f"enough; {JOIN} must have the addresses of its ranks",
            address=", ".join(str(endpoint) for endpoint in self._said) or None,
            attempts=attempts,
            op=OP,
        )
