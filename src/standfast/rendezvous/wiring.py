"""Each pair of ranks makes its wire: the higher calls the lower's data port, then shm, tcp, RDMA.

Runs on every rank at once when the table has come, and is done when there is a wire to each peer.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from standfast.endpoint import Endpoint
from standfast.errors import FabricError, RendezvousError
from standfast.rendezvous import failures
from standfast.rendezvous.call import Call, Caller
from standfast.rendezvous.channel import Channel
from standfast.rendezvous.door import Door, peer_text
from standfast.rendezvous.formation import Segments, WireEnd
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.protocol import (
    DATA,
    Attached,
    Begin,
    Malformed,
    Offer,
    Reader,
    Refused,
    Trouble,
    clipped,
    frame,
)
from standfast.rendezvous.table import Plan

log: logging.Logger = logging.getLogger("standfast")

OFFER: Reader[Offer | Refused] = Reader(Offer | Refused)
ATTACHED: Reader[Attached] = Reader(Attached)

SHM, TCP, VERBS = "shm", "tcp", "verbs"
# The first report of what is missing comes after this share of the time; the next in twice that.
REPORT_SHARE = 0.1


class RailMaker(Protocol):
    """What joins two ranks by RDMA; see rails.py, which needs the native core."""

    @property
    def topology(self) -> str:
        """What collectives can use."""

    def open(self) -> None:
        """Open the devices."""

    def joins(self, peer: int) -> bool:
        """Tell whether there are cables to a peer; otherwise it is reached by tcp."""

    def link(self, peer: int, channel: Channel, done: Callable[[], None]) -> None:
        """Join the rails to a peer."""

    def trouble(self, peer: int) -> str:
        """Say what is waited for, or ""."""

    def text(self, peer: int) -> str:
        """Name the link to a peer."""

    def release(self, peer: int) -> Any:
        """Hand the rails over."""

    def abandon(self) -> None:
        """Give everything back."""


@dataclass
class Pair:
    """The wire to one peer, as far as it has come."""

    rank: int
    channel: Channel
    address: str
    fabric: str = TCP
    segment: str = ""
    shm_fd: int = -1
    done: bool = False


class Wiring:
    """Makes this rank's wires.

    Calls `finished()` when all are there (once more if one had to be made anew), and now and then
    `report(trouble)` as long as some are missing.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        plan: Plan,
        segments: Segments,
        *,
        rails: RailMaker | None = None,
        finished: Callable[[], None],
        report: Callable[[Trouble], None],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._segments = segments
        self._ranks_here = 1 + sum(fabric == SHM for fabric in plan.fabrics.values())
        self._rails = rails
        self._finished = finished
        self._report = report
        self._pairs: dict[int, Pair] = {}
        self._calls: dict[int, Call[Offer]] = {}
        self._door = Door(
            loop,
            [listener],
            purpose=DATA,
            rank=plan.rank,
            size=plan.size,
            secret=plan.secret,
            local_only=False,
            came=self._came,
        )

    def start(self) -> None:
        """Call the lower ranks, and open the door to the higher.

        Raises:
            ConfigError, FabricError: there is to be RDMA, and this rank cannot have it.
        """
        if self._rails:
            self._rails.open()
        self._door.open()
        for rank, endpoints in self._plan.routes.items():
            call = Call(self._loop, endpoints, self._caller(rank))
            self._calls[rank] = call
            call.start()
        self._report_later(self._loop.timeout_s * REPORT_SHARE)
        if self.complete():
            self._finished()

    def complete(self) -> bool:
        """Tell whether there is a wire to each peer."""
        return sum(pair.done for pair in self._pairs.values()) == self._plan.size - 1

    def trouble(self) -> Trouble:
        """Say which wires are missing, and how far the calls for them have come."""
        done = {rank for rank, pair in self._pairs.items() if pair.done}
        missing = [rank for rank in self._plan.fabrics if rank not in done]
        details = [
            f"; {attempts.count} attempts: {attempts.text()}"
            for rank, call in self._calls.items()
            if rank in missing and (attempts := call.dial.attempts).last
        ]
        if self._rails:
            details += [f"; {text}" for rank in missing if (text := self._rails.trouble(rank))]
        text = f"no wire to {failures.ranks_text(missing)}{''.join(details)}"
        return Trouble(missing, clipped(text))

    @property
    def topology(self) -> str:
        """What the wires allow collectives to use, or "" for anything."""
        return self._rails.topology if self._rails else ""

    def close_door(self) -> None:
        """Let no peer call again: all have said that they are ready."""
        self._door.close()

    def release(self) -> list[WireEnd]:
        """Hand the wires over, by rank; they are not this object's any more."""
        self._door.close()
        pairs = [self._pairs.pop(rank) for rank in sorted(self._pairs)]
        return [self._wire_end(pair) for pair in pairs]

    def _wire_end(self, pair: Pair) -> WireEnd:
        link, rails = {SHM: SHM}.get(pair.fabric, f"tcp {pair.address}"), None
        if pair.fabric == VERBS:
            assert self._rails is not None
            link, rails = self._rails.text(pair.rank), self._rails.release(pair.rank)
        elif self._rails:
            link += ", since no cable joins the two"
        return WireEnd(
            rank=pair.rank,
            fabric=pair.fabric,
            fd=pair.channel.detach(),
            shm_fd=pair.shm_fd,
            first=self._plan.rank < pair.rank,
            link=link,
            rails=rails,
        )

    def abandon(self) -> None:
        """Let go of all memory, also of what a peer offered last, e.g. before it died."""
        for call in self._calls.values():
            offered = call.channel.read_one() if call.channel else None
            try:
                offer = OFFER.read(offered) if offered else None
            except Malformed:
                continue
            if isinstance(offer, Offer):
                self._unlink(offer.segment)
        for pair in self._pairs.values():
            self._let_go(pair)
        if self._rails:
            self._rails.abandon()

    # The lower rank's side.

    def _came(self, channel: Channel, begin: Begin, proof: bytes) -> None:
        plan, rank = self._plan, begin.rank
        if not plan.rank < rank < plan.size:
            text = f"rank {rank} has no wire to make with rank {plan.rank}"
            self._door.refuse(channel, Refused(RendezvousError.kind, text))
            return
        earlier = self._pairs.pop(rank, None)
        if earlier:
            # It has lost that connection, or it would not call again.
            self._let_go(earlier)
            earlier.channel.close()
        pair = self._pairs[rank] = Pair(rank, channel, _address_text(channel.sock))
        channel.on_end = lambda end: self._lost(pair)
        if plan.fabrics[rank] == SHM and self._create(pair):
            channel.on_frame = lambda payload: self._attached(pair, payload)
            channel.send(frame(Offer(proof, SHM, pair.segment)))
        elif self._is_cabled(rank):
            channel.send(frame(Offer(proof, VERBS, "")))
            self._link(pair)
        else:
            channel.hold()
            channel.send(frame(Offer(proof, TCP, "")), lambda: self._done(pair))

    def _create(self, pair: Pair) -> bool:
        """Make the pair's segment; False if tcp must do, RendezvousError if it must not."""
        try:
            pair.segment, pair.shm_fd = self._segments.shm_create(ranks_here=self._ranks_here)
        except (OSError, RuntimeError) as error:
            self._no_memory(pair.rank, f"rank {self._plan.rank} could not make it: {error}")
            return False
        pair.fabric = SHM
        return True

    def _attached(self, pair: Pair, payload: bytes) -> None:
        try:
            answer = ATTACHED.read(payload)
        except Malformed as error:
            log.warning("rank %d sent %s", pair.rank, error)
            self._lost(pair)
            return
        pair.channel.hold()
        if answer.ok:
            self._unlink(pair.segment)
        else:
            self._let_go(pair)
            self._no_memory(pair.rank, f"rank {pair.rank} could not attach it: {answer.reason}")
        self._done(pair)

    def _lost(self, pair: Pair) -> None:
        """A half-made wire broke: its rank calls again, or is dead, which rank 0 will say."""
        if self._pairs.get(pair.rank) is pair:
            del self._pairs[pair.rank]
        self._let_go(pair)
        pair.channel.close()

    # The higher rank's side.

    def _caller(self, rank: int) -> Caller[Offer]:
        return Caller(
            purpose=DATA,
            rank=self._plan.rank,
            target=rank,
            secret=self._plan.secret,
            reader=OFFER,
            body=lambda challenge, channel: b"",
            answered=lambda channel, offer: self._offered(rank, channel, offer),
            # Another rank, or a stranger, may have the address that we tried.
            refused=lambda refusal, address: None,
            ended=lambda end, address: None,
        )

    def _offered(self, rank: int, channel: Channel, offer: Offer) -> None:
        pair = self._pairs[rank] = Pair(rank, channel, _address_text(channel.sock))
        if (offer.fabric == VERBS) != self._is_cabled(rank):
            raise self._cabled_at_one_end(rank)
        if offer.fabric == VERBS:
            self._link(pair)
            return
        channel.hold()
        if offer.fabric == TCP:
            self._done(pair)
            return
        reason = self._attach(pair, offer.segment)
        if reason is not None:
            self._no_memory(rank, f"rank {self._plan.rank} could not attach it: {reason}")
        answer = Attached(reason is None, clipped(reason or ""))
        channel.send(frame(answer), lambda: self._done(pair))

    def _attach(self, pair: Pair, segment: str) -> str | None:
        """Take the segment and remove its name; return why that was impossible, or None."""
        try:
            pair.shm_fd = self._segments.shm_attach(segment)
        except (OSError, RuntimeError) as error:
            return str(error)
        finally:
            self._unlink(segment)
        pair.fabric = SHM
        return None

    # Both sides.

    def _is_cabled(self, peer: int) -> bool:
        return self._rails is not None and self._rails.joins(peer)

    def _cabled_at_one_end(self, peer: int) -> FabricError:
        plan = self._plan
        here = f"rank {plan.rank} on {plan.hosts[plan.rank]}"
        there = f"rank {peer} on {plan.hosts[peer]}"
        has, lacks = (here, there) if self._is_cabled(peer) else (there, here)
        text = f"the device file of {has} has a cable to {lacks}, whose own has none"
        return FabricError(
            text,
            hint="all ranks need the same device file",
            rank=plan.rank,
            host=plan.hosts[plan.rank],
            cause=text,
            code="cables_differ",
            peer=peer,
            op=failures.OP,
        )

    def _link(self, pair: Pair) -> None:
        """Go on with RDMA."""
        assert self._rails is not None
        pair.fabric = VERBS
        self._rails.link(pair.rank, pair.channel, lambda: self._done(pair))

    def _report_later(self, delay_s: float) -> None:
        def report() -> None:
            if not self.complete():
                self._report(self.trouble())
                self._report_later(2 * delay_s)

        self._loop.later(delay_s, report)

    def _no_memory(self, peer: int, why: str) -> None:
        """Shared memory does not work for a pair: go on with tcp if that is allowed.

        Raises:
            RendezvousError: fabric='shm' allows nothing else.
        """
        text = f"no shared memory between rank {self._plan.rank} and rank {peer}: {why}"
        if self._plan.fallback:
            log.warning("%s; using tcp", text)
            return
        raise RendezvousError(
            f"{text}; and fabric='shm' allows nothing else",
            hint="fabric='auto' goes on with tcp in this case",
            rank=self._plan.rank,
            cause=why,
            op=failures.OP,
        )

    def _done(self, pair: Pair) -> None:
        pair.done = True
        if self.complete():
            self._finished()

    def _unlink(self, segment: str) -> None:
        try:
            if segment:
                self._segments.shm_unlink(segment)
        except (OSError, RuntimeError) as error:
            # Another user's, say: its maker removes it.
            log.info("cannot remove segment %s: %s", segment, error)

    def _let_go(self, pair: Pair) -> None:
        self._unlink(pair.segment)
        if pair.shm_fd >= 0:
            os.close(pair.shm_fd)
        pair.fabric, pair.segment, pair.shm_fd = TCP, "", -1


def _address_text(sock: socket.socket) -> str:
    """Return host:port of the other end."""
    try:
        port = int(sock.getpeername()[1])
    except OSError:
        return "?"
    return str(Endpoint(peer_text(sock), port))
