"""The side channel: how the ranks of a JACCL group meet and tell each other a few bytes.

A star of TCP connections around rank 0, byte for byte as stock's; or a function of the user's. One
deadline, the loop's, bounds all of it; afterwards the connections stay open and silent, for the end
of each is all that tells of a rank's death.
"""

from __future__ import annotations

import functools
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from standfast.endpoint import parse_endpoint
from standfast.errors import ConfigError, PeerDied
from standfast.jaccl import failures, proof
from standfast.jaccl.config import AllGather, Config
from standfast.jaccl.line import Line
from standfast.jaccl.records import INT, LIST_MAX, ZERO, Record, pack_list, unpack_list
from standfast.rendezvous.dial import Dial
from standfast.rendezvous.listen import open_coordinator
from standfast.rendezvous.loop import READ, Loop

# Connections that have not said who they are; the oldest goes when there are more.
STRANGERS_MAX = 256
NOTES_MAX = 8


class SideChannel(ABC):
    """What all ranks do in the same order: meet, then exchange."""

    def __init__(self, loop: Loop, rank: int, size: int) -> None:
        self._loop = loop
        self._rank = rank
        self._size = size
        self.hosts: list[str] = [""] * size
        """By rank, as far as this rank can see."""

    @abstractmethod
    def meet(self) -> None:
        """Until all ranks (elsewhere: rank 0) are connected."""

    @abstractmethod
    def exchange(self, data: bytes, step: str) -> list[bytes]:
        """Give all ranks each other's data, of one length; `step` says what, for messages."""

    @abstractmethod
    def control(self) -> list[tuple[int, int]]:
        """Return (rank, descriptor) of the connections, which are the caller's from here on."""

    def exchange_list(self, records: Sequence[Record], step: str) -> list[list[Record]]:
        """Give all ranks each other's records, of which all have the same number.

        Raises:
            ConfigError: they have not.
        """
        packed = self.exchange(INT.pack(len(records)), f"the number of {step}")
        lengths = [INT.unpack(length)[0] for length in packed]
        for rank, length in enumerate(lengths):
            if length != len(records) or length > LIST_MAX:
                raise failures.other_layout(rank, length, len(records), here=self._rank, step=step)
        data = pack_list(records, len(records))
        return [unpack_list(each, len(records)) for each in self.exchange(data, step)]

    def barrier(self, step: str) -> None:
        """Return when all ranks have come here."""
        self.exchange(ZERO, step)

    def _until(self, done: Callable[[], bool]) -> bool:
        """Turn the loop until it is done, or the deadline has passed: then False."""
        while not done():
            if self._loop.expired():
                return False
            self._loop.turn()
        return True


class Coordinator(SideChannel):
    """Rank 0's side: takes whoever comes, and keeps those that are ranks."""

    def __init__(self, loop: Loop, config: Config, key: bytes | None) -> None:
        super().__init__(loop, config.rank, config.size)
        assert config.coordinator is not None
        self._endpoint = parse_endpoint(config.coordinator)
        self._key = key
        self._listeners: list[socket.socket] = []
        self._strangers: dict[Line, bytes] = {}  # with the nonce that each must answer
        self._proven: set[Line] = set()
        self._lines: dict[int, Line] = {}
        self._notes: list[str] = []

    def meet(self) -> None:
        """Listen until all ranks have said hello.

        Raises:
            RendezvousError: the port is taken, or not all came before the deadline.
        """
        self._listeners = open_coordinator(self._loop, self._endpoint, self._size)
        for listener in self._listeners:
            self._loop.watch(listener, READ, functools.partial(self._accept, listener))
        if not self._until(self._all_here):
            raise failures.not_come(
                self._loop.timeout_s, self._missing(), str(self._endpoint), self._all_notes()
            )
        for listener in self._listeners:
            self._loop.drop(listener)
        for stranger in self._strangers:
            stranger.close()
        self._strangers.clear()

    def exchange(self, data: bytes, step: str) -> list[bytes]:
        """Collect, then give to all.

        Raises:
            PeerDied: a rank's connection ended.
            RendezvousError: a rank does not go on before the deadline.
        """
        count = len(data)

        def done() -> bool:
            self._check_lines(count, step)
            return all(line.has(count) for line in self._lines.values())

        if not self._until(done):
            silent = [rank for rank, line in self._lines.items() if not line.has(count)]
            raise failures.not_answered(self._loop.timeout_s, sorted(silent), 0, step)
        parts = [data] + [self._lines[rank].take(count) for rank in range(1, self._size)]
        for line in self._lines.values():
            line.send(b"".join(parts))
        if not self._until(lambda: self._sent(step)):
            stuck = [rank for rank, line in self._lines.items() if not line.is_sent]
            raise failures.not_answered(self._loop.timeout_s, sorted(stuck), 0, step)
        return parts

    def control(self) -> list[tuple[int, int]]:
        """Return the connections to all other ranks."""
        return [(rank, self._lines[rank].hand_over()) for rank in range(1, self._size)]

    # --- who comes

    def _accept(self, listener: socket.socket, events: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # it has gone again
        line = Line(self._loop, sock)
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            self._reject(oldest, "said nothing, and made room for others")
        self._strangers[line] = proof.nonce() if self._key else b""
        if self._key:
            line.send(self._strangers[line])

    def _all_here(self) -> bool:
        for line in list(self._strangers):
            self._hear(line)
        for rank, line in list(self._lines.items()):
            if line.end is not None:
                self._note(f"rank {rank} came from {line.address}, and its connection {line.end}")
                del self._lines[rank]
        return len(self._lines) == self._size - 1

    def _hear(self, line: Line) -> None:
        """Take a connection that has said which rank it is."""
        if self._key and line not in self._proven and not self._is_proven(line):
            return
        if line.has(INT.size):
            self._admit(line, INT.unpack(line.take(INT.size))[0])
        elif line.end is not None:
            self._reject(line, f"{line.end} before it said which rank it is")

    def _is_proven(self, line: Line) -> bool:
        assert self._key is not None
        if not line.has(proof.ANSWER_BYTES):
            if line.end is not None:
                self._reject(line, f"{line.end} before it proved that it has the key")
            return False
        own = proof.check(self._key, self._strangers[line], line.take(proof.ANSWER_BYTES))
        if own is None:
            self._reject(line, "does not have the key")
            return False
        line.send(own)
        self._proven.add(line)
        return True

    def _admit(self, line: Line, rank: int) -> None:
        if not 0 < rank < self._size:
            what = f"said {INT.pack(rank)!r}, which is no rank from 1 to {self._size - 1}"
            self._reject(line, what)
        elif self._is_taken(rank):
            first = self._lines[rank].address
            self._reject(line, f"said that it is rank {rank}, as {first} had before")
        else:
            del self._strangers[line]
            self._lines[rank] = line
            self.hosts[rank] = line.host

    def _is_taken(self, rank: int) -> bool:
        """Tell whether somebody else is that rank, and still there."""
        if rank not in self._lines:
            return False
        self._lines[rank].look()
        return self._lines[rank].end is None

    def _reject(self, line: Line, why: str) -> None:
        self._note(f"a connection from {line.address} {why}")
        del self._strangers[line]
        self._proven.discard(line)
        line.close()

    def _note(self, what: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(what)

    def _all_notes(self) -> list[str]:
        silent = [f"a connection from {line.address} says nothing" for line in self._strangers]
        return [*self._notes, *silent[:NOTES_MAX]]

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._size) if rank not in self._lines]

    # --- who stays

    def _check_lines(self, count: int, step: str) -> None:
        for rank, line in self._lines.items():
            if line.end is not None and not line.has(count):
                raise failures.ended(rank, self.hosts[rank], line.end, here=0, step=step)

    def _sent(self, step: str) -> bool:
        self._check_lines(0, step)
        for rank, line in self._lines.items():
            if line.end is not None and not line.is_sent:
                raise failures.ended(rank, self.hosts[rank], line.end, here=0, step=step)
        return all(line.is_sent for line in self._lines.values())


class Member(SideChannel):
    """The side of any other rank."""

    def __init__(self, loop: Loop, config: Config, key: bytes | None) -> None:
        super().__init__(loop, config.rank, config.size)
        assert config.coordinator is not None
        self._endpoint = parse_endpoint(config.coordinator)
        self._key = key
        self._line: Line | None = None

    def meet(self) -> None:
        """Connect to rank 0, however late it comes, and say hello.

        Raises:
            RendezvousError: rank 0 was not reached before the deadline.
            ConfigError: rank 0 does not have this rank's key.
        """
        dial = Dial(self._loop, [self._endpoint], self._connected)
        try:
            dial.start()
            reached = self._until(lambda: self._line is not None)
        except OSError as error:
            dial.attempts.note(str(self._endpoint), str(error))
            reached = False
        if not reached:
            dial.stop()
            raise failures.unreachable(
                self._loop.timeout_s,
                str(self._endpoint),
                dial.attempts.count,
                dial.attempts.text(),
                self._rank,
            )
        if self._key:
            self._prove(self._key)
        self._connection.send(INT.pack(self._rank))

    def exchange(self, data: bytes, step: str) -> list[bytes]:
        """Send to rank 0, and wait for what it sends to all.

        Raises:
            PeerDied: the connection to rank 0 ended.
            RendezvousError: no answer came before the deadline.
        """
        count = len(data)
        self._connection.send(data)
        whole = self._receive(count * self._size, step)
        return [whole[i * count : (i + 1) * count] for i in range(self._size)]

    def control(self) -> list[tuple[int, int]]:
        """Return the connection to rank 0."""
        return [(0, self._connection.hand_over())]

    @property
    def _connection(self) -> Line:
        assert self._line is not None
        return self._line

    def _connected(self, sock: socket.socket, address: str) -> None:
        self._line = Line(self._loop, sock)
        self.hosts[0] = self._line.host

    def _prove(self, key: bytes) -> None:
        line, own, step = self._connection, proof.nonce(), "proofs of the key"
        challenge = self._receive(proof.NONCE_BYTES, step)
        line.send(proof.answer(key, challenge, own, self._rank))
        try:
            proven = self._receive(proof.PROOF_BYTES, step)
        except PeerDied as error:
            raise failures.wrong_key(self._rank, line.address) from error
        if not proof.proves_rank_0(key, challenge, own, self._rank, proven):
            raise failures.wrong_key(self._rank, line.address)

    def _receive(self, count: int, step: str) -> bytes:
        line = self._connection

        def done() -> bool:
            if line.end is not None and not line.has(count):
                raise failures.ended(0, self.hosts[0], line.end, here=self._rank, step=step)
            return line.has(count)

        if not self._until(done):
            raise failures.not_answered(self._loop.timeout_s, [0], self._rank, step)
        return line.take(count)


class Supplied(SideChannel):
    """A function of the user's in place of connections."""

    def __init__(self, loop: Loop, config: Config, all_gather: AllGather) -> None:
        super().__init__(loop, config.rank, config.size)
        self._all_gather = all_gather

    def meet(self) -> None:
        """Do nothing: the function's owner has met."""

    def exchange(self, data: bytes, step: str) -> list[bytes]:
        """Call the function.

        Raises:
            ConfigError: what it returns is not one piece per rank, of this length.
        """
        found = [bytes(each) for each in self._all_gather(data)]
        if len(found) != self._size or any(len(each) != len(data) for each in found):
            lengths = ", ".join(str(len(each)) for each in found)
            raise ConfigError(
                f"all_gather returned pieces of {lengths or 'no'} bytes for the exchange of {step};"
                f" {self._size} of {len(data)} were expected",
                here=self._rank,
            )
        return found

    def control(self) -> list[tuple[int, int]]:
        """Return no connection."""
        return []


def open_channel(loop: Loop, config: Config, key: bytes | None) -> SideChannel:
    """Return this rank's side."""
    if config.all_gather is not None:
        return Supplied(loop, config, config.all_gather)
    return (Coordinator if config.rank == 0 else Member)(loop, config, key)
