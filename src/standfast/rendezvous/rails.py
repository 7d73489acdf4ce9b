"""The RDMA part of wiring: what two ranks tell each other before messages can go between them.

Both have a connection to each other, and created their queue pairs before. Each sends the ends of
its rails (Ends), connects them to those of the other (Linked), and says hello over each cable.
Only when a hello has come over each of them as well is the pair done: a cable in the wrong port, or
a peer that was not ready, is known before the first operation.

An address that was read may have moved before it is used. So the first refusal of one makes both
ends begin anew: other queue pairs, addresses read again, Ends and Linked of a second attempt.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from standfast import _core
from standfast.errors import FabricError
from standfast.matrix import Cabling, Matrix
from standfast.rendezvous.channel import Channel
from standfast.rendezvous.failures import OP
from standfast.rendezvous.listen import text_of
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.protocol import Ends, Linked, Malformed, RailEnd, Reader, frame

log: logging.Logger = logging.getLogger("standfast")

LINKING: Reader[Ends | Linked] = Reader(Ends | Linked)

# What the others may mend while we wait: an address that DHCP has not given yet, a port that comes
# up when the other end does. Asked for again so often, until this share of the time is left.
PASSING = ("no_gid", "port_down")
RETRY_S = 0.1
GIVE_UP_SHARE = 0.1
# What a device says of an address that is not, or no longer, where it was. Not more than two
# attempts: of Macs it is told, and could not be checked here, that a port which had refused often
# refused everything until the Mac was restarted.
MOVED = ("address_refused", "address_elsewhere")
ATTEMPTS_MAX = 2
# How often to look whether the hello has come, and when to say that it has not.
HELLO_EVERY_S = 0.002
HELLO_LATE_S = 3.0


@dataclass
class Linking:
    """How far a pair has come."""

    peer: int
    channel: Channel
    done: Callable[[], None]
    key: int
    attempt: int = 1
    ours: list[Any] | None = None
    theirs: Ends | None = None
    connected: bool = False
    peer_connected: bool = False
    greeting: bool = False
    trouble: str = ""
    warned: bool = False


class Rails:
    """This rank's devices, and the rails to each peer while they are being made."""

    def __init__(
        self,
        loop: Loop,
        rank: int,
        hosts: Sequence[str],
        matrix: Matrix,
        cabling: Cabling,
        *,
        library: str,
    ) -> None:
        self._loop = loop
        self._rank = rank
        self._hosts = hosts
        self._matrix = matrix
        self._cabling = cabling
        self._library = library
        self._station: _core.Station | None = None
        self._pairs: dict[int, Linking] = {}

    def open(self) -> None:
        """Open the devices and create all queue pairs.

        Raises:
            FabricError: a device is missing, or refuses.
        """
        row = self._matrix.rows[self._rank]
        cells: Mapping[int, Any] = {peer: list(ends) for peer, ends in enumerate(row) if ends}
        try:
            self._station = _core.Station(library=self._library, cells=cells)
        except _core.VerbsError as error:
            raise self._failure(error) from error
        except OSError as error:
            raise FabricError(
                f"rank {self._rank} on {self._hosts[self._rank]} has no memory for RDMA: {error}",
                code="no_memory",
                rank=self._rank,
                op=OP,
            ) from error

    @property
    def topology(self) -> str:
        """What collectives can use: "ring" where cables are missing."""
        return self._cabling.topology

    def joins(self, peer: int) -> bool:
        """Tell whether there are cables to a peer."""
        return self._cabling.joins(self._rank, peer)

    def link(self, peer: int, channel: Channel, done: Callable[[], None]) -> None:
        """Join the rails to this peer; `done()` when a hello has come over each."""
        first = self._rank < peer
        pair = Linking(peer, channel, done, secrets.randbits(31) if first else 0)
        self._pairs[peer] = pair
        channel.on_frame = lambda payload: self._heard(pair, payload)
        # If its rank is dead, rank 0 will say so.
        channel.on_end = lambda end: log.warning(
            "rank %d ended the connection while RDMA was set up: %s", peer, end.cause
        )
        self._offer(pair)

    def trouble(self, peer: int) -> str:
        """Return what is waited for between this rank and a peer, or ""."""
        return self._pairs[peer].trouble if peer in self._pairs else ""

    def text(self, peer: int) -> str:
        """Return what messages call the link to a peer."""
        assert self._station is not None
        return self._station.text(peer)

    def release(self, peer: int) -> _core.Rails:
        """Hand over the rails to a peer."""
        assert self._station is not None
        return self._station.release(peer)

    def abandon(self) -> None:
        """Give the devices back."""
        self._pairs.clear()
        self._station = None

    def _offer(self, pair: Linking) -> None:
        """Tell our ends, as soon as each port has an address."""
        if self._station is None:
            return
        likely = [text_of(pair.channel.sock.getsockname())]
        try:
            pair.ours = self._station.addresses(pair.peer, likely=likely)
        except _core.VerbsError as error:
            self._wait_for_address(pair, error)
            return
        ends = [RailEnd(*end) for end in pair.ours]
        pair.channel.send(frame(Ends(ends, pair.key, self.topology, pair.attempt)))
        self._connect(pair)

    def _wait_for_address(self, pair: Linking, error: _core.VerbsError) -> None:
        if error.args[0] not in PASSING or self._is_nearly_over():
            raise self._failure(error, pair.peer) from error
        self._note(pair, error.args[1])
        self._loop.later(RETRY_S, lambda: self._offer(pair))

    def _heard(self, pair: Linking, payload: bytes) -> None:
        try:
            message = LINKING.read(payload)
        except Malformed as error:
            raise self._trouble(pair, "protocol", f"rank {pair.peer} sent {error}") from error
        if isinstance(message, Ends):
            self._told(pair, message)
            return
        if message.attempt != pair.attempt:
            return  # it has not heard yet that we begin anew
        pair.peer_connected = True
        # Nothing more comes for us: the next byte belongs to the native core.
        pair.channel.hold()
        self._greet(pair)

    def _told(self, pair: Linking, theirs: Ends) -> None:
        if theirs.attempt > min(pair.attempt + 1, ATTEMPTS_MAX):
            text = (
                f"rank {pair.peer} is at attempt {theirs.attempt} to connect, we at {pair.attempt}"
            )
            raise self._trouble(pair, "protocol", text)
        if theirs.attempt > pair.attempt:
            self._begin_anew(pair)
        if theirs.attempt == pair.attempt:
            pair.theirs = theirs
            self._connect(pair)

    def _begin_anew(self, pair: Linking) -> None:
        """Let go of what was tried, and tell our ends as they are now; the peer does the same."""
        assert self._station is not None
        pair.attempt += 1
        pair.ours, pair.theirs, pair.connected = None, None, False
        try:
            self._station.renew(pair.peer)
        except _core.VerbsError as error:
            raise self._failure(error, pair.peer) from error
        self._offer(pair)

    def _connect(self, pair: Linking) -> None:
        """Join our ends to theirs, once both are known."""
        if self._station is None or pair.ours is None or pair.theirs is None or pair.connected:
            return
        theirs = [_packed(end) for end in pair.theirs.ends]
        if len(theirs) != len(pair.ours):
            text = f"{len(pair.ours)} cables here, {len(theirs)} there"
            raise self._trouble(pair, "cables_differ", text)
        if pair.theirs.topology != self.topology:
            text = f"cables for topology={self.topology!r} here, {pair.theirs.topology!r} there"
            raise self._trouble(pair, "cables_differ", f"{text}: the device files differ")
        first = self._rank < pair.peer
        try:
            self._station.connect(
                pair.peer,
                theirs,
                peer_text=f"rank {pair.peer} on {self._hosts[pair.peer]}",
                key=pair.key if first else pair.theirs.key,
                first=first,
            )
        except _core.VerbsError as error:
            if error.args[0] not in MOVED or pair.attempt == ATTEMPTS_MAX:
                raise self._failure(error, pair.peer) from error
            log.warning("rank %d looks for addresses again: %s", self._rank, error.args[1])
            self._begin_anew(pair)
            return
        pair.connected = True
        pair.channel.send(frame(Linked(pair.attempt)))
        self._greet(pair)

    def _greet(self, pair: Linking) -> None:
        if self._station is None or pair.greeting or not (pair.connected and pair.peer_connected):
            return
        pair.greeting = True
        self._station.greet(pair.peer)
        self._await_hello(pair, self._loop.elapsed_s() + HELLO_LATE_S)

    def _await_hello(self, pair: Linking, late_s: float) -> None:
        if self._station is None:
            return
        try:
            greeted = self._station.is_greeted(pair.peer)
        except _core.VerbsError as error:
            raise self._failure(error, pair.peer) from error
        if greeted:
            pair.trouble = ""
            pair.done()
            return
        rails = self._station.silent_rails(pair.peer)
        text = f"no message came over {rails}: that cable does not join these two, or is dead"
        if self._is_nearly_over():
            raise self._trouble(pair, "silent_cable", text)
        if self._loop.elapsed_s() >= late_s:
            self._note(pair, text)
        self._loop.later(HELLO_EVERY_S, lambda: self._await_hello(pair, late_s))

    def _is_nearly_over(self) -> bool:
        return self._loop.elapsed_s() >= (1 - GIVE_UP_SHARE) * self._loop.timeout_s

    def _note(self, pair: Linking, text: str) -> None:
        """Remember what is waited for, and say so once."""
        pair.trouble = text
        if not pair.warned:
            log.warning("rank %d waits: %s", self._rank, text)
            pair.warned = True

    def _failure(self, error: _core.VerbsError, peer: int | None = None) -> FabricError:
        """Return what the core found, with rank and cells."""
        code, text, hint, device, number = error.args
        return self._error(text, peer, code=code, hint=hint, device=device, number=number)

    def _trouble(self, pair: Linking, code: str, text: str) -> FabricError:
        return self._error(text, pair.peer, code=code)

    def _error(
        self,
        text: str,
        peer: int | None,
        *,
        code: str,
        hint: str = "",
        device: str = "",
        number: int = 0,
    ) -> FabricError:
        cells = ""
        if peer is not None:
            here, there = self._matrix.where(self._rank, peer), self._matrix.where(peer, self._rank)
            cells = f" ({here}; {there})"
        host = self._hosts[self._rank]
        return FabricError(
            f"rank {self._rank} on {host}: {text}{cells}",
            hint=hint or None,
            rank=self._rank,
            host=host,
            cause=text,
            code=code,
            device=device or None,
            error=number or None,
            peer=peer,
            op=OP,
        )


def _packed(end: RailEnd) -> tuple[Any, ...]:
    """Return a rail's end as the core takes it."""
    return tuple(getattr(end, name) for name in end.__struct_fields__)
