"""Rank 0's part: take the others in, hand out the table, wait until all have their wires, say go.

It also is the one place that knows of every failure: a link that ends, a rank that reports one, the
deadline. It raises that here and tells it to all who came.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from standfast.endpoint import Endpoint
from standfast.errors import StandfastError
from standfast.identity import Identity
from standfast.rendezvous import admission, failures, handshake
from standfast.rendezvous.beacons import BeaconMemory
from standfast.rendezvous.channel import Channel, End
from standfast.rendezvous.door import Door, peer_text
from standfast.rendezvous.formation import Formation, Segments
from standfast.rendezvous.hello import with_data
from standfast.rendezvous.listen import (
    is_local_only,
    open_data_listener,
    port_of,
    reached_from_here,
    text_of,
)
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.parting import announce, part
from standfast.rendezvous.protocol import (
    CONTROL,
    MEMBER_FRAME_BYTES_MAX,
    Begin,
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
    Trouble,
    Waiting,
    frame,
)
from standfast.rendezvous.routes import advertised, check_fabric
from standfast.rendezvous.table import check_of, entry_of, peers_for, plan_for, routes_for
from standfast.rendezvous.unwired import Unwired
from standfast.rendezvous.verbs import rails_for
from standfast.rendezvous.wiring import Wiring
from standfast.settings import Settings

log: logging.Logger = logging.getLogger("standfast")

HELLO: Reader[Hello] = Reader(Hello)
MEMBER: Reader[Ready | Trouble | Expired | Failed] = Reader(Ready | Trouble | Expired | Failed)

# The first report of who is missing comes after this share of the time; the next in twice that, ...
REPORT_SHARE = 0.1


@dataclass
class Member:
    """A rank that has joined."""

    rank: int
    channel: Channel
    hello: Hello
    addresses: list[str]
    ready: bool = False
    state: bytes = b""


class Coordinator:
    """Rank 0 while the group is being formed."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        settings: Settings,
        hello: Hello,
        listeners: Sequence[socket.socket],
        segments: Segments,
        standby: socket.socket | None = None,
        state: bytes = b"",
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._settings = settings
        self._segments = segments
        self._beacons = BeaconMemory(segments, wanted=settings.beacon)
        self._members: dict[int, Member] = {}
        self._troubles: dict[int, Trouble] = {}
        self._table: Table | None = None
        self._wiring: Wiring | Unwired | None = None
        local_only = is_local_only(listeners)
        self._via = reached_from_here(listeners[0])
        self._address = identity.coordinator or str(Endpoint(self._via, port_of(listeners[0])))
        self._state = state
        self._data = standby
        if hello.wires and standby is None:
            self._data = self._open_data(self._via if local_only else None)
        self._hello = self._own_hello(hello)
        self._door = Door(
            loop,
            listeners,
            purpose=CONTROL,
            rank=identity.rank,
            size=identity.size,
            secret=settings.key,
            local_only=local_only,
            came=self._came,
        )

    def run(self) -> Formation:
        """Form the group.

        Raises:
            StandfastError: why it was not formed; `fail` tells the others.
        """
        self._door.open()
        self._report_later(self._settings.init_timeout_s * REPORT_SHARE)
        while not self._all_ready():
            if self._loop.expired():
                raise self._too_late(self._settings.init_timeout_s)
            self._loop.turn()
        self._go()
        return self._formation()

    def fail(self, error: BaseException) -> StandfastError | None:
        """Tell all who came why the group is not formed, and let go of everything.

        There is no earlier cause than what ends rank 0: None.
        """
        self._loop.calm()
        here, generation = self._identity.rank, self._identity.generation
        told = failures.as_told(error, rank=here, host=self._hello.host, generation=generation)
        channels = [member.channel for member in self._members.values()]
        announce(channels, told)
        # Not earlier: whoever misses our memory must find the reason in its link.
        if self._wiring:
            self._wiring.abandon()
        self._beacons.abandon()
        part(self._loop, channels)
        return None

    def pid_here(self, rank: int | None) -> int | None:
        """Return the pid of a rank of this host that has joined, else None."""
        member = self._members.get(-1 if rank is None else rank)
        same = member is not None and member.hello.host_id == self._hello.host_id
        return member.hello.pid if member and same else None

    # Before the table.

    def _open_data(self, near: str | None) -> socket.socket:
        size = self._identity.size
        listener = open_data_listener(self._settings.data_address, near=near, size=size)
        self._loop.adopt(listener)
        return listener

    def _own_hello(self, hello: Hello) -> Hello:
        """Complete our own hello with our data port, if there is to be one.

        It has no address unless one was asked for: it is where the others reach the coordinator.
        """
        if self._data is None:
            return hello
        explicit = self._settings.data_address is not None
        addresses = [text_of(self._data.getsockname())] if explicit else []
        return with_data(hello, port_of(self._data), addresses, explicit=explicit)

    def _came(self, channel: Channel, begin: Begin, proof: bytes) -> None:
        try:
            hello = HELLO.read(begin.body)
        except Malformed as error:
            self._door.refuse(channel, Refused("rendezvous", f"rank {begin.rank} sent {error}"))
            return
        present = {member.rank: member.hello for member in self._members.values()}
        present[self._identity.rank] = self._hello
        objection = admission.objection(begin.rank, hello, ours=self._hello, present=present)
        if objection:
            self._door.refuse(channel, objection)
            return
        self._join(channel, begin.rank, hello, proof)

    def _join(self, channel: Channel, rank: int, hello: Hello, proof: bytes) -> None:
        addresses = list(hello.addresses)
        if not hello.explicit:
            addresses = advertised(addresses[0] if addresses else "", peer_text(channel.sock))
        member = self._members[rank] = Member(rank, channel, hello, addresses)
        channel.frame_bytes_max = MEMBER_FRAME_BYTES_MAX
        channel.on_frame = lambda payload: self._heard(member, payload)
        channel.on_end = lambda end: self._lost(member, end)
        channel.send(frame(Joined(proof)))
        log.info("rank %d joined from %s (%s)", rank, hello.host, peer_text(channel.sock))
        if not self._missing():
            self._hand_out_table()

    def _hand_out_table(self) -> None:
        rows = [entry_of(self._hello, self._hello.addresses)]
        rows += [entry_of(m.hello, m.addresses) for _, m in sorted(self._members.items())]
        self._table = Table(handshake.nonce(), rows)
        if self._data is not None:
            check_fabric(rows, self._settings.fabric)
        self._beacons.open(self._identity.rank, self._table)
        encoded = frame(self._table)
        for member in self._members.values():
            member.channel.send(encoded)
        self._wiring = self._begin_wiring(self._table)
        self._wiring.start()

    def _begin_wiring(self, table: Table) -> Wiring | Unwired:
        if self._data is None:
            return Unwired(finished=lambda: None)
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
            finished=lambda: None,
            report=lambda trouble: None,
        )

    # What members tell.

    def _heard(self, member: Member, payload: bytes) -> None:
        try:
            message = MEMBER.read(payload)
        except Malformed as error:
            raise self._died(member, f"it sent {error}") from error
        match message:
            case Ready():
                if message.check != self._check():
                    raise failures.other_table(member.rank, self._identity.rank)
                member.ready = True
                member.state = message.state
                self._troubles.pop(member.rank, None)
            case Trouble():
                log.warning("rank %d has %s", member.rank, message.text)
                self._troubles[member.rank] = message
            case Expired():
                raise self._too_late(message.timeout_s)
            case Failed():
                raise failures.from_told(message, here=self._identity.rank)

    def _lost(self, member: Member, end: End) -> None:
        raise self._died(member, end.cause)

    def _died(self, member: Member, cause: str) -> StandfastError:
        here, generation = self._identity.rank, self._identity.generation
        rank, host = member.rank, member.hello.host
        return failures.died(rank, host, cause, reporter=here, generation=generation)

    # Deadline.

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._identity.size) if rank not in self._members]

    def _all_ready(self) -> bool:
        if self._wiring is None or not self._wiring.complete():
            return False
        return all(member.ready for member in self._members.values())

    def _report_later(self, delay_s: float) -> None:
        def report() -> None:
            missing = self._missing()
            if missing:
                self._report(missing)
                self._report_later(2 * delay_s)

        self._loop.later(delay_s, report)

    def _report(self, missing: list[int]) -> None:
        elapsed_s, ranks = self._loop.elapsed_s(), failures.ranks_text(missing)
        log.warning("waiting for %s to come to %s for %.1f s", ranks, self._address, elapsed_s)
        for member in self._members.values():
            member.channel.send(frame(Waiting(missing)))

    def _too_late(self, timeout_s: float) -> StandfastError:
        missing = self._missing()
        if missing:
            return failures.too_late(timeout_s, missing, self._address)
        unready = [member.rank for member in self._members.values() if not member.ready]
        if self._wiring is not None and not self._wiring.complete():
            unready.append(self._identity.rank)
            self._troubles[self._identity.rank] = self._wiring.trouble()
        return failures.not_wired(timeout_s, sorted(unready), self._troubles, self._address)

    # The end.

    def _check(self) -> bytes:
        assert self._table is not None
        return check_of(self._table, self._identity.generation)

    def _states(self) -> list[bytes]:
        return [self._state, *(member.state for _, member in sorted(self._members.items()))]

    def _go(self) -> None:
        """All are there, and in the same group: the barrier with which each generation begins."""
        assert self._wiring is not None
        go = Go(self._check(), self._states())
        self._door.close()
        self._wiring.close_door()
        self._beacons.unlink()
        for _, member in sorted(self._members.items()):
            # The first bytes behind Ready are the native core's.
            member.channel.hold()
            member.channel.send(frame(go))
        while not all(member.channel.flushed() for member in self._members.values()):
            if self._loop.expired():
                raise self._too_late(self._settings.init_timeout_s)
            self._loop.turn()

    def _formation(self) -> Formation:
        assert self._table is not None
        assert self._wiring is not None
        peers = peers_for(self._identity.rank, self._table, via=self._via)
        if self._data is not None:
            self._loop.release(self._data)
        return Formation(
            peers=peers,
            control=[(rank, m.channel.detach()) for rank, m in sorted(self._members.items())],
            wires=self._wiring.release(),
            ranks_here=sum(peer.same_host for peer in peers),
            beacon_fd=self._beacons.release(),
            standby=self._data,
            routes=routes_for(self._identity.rank, self._table, via=self._via),
            token=self._table.token,
            states=tuple(self._states()),
            topology=self._wiring.topology,
        )
