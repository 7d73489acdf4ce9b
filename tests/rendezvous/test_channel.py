"""The loop and its channels: exact reads, bounded waits, nothing called too often."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from standfast.rendezvous import protocol
from standfast.rendezvous.channel import CLOSED, FOREIGN, OTHER_VERSION, Channel, End
from standfast.rendezvous.loop import READ, Loop
from standfast.rendezvous.protocol import Go, Ready, frame

ENOUGH_S = 10.0


class Pair:
    """A channel, and the plain socket at its other end."""

    def __init__(self, loop: Loop, frame_bytes_max: int = 1000) -> None:
        self.loop = loop
        ours, self.other = socket.socketpair()
        ours.setblocking(False)
        self.other.settimeout(ENOUGH_S)
        self.channel = Channel(loop, ours, frame_bytes_max=frame_bytes_max)
        self.frames: list[bytes] = []
        self.ends: list[End] = []
        self.channel.on_frame = self.frames.append
        self.channel.on_end = self.ends.append
        self.channel.start()

    def turn_until(self, count: int) -> None:
        """Turn until there are so many frames and ends."""
        deadline = time.monotonic() + ENOUGH_S
        while len(self.frames) + len(self.ends) < count:
            assert time.monotonic() < deadline
            self.loop.turn()


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop(60.0) as loop:
        yield loop


@pytest.fixture
def pair(loop: Loop) -> Iterator[Pair]:
    pair = Pair(loop)
    with pair.other:
        yield pair


def payload(message: object) -> bytes:
    return frame(message)[protocol.LENGTH.size :]  # type: ignore[arg-type] # any message


def test_frames_come_whole_however_they_are_cut(loop: Loop) -> None:
    """Every way to cut a stream into pieces gives the same frames."""
    stream = protocol.OPENING + frame(Go()) + frame(Ready())
    for cut in range(1, len(stream)):
        pair = Pair(loop)
        with pair.other:
            pair.other.sendall(stream[:cut])
            loop.turn(time.monotonic())
            pair.other.sendall(stream[cut:])
            pair.turn_until(2)
        assert pair.frames == [payload(Go()), payload(Ready())]
        pair.channel.close()


def test_nothing_is_read_beyond_the_last_frame(pair: Pair) -> None:
    """What follows the frame at which the channel is held stays for the next owner."""

    def hold(received: bytes) -> None:
        pair.frames.append(received)
        pair.channel.hold()

    pair.channel.on_frame = hold
    pair.other.sendall(protocol.OPENING + frame(Go()) + b"for the core")
    pair.turn_until(1)
    fd = pair.channel.detach()
    assert not os.get_blocking(fd)
    with socket.socket(fileno=fd) as sock:
        assert sock.recv(100) == b"for the core"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"HTTP/1.1 400", FOREIGN),
        (b"x", FOREIGN),
        (protocol.MAGIC + bytes([99]), OTHER_VERSION),
        (protocol.OPENING + b"\0\0\x10\0", FOREIGN),
        (protocol.OPENING + bytes(4), FOREIGN),
    ],
)
def test_what_is_not_ours_ends_the_channel(pair: Pair, data: bytes, kind: str) -> None:
    """Foreign bytes, other versions, and frames that are too long are told apart."""
    pair.other.sendall(data)
    pair.turn_until(1)
    assert [end.kind for end in pair.ends] == [kind]


def test_an_end_is_told_once_with_its_cause(pair: Pair) -> None:
    """A closed connection is an end, not an error, and not told twice."""
    pair.other.sendall(protocol.OPENING + frame(Go()))
    pair.other.close()
    pair.turn_until(2)
    for _ in range(3):
        pair.loop.turn(time.monotonic())
    assert pair.frames == [payload(Go())]
    assert pair.ends == [End(CLOSED, "connection closed")]


def test_a_large_frame_leaves_in_pieces(loop: Loop) -> None:
    """A frame larger than the socket's buffer is sent as the other side reads."""
    pair = Pair(loop)
    flushed: list[bool] = []
    body = bytes(4_000_000)
    with pair.other:
        pair.channel.send(body, lambda: flushed.append(True))
        assert not pair.channel.flushed()
        received = 0
        pair.other.setblocking(False)
        deadline = time.monotonic() + ENOUGH_S
        while received < len(protocol.OPENING) + len(body):
            assert time.monotonic() < deadline
            loop.turn(time.monotonic())
            try:
                received += len(pair.other.recv(1 << 20))
            except BlockingIOError:
                continue
        assert flushed == [True]
        assert pair.channel.flushed()


def test_the_last_words_arrive_though_the_other_side_has_talked(pair: Pair) -> None:
    """finish() lets what was sent be read, whatever is still unread here."""
    pair.other.sendall(protocol.OPENING + frame(Go()) * 100)
    pair.channel.send(frame(Ready()))
    pair.channel.finish()
    assert pair.other.recv(1000) == protocol.OPENING + frame(Ready())
    assert pair.other.recv(1000) == b""
    pair.other.close()
    deadline = time.monotonic() + ENOUGH_S
    while not pair.channel.closed:
        assert time.monotonic() < deadline
        pair.loop.turn()


def test_finishing_does_not_wait_for_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that never closes is left after the linger time."""
    monkeypatch.setattr("standfast.rendezvous.channel.LINGER_S", 0.02)
    pair.channel.finish()
    deadline = time.monotonic() + ENOUGH_S
    while not pair.channel.closed:
        assert time.monotonic() < deadline
        pair.loop.turn()


def test_sending_into_a_closed_connection_is_no_error(pair: Pair) -> None:
    """A broken connection shows when it is read."""
    pair.other.close()
    pair.channel.send(frame(Go()))
    pair.channel.send(frame(Go()))
    pair.turn_until(1)
    assert pair.ends[0].kind == CLOSED


def test_a_socket_closed_in_the_same_turn_is_not_called(loop: Loop) -> None:
    """One callback may end another connection that is ready as well."""
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def call(index: int) -> None:
        called.append(index)
        loop.drop(pairs[1 - index][0])

    for index, (ours, other) in enumerate(pairs):
        loop.adopt(ours)
        loop.watch(ours, READ, lambda events, index=index: call(index))  # type: ignore[misc]
        other.sendall(b"x")
    loop.turn()
    assert len(called) == 1
    for _, other in pairs:
        other.close()


def test_timers_run_in_order_and_not_when_cancelled(loop: Loop) -> None:
    """A timer runs once, after its time."""
    ran: list[str] = []
    loop.later(0.02, lambda: ran.append("late"))
    loop.later(0.01, lambda: ran.append("early"))
    loop.later(0.01, lambda: ran.append("never")).cancel()
    loop.pause(0.05)
    assert ran == ["early", "late"]


def test_leaving_closes_what_was_not_released() -> None:
    """Sockets end with the loop unless they were given away."""
    kept, dropped = socket.socketpair()
    with Loop(1.0) as loop:
        loop.adopt(kept)
        loop.adopt(dropped)
        loop.release(kept)
    assert dropped.fileno() == -1
    assert kept.fileno() >= 0
    kept.close()


def test_a_signal_handler_runs_between_turns(loop: Loop) -> None:
    """What it raises comes out of turn(), in a turn's time, and never from inside a callback."""
    seen: list[str] = []

    def callback() -> None:
        signal.raise_signal(signal.SIGINT)
        seen.append("callback ended")

    loop.later(0.0, callback)
    with pytest.raises(KeyboardInterrupt):
        loop.pause(1.0)
    assert seen == ["callback ended"]


def test_handlers_are_given_back() -> None:
    """After the loop a program's handlers are what they were, and have got their signals."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        mine = signal.getsignal(signal.SIGUSR1)
        with Loop(1.0):
            assert signal.getsignal(signal.SIGUSR1) is not mine
            signal.raise_signal(signal.SIGUSR1)
            assert got == []
        assert signal.getsignal(signal.SIGUSR1) is mine
        assert got == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
