"""A rank of a JACCL group, independent of all our code: ctypes, NumPy, and JACCL's contract.

    JACCL_RANK=0 JACCL_IBV_DEVICES=... JACCL_COORDINATOR=... jaccl_rank.py all_sum:1000 barrier

It joins a group of ranks that speak JACCL's wire (stock's, ours, or more of itself), does what the
command line says in its order, checks each result against the answer, and ends with 0 only if all
were right. Data encode rank, index and operation. Operations, with counts of int32:

    all_sum:N  all_max:N  all_min:N  all_gather:N  sum_scatter:N  send:FROM:TO:N  barrier

--regime old: the frames of macOS before 26.3. --depth N: requests in flight per direction.
--repeat N: the whole list N times. --say: a line per operation, "done NAME SECONDS".
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.emulator.verbs import SUCCESS, WC_RECV, Device, Link, load

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

SMALL_FRAME = 4096
LARGEST_FRAME = 512 << 10
SMALL_BYTES = 32768
SCATTER_SMALL_BYTES = 65536
RECORD = struct.Struct("=iii4x16s")
PSN = 7


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def frame_bytes(sizing: int, *, large: bool) -> int:
    """Return the size of every message of an operation whose sizing length this is."""
    frame = SMALL_FRAME
    while large and frame < LARGEST_FRAME and 2 * frame <= sizing:
        frame *= 2
    return frame


# --- the side channel


class SideChannel:
    """The star of TCP connections through rank 0; k bytes of each, to all, in rank order."""

    def __init__(self, rank: int, size: int, coordinator: str) -> None:
        self.rank, self.size = rank, size
        host, port = coordinator.rsplit(":", 1)
        self.peers: dict[int, socket.socket] = {}
        if rank == 0:
            with socket.create_server((host, int(port)), backlog=64) as listener:
                for _ in range(size - 1):
                    peer, _address = listener.accept()
                    (number,) = struct.unpack("=i", receive_exactly(peer, 4))
                    self.peers[number] = peer
        else:
            self.peers[0] = self._dial((host, int(port)))
            self.peers[0].sendall(struct.pack("=i", rank))

    @staticmethod
    def _dial(address: tuple[str, int]) -> socket.socket:
        until = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(address, timeout=30)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def exchange(self, mine: bytes) -> list[bytes]:
        if self.rank != 0:
            self.peers[0].sendall(mine)
            together = receive_exactly(self.peers[0], len(mine) * self.size)
            return [together[i * len(mine) :][: len(mine)] for i in range(self.size)]
        everyone = [mine]
        everyone += [receive_exactly(self.peers[r], len(mine)) for r in range(1, self.size)]
        for rank in range(1, self.size):
            self.peers[rank].sendall(b"".join(everyone))
        return everyone

    def exchange_records(self, mine: list[bytes]) -> list[list[bytes]]:
        """Exchange lists of records; each rank's in its own length."""
        lengths = [
            struct.unpack("=i", each)[0] for each in self.exchange(struct.pack("=i", len(mine)))
        ]
        padded = b"".join(mine).ljust(max(lengths) * RECORD.size, b"\0")
        tables = self.exchange(padded)
        return [
            [table[i * RECORD.size :][: RECORD.size] for i in range(length)]
            for table, length in zip(tables, lengths, strict=True)
        ]

    def barrier(self) -> None:
        self.exchange(bytes(4))


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError(f"the side channel closed after {len(data)} of {count} bytes")
        data += more
    return data


# --- wires


@dataclass
class Job:
    """What is to go over one wire: all messages of `frame` bytes, in order.

    `outgoing[k]` fills the k-th message; `incoming[k]` takes it.
    """

    wire: Wire
    frame: int
    outgoing: list[Bytes] = field(default_factory=list)
    incoming: list[Callable[[Bytes], None]] = field(default_factory=list)


class Wire:
    """One queue pair, with room for `depth` messages in each direction."""

    def __init__(self, library: Any, device: str, depth: int) -> None:
        self.depth = depth
        self.device = Device(library, device)
        self.link = Link(self.device, 2 * depth * LARGEST_FRAME)
        self.link.to_init()

    def record(self) -> bytes:
        gid = self.device.gid(self.device.ipv4_index())
        return RECORD.pack(self.device.port().lid, self.link.number, PSN, gid)

    def connect(self, record: bytes) -> None:
        _lid, number, _psn, gid = RECORD.unpack(record)
        status = self.link.to_rtr(number, gid, sgid_index=self.device.ipv4_index())
        if status != 0:
            raise OSError(status, f"RTR on {self.device.name} failed with {status}")
        self.link.to_rts()

    def close(self) -> None:
        self.link.close()
        self.device.close()

    def place(self, slot: int, *, receiving: bool) -> int:
        return (slot + (self.depth if receiving else 0)) * LARGEST_FRAME


class Run:
    """A job under way: `depth` requests in flight per direction, until all have completed."""

    def __init__(self, job: Job) -> None:
        self.job, self.wire = job, job.wire
        self.received = self.sent = self.posted = self.started = 0

    def post_receives(self) -> None:
        while self.posted < min(len(self.job.incoming), self.received + self.wire.depth):
            place = self.wire.place(self.posted % self.wire.depth, receiving=True)
            checked(self.wire.link.post_receive(place, self.job.frame))
            self.posted += 1

    def post_sends(self) -> None:
        while self.started < min(len(self.job.outgoing), self.sent + self.wire.depth):
            place = self.wire.place(self.started % self.wire.depth, receiving=False)
            data = self.job.outgoing[self.started]
            self.wire.link.memory[place : place + data.size] = data
            checked(self.wire.link.post_send(place, self.job.frame))
            self.started += 1

    def done(self) -> bool:
        return self.received == len(self.job.incoming) and self.sent == len(self.job.outgoing)

    def advance(self) -> None:
        for each in self.wire.link.poll():
            if each.status != SUCCESS:
                raise OSError(each.status, f"a completion on {self.wire.device.name} failed")
            if each.opcode == WC_RECV:
                place = self.wire.place(self.received % self.wire.depth, receiving=True)
                self.job.incoming[self.received](
                    self.wire.link.memory[place : place + self.job.frame]
                )
                self.received += 1
            else:
                self.sent += 1
        self.post_receives()
        self.post_sends()


def checked(status: int) -> None:
    if status != 0:
        raise OSError(status, f"a post was refused with {status}")


def run_jobs(jobs: list[Job]) -> None:
    runs = [Run(job) for job in jobs if job.outgoing or job.incoming]
    for each in runs:
        each.post_receives()
    for each in runs:
        each.post_sends()
    while not all(each.done() for each in runs):
        for each in runs:
            if not each.done():
                each.advance()


def pieces(data: Bytes, frame: int, steps: int) -> list[Bytes]:
    return [data[i * frame : (i + 1) * frame] for i in range(steps)]


def sinks(
    into: Bytes, frame: int, steps: int, take: Callable[[Bytes, Bytes], None]
) -> list[Callable[[Bytes], None]]:
    """Return what takes each message of a transfer: its part of `into`, and that much data."""

    def sink(part: Bytes) -> Callable[[Bytes], None]:
        return lambda data: take(part, data[: part.size])

    return [sink(part) for part in pieces(into, frame, steps)]


def copy(into: Bytes, data: Bytes) -> None:
    into[:] = data


# --- collectives


class Group:
    """What both topologies share. Arrays are int32; the regime decides the frames."""

    def __init__(self, rank: int, size: int, *, large: bool) -> None:
        self.rank, self.size, self.large = rank, size, large

    def frame(self, sizing: int) -> int:
        return frame_bytes(sizing, large=self.large)

    def steps(self, sizing: int) -> int:
        return ceil_div(sizing, self.frame(sizing))


class Mesh(Group):
    """A queue pair to every other rank."""

    def __init__(self, rank: int, size: int, wires: Mapping[int, Wire], *, large: bool) -> None:
        super().__init__(rank, size, large=large)
        self.wires = wires

    def _swap(self, outgoing: Mapping[int, Bytes], incoming: Mapping[int, Bytes]) -> None:
        """Send to each peer and receive from each; both of one size, which is the sizing length."""
        sizing = next(iter(incoming.values())).size
        frame, steps = self.frame(sizing), self.steps(sizing)
        run_jobs(
            [
                Job(
                    wire,
                    frame,
                    pieces(outgoing[peer], frame, steps),
                    sinks(incoming[peer], frame, steps, copy),
                )
                for peer, wire in self.wires.items()
            ]
        )

    def all_reduce(self, mine: NDArray[Any], operator: np.ufunc) -> NDArray[Any]:
        count = mine.size // self.size
        if self.size == 2 or mine.nbytes <= SMALL_BYTES:
            return self._reduce_whole(mine, operator)
        result = mine.copy()
        if count > 0:
            own = slice(self.rank * count, (self.rank + 1) * count)
            result[own] = self._reduce_part(mine, count, operator)
            parts = {p: result[p * count : (p + 1) * count].view(np.uint8) for p in self.wires}
            self._swap(dict.fromkeys(self.wires, result[own].view(np.uint8)), parts)
        rest = slice(count * self.size, mine.size)
        if mine.size % self.size:
            result[rest] = self._reduce_whole(mine[rest], operator)
        return result

    def _reduce_whole(self, mine: NDArray[Any], operator: np.ufunc) -> NDArray[Any]:
        everyone = {rank: np.empty_like(mine) for rank in range(self.size)}
        everyone[self.rank] = mine
        incoming = {peer: everyone[peer].view(np.uint8) for peer in self.wires}
        self._swap(dict.fromkeys(self.wires, mine.view(np.uint8)), incoming)
        result = everyone[0].copy()
        for rank in range(1, self.size):
            result = operator(result, everyone[rank])
        return result

    def _reduce_part(self, mine: NDArray[Any], count: int, operator: np.ufunc) -> NDArray[Any]:
        arrived = {peer: np.empty(count, mine.dtype) for peer in self.wires}
        outgoing = {p: mine[p * count : (p + 1) * count].view(np.uint8) for p in self.wires}
        self._swap(outgoing, {peer: part.view(np.uint8) for peer, part in arrived.items()})
        result = mine[self.rank * count : (self.rank + 1) * count]
        for peer in self.wires:
            result = operator(result, arrived[peer])
        return result

    def all_gather(self, mine: Ints) -> Ints:
        result = np.empty(self.size * mine.size, np.int32)
        parts = result.reshape(self.size, mine.size)
        parts[self.rank] = mine
        incoming = {peer: parts[peer].view(np.uint8) for peer in self.wires}
        self._swap(dict.fromkeys(self.wires, mine.view(np.uint8)), incoming)
        return result

    def sum_scatter(self, mine: Ints) -> Ints:
        return self._reduce_part(mine, mine.size // self.size, np.add)

    def send(self, data: Bytes, to: int) -> None:
        frame, steps = self.frame(data.size), self.steps(data.size)
        run_jobs([Job(self.wires[to], frame, pieces(data, frame, steps))])

    def receive(self, into: Bytes, source: int) -> None:
        frame, steps = self.frame(into.size), self.steps(into.size)
        run_jobs([Job(self.wires[source], frame, [], sinks(into, frame, steps, copy))])

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1, np.uint8), np.add)


class Ring(Group):
    """`wires` queue pairs to each neighbour; two directions at once."""

    def __init__(
        self, rank: int, size: int, left: list[Wire], right: list[Wire], *, large: bool
    ) -> None:
        super().__init__(rank, size, large=large)
        self.left, self.right = left, right
        self.wires = len(left)

    def _hop(
        self,
        directions: int,
        wires: int,
        sizing: int,
        outgoing: Callable[[int, int], Bytes],
        incoming: Callable[[int, int], Bytes],
        take: Callable[[Bytes, Bytes], None],
    ) -> None:
        """One hop: out on right and in on left is direction 0, the other way round 1.

        `outgoing` and `incoming` give the slice of (direction, wire).
        """
        frame, steps = self.frame(sizing), self.steps(sizing)
        jobs = []
        for wire in range(wires):
            right, left = Job(self.right[wire], frame), Job(self.left[wire], frame)
            for direction, (out, into) in enumerate(((right, left), (left, right))[:directions]):
                out.outgoing = pieces(outgoing(direction, wire), frame, steps)
                into.incoming = sinks(incoming(direction, wire), frame, steps, take)
            jobs += [right, left]
        run_jobs(jobs)

    def all_reduce(self, mine: NDArray[Any], operator: np.ufunc) -> NDArray[Any]:
        small = mine.nbytes <= SMALL_BYTES or mine.size < 2 * self.size * self.wires
        directions, wires = (1, 1) if small else (2, self.wires)
        chunk = ceil_div(mine.size, self.size)
        share = ceil_div(chunk, directions * wires)
        result = mine.copy()

        def part(number: int, direction: int, wire: int) -> Bytes:
            chunk_begin = number % self.size * chunk
            begin = chunk_begin + (direction * wires + wire) * share
            end = min(begin + share, chunk_begin + chunk, result.size)
            return result[min(begin, result.size) : max(end, min(begin, result.size))].view(
                np.uint8
            )

        def add(into: Bytes, data: Bytes) -> None:
            kept = into.view(mine.dtype)
            kept[:] = operator(kept, data.view(mine.dtype))

        rank, sizing = self.rank, share * mine.itemsize
        for hop in range(self.size - 1):
            sends, receives = (rank - hop, rank + hop), (rank - 1 - hop, rank + 1 + hop)
            self._pass(directions, wires, sizing, part, sends, receives, add)
        for hop in range(self.size - 1):
            sends, receives = (rank + 1 - hop, rank - 1 + hop), (rank - hop, rank + hop)
            self._pass(directions, wires, sizing, part, sends, receives, copy)
        return result

    def _pass(
        self,
        directions: int,
        wires: int,
        sizing: int,
        part: Callable[[int, int, int], Bytes],
        sends: tuple[int, int],
        receives: tuple[int, int],
        take: Callable[[Bytes, Bytes], None],
    ) -> None:
        self._hop(
            directions,
            wires,
            sizing,
            lambda direction, wire: part(sends[direction], direction, wire),
            lambda direction, wire: part(receives[direction], direction, wire),
            take,
        )

    def all_gather(self, mine: Ints) -> Ints:
        result = np.empty(self.size * mine.size, np.int32)
        blocks = result.reshape(self.size, mine.size)
        blocks[self.rank] = mine
        raw = blocks.view(np.uint8)
        share = ceil_div(mine.nbytes, 2 * self.wires)

        def part(number: int, direction: int, wire: int) -> Bytes:
            begin = (direction * self.wires + wire) * share
            return raw[number % self.size, begin : begin + share]

        rank = self.rank
        for hop in range(self.size - 1):
            sends, receives = (rank - hop, rank + hop), (rank - 1 - hop, rank + 1 + hop)
            self._pass(2, self.wires, share, part, sends, receives, copy)
        return result

    def sum_scatter(self, mine: Ints) -> Ints:
        chunk = mine.size // self.size
        small = chunk * 4 <= SCATTER_SMALL_BYTES or mine.size < 2 * self.size * self.wires
        wires = 1 if small else self.wires
        share = ceil_div(chunk, 2 * wires)
        partial = mine.reshape(self.size, chunk).copy()

        def part(number: int, direction: int, wire: int) -> Bytes:
            begin = (direction * wires + wire) * share
            return partial[number % self.size, begin : begin + share].view(np.uint8)

        def add(into: Bytes, data: Bytes) -> None:
            into.view(np.int32)[:] += data.view(np.int32)

        rank = self.rank
        for hop in range(self.size - 1):
            sends, receives = (rank - 1 - hop, rank + 1 + hop), (rank - 2 - hop, rank + 2 + hop)
            self._pass(2, wires, share * 4, part, sends, receives, add)
        return partial[self.rank, :].copy()

    def _shares(self, data: Bytes) -> Iterator[tuple[int, Bytes]]:
        share = ceil_div(data.size, self.wires)
        for wire in range(self.wires):
            yield wire, data[wire * share : (wire + 1) * share]

    def send(self, data: Bytes, to: int) -> None:
        out = self.left if to == (self.rank - 1) % self.size else self.right
        frame = self.frame(ceil_div(data.size, self.wires))
        run_jobs(
            [
                Job(out[wire], frame, pieces(part, frame, ceil_div(part.size, frame)))
                for wire, part in self._shares(data)
            ]
        )

    def receive(self, into: Bytes, source: int) -> None:
        wires = self.right if source == (self.rank + 1) % self.size else self.left
        frame = self.frame(ceil_div(into.size, self.wires))
        run_jobs(
            [
                Job(wires[wire], frame, [], sinks(part, frame, ceil_div(part.size, frame), copy))
                for wire, part in self._shares(into)
            ]
        )

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1, np.uint8), np.add)


# --- joining


def names_of(cell: str | list[str] | None) -> list[str]:
    if cell is None:
        return []
    return [cell] if isinstance(cell, str) else cell


def is_mesh(matrix: list[list[list[str]]]) -> bool:
    return all(bool(cell) != (i == j) for i, row in enumerate(matrix) for j, cell in enumerate(row))


def join(environ: Mapping[str, str], *, large: bool, depth: int) -> tuple[Mesh | Ring, Any]:
    """Return the group, and the side channel, which has to stay open."""
    rank = int(environ["JACCL_RANK"])
    rows = json.loads(Path(environ["JACCL_IBV_DEVICES"]).read_text(encoding="utf-8"))
    matrix = [[names_of(cell) for cell in row] for row in rows]
    size = len(matrix)
    channel = SideChannel(rank, size, environ["JACCL_COORDINATOR"])
    library = load("librdma.dylib")
    if is_mesh(matrix) and "JACCL_RING" not in environ:
        return join_mesh(library, channel, matrix, large=large, depth=depth), channel
    return join_ring(library, channel, matrix, large=large, depth=depth), channel


def join_mesh(
    library: Any, channel: SideChannel, matrix: list[list[list[str]]], *, large: bool, depth: int
) -> Mesh:
    me, size = channel.rank, channel.size
    wires = {p: Wire(library, matrix[me][p][0], depth) for p in range(size) if p != me}
    nobody = RECORD.pack(-1, 0, 0, bytes(16))
    mine = [wires[p].record() if p != me else nobody for p in range(size)]
    everyone = channel.exchange_records(mine)
    for peer, wire in wires.items():
        wire.connect(everyone[peer][me])
    channel.barrier()
    channel.barrier()
    return Mesh(me, size, wires, large=large)


def join_ring(
    library: Any, channel: SideChannel, matrix: list[list[list[str]]], *, large: bool, depth: int
) -> Ring:
    me, size = channel.rank, channel.size
    before, after = (me - 1) % size, (me + 1) % size
    left = [Wire(library, name, depth) for name in matrix[me][before]]
    right = [Wire(library, name, depth) for name in matrix[me][after]]
    all_left = channel.exchange_records([each.record() for each in left])
    all_right = channel.exchange_records([each.record() for each in right])
    for i, wire in enumerate(left):
        wire.connect(all_right[before][i])
    for i, wire in enumerate(right):
        wire.connect(all_left[after][i])
    channel.barrier()
    channel.barrier()
    return Ring(me, size, left, right, large=large)


# --- what the command line asks for


def data_of(rank: int, serial: int, count: int) -> Ints:
    """Return numbers that tell rank, index and operation apart, and whose sums wrap around."""
    indices = np.arange(count, dtype=np.int64)
    return ((rank + 1) * 1_000_003 + serial * 7919 + indices * (rank * 31 + 17)).astype(np.int32)


def carry_out(group: Mesh | Ring, words: list[str], serial: int) -> float:
    """Do one operation and compare its result with the answer; return what it alone took."""
    rank, size = group.rank, group.size
    name = words[0]
    if name == "barrier":
        return timed(group.barrier)[1]
    count = int(words[-1])
    if name == "send":
        source, to = int(words[1]), int(words[2])
        data = data_of(source, serial, count)
        if rank == source:
            return timed(lambda: group.send(data.view(np.uint8), to))[1]
        if rank != to:
            return 0.0
        into = np.empty(count, np.int32)
        _, seconds = timed(lambda: group.receive(into.view(np.uint8), source))
        compare(name, into, data)
        return seconds
    everyone = [
        data_of(each, serial, count * (size if name == "sum_scatter" else 1))
        for each in range(size)
    ]
    mine = everyone[rank]
    if name in ("all_sum", "all_max", "all_min"):
        operator = {"all_sum": np.add, "all_max": np.maximum, "all_min": np.minimum}[name]
        result, seconds = timed(lambda: group.all_reduce(mine, operator))
        answer = operator.reduce(everyone, dtype=np.int32)
    elif name == "all_gather":
        result, seconds = timed(lambda: group.all_gather(mine))
        answer = np.concatenate(everyone)
    elif name == "sum_scatter":
        result, seconds = timed(lambda: group.sum_scatter(mine))
        answer = np.add.reduce(everyone, dtype=np.int32).reshape(size, count)[rank]
    else:
        raise ValueError(f"there is no operation {name!r}")
    compare(name, result, answer)
    return seconds


def timed(operation: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result, and how many seconds it took."""
    began = time.perf_counter()
    result = operation()
    return result, time.perf_counter() - began


def compare(name: str, got: Ints, wanted: Ints) -> None:
    wrong = np.flatnonzero(got != wanted)
    if wrong.size:
        at = int(wrong[0])
        raise AssertionError(
            f"{name}: {wrong.size} of {got.size} elements are wrong, the first at {at}:"
            f" {got[at]}, not {wanted[at]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("operations", nargs="*")
    parser.add_argument("--regime", choices=["old", "new"], default="new")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--say", action="store_true")
    options = parser.parse_args()
    group, _channel = join(os.environ, large=options.regime == "new", depth=options.depth)
    for serial in range(options.repeat):
        for each in options.operations:
            seconds = carry_out(group, each.split(":"), serial)
            if options.say:
                print("done", each, f"{seconds:.6f}", flush=True)
    group.barrier()
    wires = group.wires.values() if isinstance(group, Mesh) else [*group.left, *group.right]
    for wire in wires:
        wire.close()


if __name__ == "__main__":
    main()
