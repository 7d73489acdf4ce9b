"""The part of every rank but 0: reach the coordinator, get the table, make wires, wait for go."""

from __future__ import annotations

import logging
import socket
import sys
import time
from typing import Any

from standfast.endpoint import Endpoint, is_wildcard
from standfast.errors import ConfigError, RendezvousError, StandfastError
from standfast.identity import Identity
from standfast.rendezvous import failures, second_look
from standfast.rendezvous.beacons import BeaconMemory
from standfast.rendezvous.call import Call, Caller
from standfast.rendezvous.channel import FOREIGN, OTHER_VERSION, Channel, End
from standfast.rendezvous.formation import Formation, Segments
from standfast.rendezvous.hello import with_data
from standfast.rendezvous.listen import open_data_listener, text_of
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.parting import announce, part
from standfast.rendezvous.protocol import (
    CONTROL,
    MEMBER_FRAME_BYTES_MAX,
    Challenge,
    Expired,
    Failed,
    Go,
    Hello,
    Joined,
    Malformed,
    Reader,
    Ready,
    Refused,
    Table,
    Waiting,
    encode,
    frame,
)
from standfast.rendezvous.routes import without_scope
from standfast.rendezvous.table import check_of, peers_for, plan_for, routes_for
from standfast.rendezvous.unwired import Unwired
from standfast.rendezvous.verbs import rails_for
from standfast.rendezvous.wiring import Wiring
from standfast.settings import Settings

log: logging.Logger = logging.getLogger("standfast")

JOINED: Reader[Joined | Refused] = Reader(Joined | Refused)
COORDINATOR: Reader[Waiting | Table | Go | Failed] = Reader(Waiting | Table | Go | Failed)

# How long the coordinator may take to say who is missing, once this rank's own time is over.
ANSWER_S_MAX = 0.5


class Member:
    """A rank other than 0 while the group is being formed."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        settings: Settings,
        hello: Hello,
        coordinator: Endpoint,
        segments: Segments,
        standby: socket.socket | None = None,
        state: bytes = b"",
    ) -> None:
        if is_wildcard(coordinator.host):
            raise ConfigError(
                f"rank {identity.rank} cannot connect to {coordinator}, which only rank 0 can use",
                hint="give this rank the address of rank 0's machine",
            )
        self._loop = loop
        self._identity = identity
        self._settings = settings
        self._hello = hello
        self._coordinator = coordinator
        self._segments = segments
        self._beacons = BeaconMemory(segments, wanted=settings.beacon)
        self._standby = standby
        self._data: socket.socket | None = standby
        self._state = state
        self._states: tuple[bytes, ...] = ()
        self._via = ""
        self._link: Channel | None = None
        self._missing: list[int] = []
        self._table: Table | None = None
        self._wiring: Wiring | Unwired | None = None
        self._go = False
        # The others know already, or cannot be told.
        self._known = False
        self._call: Call[Joined] = Call(loop, [coordinator], self._caller())

    def run(self) -> Formation:
        """Form the group.

        Raises:
            StandfastError: why it was not formed; `fail` tells the coordinator.
        """
        self._call.start()
        while not self._formed():
            if self._loop.expired():
                self._expire()
            self._loop.turn()
        return self._formation()

    def fail(self, error: BaseException) -> StandfastError | None:
        """Tell the coordinator why this rank ends, unless it knows; let go of everything.

        Return what the coordinator says to that, if something else was the first cause.
        """
        self._loop.calm()
        link = None if self._known else self._link
        heard: list[bytes] = []
        told = self._as_told(error)
        if link:
            announce([link], told, heard.append)
        if self._wiring:
            self._wiring.abandon()
        self._beacons.abandon()
        if link:
            part(self._loop, [link])
        if not isinstance(error, (StandfastError, OSError)):
            return None
        return next(filter(None, (self._earlier(payload, told) for payload in heard)), None)

    def pid_here(self, rank: int | None) -> int | None:
        """Return the pid of a rank of this host, as far as the table has come, else None."""
        if self._table is None or rank is None:
            return None
        entry = self._table.ranks[rank]
        return entry.pid if entry.host_id == self._hello.host_id else None

    def _as_told(self, error: BaseException) -> Failed:
        here, generation = self._identity.rank, self._identity.generation
        return failures.as_told(error, rank=here, host=self._hello.host, generation=generation)

    def _earlier(self, payload: bytes, ours: Failed) -> StandfastError | None:
        """Return the failure in a frame that crossed ours; it may also be the echo of our own."""
        try:
            message = COORDINATOR.read(payload)
        except Malformed:
            return None
        if not isinstance(message, Failed) or message.message == ours.message:
            return None
        return failures.from_told(message, here=self._identity.rank)

    # Joining.

    def _caller(self) -> Caller[Joined]:
        return Caller(
            purpose=CONTROL,
            rank=self._identity.rank,
            target=0,
            secret=self._settings.key,
            reader=JOINED,
            body=self._introduction,
            answered=self._joined,
            refused=self._refused,
            ended=self._ended,
        )

    def _introduction(self, challenge: Challenge, channel: Channel) -> bytes:
        """Open the data port, now that it is known from where this rank is seen; say hello."""
        source = text_of(channel.sock.getsockname())
        if not self._hello.wires:
            return encode(with_data(self._hello, 0, [without_scope(source)], explicit=False))
        explicit = self._settings.data_address is not None
        if self._data is None:
            near = source if challenge.local_only else None
            wanted, size = self._settings.data_address, self._identity.size
            self._data = open_data_listener(wanted, near=near, size=size)
            self._loop.adopt(self._data)
        address = self._data.getsockname()
        seen = text_of(address) if explicit else without_scope(source)
        return encode(with_data(self._hello, int(address[1]), [seen], explicit=explicit))

    def _refused(self, refusal: Refused, address: str) -> None:
        raise failures.refused(refusal, by=address, here=self._identity.rank)

    def _ended(self, end: End, address: str) -> None:
        """Dial again where a connection broke; one that leads to something else never helps."""
        if end.kind == OTHER_VERSION:
            raise ConfigError(
                f"rank {self._identity.rank} and the coordinator at {address} differ: {end.cause}",
                hint="install the same standfast on all hosts",
            )
        if end.kind == FOREIGN:
            raise RendezvousError(
                f"rank {self._identity.rank} found no coordinator at {address}: {end.cause}",
                hint=f"is {self._coordinator} where rank 0 listens?",
                address=address,
                attempts=self._call.dial.attempts.count,
                cause=end.cause,
                op=failures.OP,
            )

    def _joined(self, channel: Channel, joined: Joined) -> None:
        self._link = channel
        self._via = text_of(channel.sock.getpeername())
        channel.frame_bytes_max = MEMBER_FRAME_BYTES_MAX
        channel.on_frame = self._heard
        channel.on_end = self._lost
        log.info("rank %d joined at %s", self._identity.rank, self._call.address)

    # Having joined.

    def _heard(self, payload: bytes) -> None:
        try:
            message = COORDINATOR.read(payload)
        except Malformed as error:
            raise self._coordinator_died(f"it sent {error}") from error
        match message:
            case Waiting():
                self._missing = message.missing
                log.warning("rank 0 waits for %s", failures.ranks_text(message.missing))
            case Table():
                self._wire_up(message)
            case Go():
                self._receive_go(message)
            case Failed():
                self._known = True
                raise failures.from_told(message, here=self._identity.rank)

    def _wire_up(self, table: Table) -> None:
        self._table = table
        self._beacons.open(self._identity.rank, table)
        self._wiring = self._begin_wiring(table)
        self._wiring.start()

    def _begin_wiring(self, table: Table) -> Wiring | Unwired:
        if not self._hello.wires:
            return Unwired(finished=self._say_ready)
        assert self._data is not None
        plan = plan_for(
            self._identity.rank,
            table,
            via=self._via,
            fabric=self._settings.fabric,
            key=self._settings.key,
        )
        return Wiring(
            self._loop,
            self._data,
            plan,
            self._segments,
            rails=rails_for(self._loop, plan, self._settings),
            finished=self._say_ready,
            report=self._tell,
        )

    def _tell(self, message: Any) -> None:
        assert self._link is not None
        self._link.send(frame(message))

    def _say_ready(self) -> None:
        self._tell(Ready(self._check(), self._state))

    def _check(self) -> bytes:
        assert self._table is not None
        return check_of(self._table, self._identity.generation)

    def _receive_go(self, go: Go) -> None:
        """All are there, and in the same group. The next byte on the link is the native core's."""
        assert self._link is not None
        assert self._wiring is not None
        if go.check != self._check() or len(go.states) != self._identity.size:
            raise failures.other_table(0, self._identity.rank)
        self._states = tuple(go.states)
        self._link.hold()
        self._wiring.close_door()
        self._beacons.unlink()
        self._go = True

    def _lost(self, end: End) -> None:
        raise self._coordinator_died(end.cause)

    def _coordinator_died(self, cause: str) -> StandfastError:
        self._known = True
        host = self._table.ranks[0].host if self._table else self._coordinator.host
        here, generation = self._identity.rank, self._identity.generation
        error = failures.died(0, host, cause, reporter=here, generation=generation)
        error.here = here
        return error

    # Deadline and end.

    def _expire(self) -> None:
        """Raise what this rank knows; if it has joined, the coordinator may know better."""
        timeout_s, address = self._settings.init_timeout_s, str(self._coordinator)
        if self._link is None:
            attempts = self._call.dial.attempts
            here = self._identity.rank
            silent = second_look.wanted(attempts.last, self._coordinator)
            raise failures.unreachable(
                here,
                timeout_s,
                address,
                attempts.count,
                attempts.text(),
                seen=second_look.look(silent) if silent else None,
                platform=sys.platform,
            )
        if self._wiring and not self._wiring.complete():
            self._tell(self._wiring.trouble())
        self._tell(Expired(timeout_s))
        until = time.monotonic() + ANSWER_S_MAX
        while not self._formed() and time.monotonic() < until:
            self._loop.turn(until)
        if not self._formed():
            self._known = True
            raise failures.no_answer(timeout_s, self._missing, address)

    def _formed(self) -> bool:
        return self._go and self._wiring is not None and self._wiring.complete()

    def _formation(self) -> Formation:
        assert self._link is not None
        assert self._table is not None
        assert self._wiring is not None
        peers = peers_for(self._identity.rank, self._table, via=self._via)
        if self._data is not None:
            self._loop.release(self._data)
        return Formation(
            peers=peers,
            control=[(0, self._link.detach())],
            wires=self._wiring.release(),
            ranks_here=sum(peer.same_host for peer in peers),
            beacon_fd=self._beacons.release(),
            standby=self._data,
            routes=routes_for(self._identity.rank, self._table, via=self._via),
            token=self._table.token,
            states=self._states,
            topology=self._wiring.topology,
        )
