"""The side channel against scripted peers: byte for byte, and whatever else may knock."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast import ConfigError, PeerDied, RendezvousError
from standfast.jaccl import Config, proof
from standfast.jaccl.records import MARK, NOBODY, Record, pack_list, unpack_list
from standfast.jaccl.sidechannel import SideChannel, open_channel
from standfast.rendezvous.loop import Loop
from tests.jaccl.mixed import free_port

GID = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1])
KEY = b"0123456789abcdef"


def config(rank: int, size: int, port: int, **more: Any) -> Config:
    rows = [[None if i == j else f"d{j}" for j in range(size)] for i in range(size)]
    more = {"coordinator": f"127.0.0.1:{port}"} | more
    return Config(rank=rank, devices=rows, **more)


class Party:
    """One of our ranks, in a thread; result() is what its script returned, or raises."""

    def __init__(
        self,
        its: Config,
        script: Callable[[SideChannel], Any],
        timeout_s: float = 10,
        key: bytes | None = None,
    ) -> None:
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def run() -> None:
            try:
                with Loop(timeout_s) as loop:
                    channel = open_channel(loop, its, key)
                    channel.meet()
                    self._answers.put(script(channel))
            except BaseException as error:  # noqa: BLE001 - handed to the test
                self._answers.put(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def result(self) -> Any:
        answer = self._answers.get(timeout=20)
        self._thread.join()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def dial(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    until = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.005)


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, f"closed after {data!r}"
        data += more
    return data


def is_closed(sock: socket.socket) -> bool:
    """Tell whether the other end closes, within a while."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


@contextlib.contextmanager
def accepted(port: int) -> Iterator[socket.socket]:
    """Be rank 0: listen, and take the first that comes."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(10)
        sock, _ = listener.accept()
        sock.settimeout(10)
        with sock:
            yield sock


def record(number: int) -> Record:
    return Record(0, number, 7, GID)


def gather(channel: SideChannel) -> tuple[Any, ...]:
    """Do what a mesh of three does; return what was seen."""
    rank = channel._rank
    own = [record(100 * rank + peer) for peer in range(3)]
    own[rank] = NOBODY
    lists = channel.exchange_list(own, "queue pairs")
    channel.barrier("ready")
    channel.barrier("end")
    return lists, channel.control()


def test_a_record_has_32_bytes() -> None:
    """lid, queue pair, PSN, four bytes of no meaning to stock, and the GID in network order."""
    packed = pack_list([Record(3, 0x1234, 7, GID)], 2)
    assert packed == struct.pack("<iii4s16s", 3, 0x1234, 7, MARK, GID) + bytes(32)
    assert unpack_list(packed, 1) == [Record(3, 0x1234, 7, GID)]
    foreign = struct.pack("<iii4s16s", 3, 5, 7, b"\1\2\3\4", GID)
    assert unpack_list(foreign, 1) == [Record(3, 5, 7, GID, b"\1\2\3\4")]


def test_rank_0_byte_for_byte() -> None:
    """Rank 0 reads hellos in any order, collects in the order of ranks, and answers to all."""
    port = free_port()
    party = Party(config(0, 3, port), gather)
    two, one = dial(port), dial(port)
    two.sendall(struct.pack("<i", 2))
    one.sendall(struct.pack("<i", 1))
    number = struct.pack("<i", 3)
    lists = {rank: bytes([rank]) * 96 for rank in (1, 2)}
    for rank, sock in ((2, two), (1, one)):
        sock.sendall(number + lists[rank][:50])  # in pieces, as the network likes
    for sock in (one, two):
        assert receive(sock, 12) == 3 * number
    for rank, sock in ((1, one), (2, two)):
        sock.sendall(lists[rank][50:])
    for sock in (one, two):
        got = receive(sock, 288)
        ours = pack_list([NOBODY, record(1), record(2)], 3)
        assert got == ours + lists[1] + lists[2]
        assert struct.unpack_from("<i", got, 0) == (-1,)
    for _ in range(2):
        for sock in (one, two):
            sock.sendall(bytes(4))
        assert receive(one, 12) == receive(two, 12) == bytes(12)
    _, control = party.result()
    assert [rank for rank, _ in control] == [1, 2]
    # The connections stay open, and nothing more is ever said on them.
    one.setblocking(False)
    with pytest.raises(BlockingIOError):
        one.recv(1)
    for _, descriptor in control:
        socket.socket(fileno=descriptor).close()
    for sock in (one, two):
        sock.close()


def test_another_rank_byte_for_byte() -> None:
    """Another rank says 4 bytes at once, and reads what rank 0 sends to all."""
    port = free_port()
    party = Party(config(2, 3, port), gather)
    with accepted(port) as sock:
        assert receive(sock, 4) == struct.pack("<i", 2)
        assert receive(sock, 4) == struct.pack("<i", 3)
        sock.sendall(3 * struct.pack("<i", 3))
        ours = receive(sock, 96)
        assert ours == pack_list([record(200), record(201), NOBODY], 3)
        theirs = [bytes([rank]) * 96 for rank in (1, 2)]
        sock.sendall(theirs[0] + theirs[1] + ours)
        for _ in range(2):
            assert receive(sock, 4) == bytes(4)
            sock.sendall(bytes(12))
        lists, control = party.result()
        assert lists[2] == [record(200), record(201), NOBODY]
        assert [rank for rank, _ in control] == [0]
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        socket.socket(fileno=control[0][1]).close()


STRAYS: dict[str, bytes] = {
    "silent": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half": b"\1\0",
    "zero": struct.pack("<i", 0),
    "size": struct.pack("<i", 3),
    "large": struct.pack("<i", 100_000_000),
    "negative": struct.pack("<i", -5),
}


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("stray", STRAYS)
def test_strays_do_no_harm(stray: str, closes: bool) -> None:
    """What crashes or blocks stock's rank 0 does nothing to ours: the true ranks get in."""
    port = free_port()
    party = Party(config(0, 3, port), lambda channel: channel.exchange(b"a", "test"))
    intruder = dial(port)
    intruder.sendall(STRAYS[stray])
    if closes:
        intruder.close()
    ranks = {}
    for rank in (1, 2):
        ranks[rank] = dial(port)
        ranks[rank].sendall(struct.pack("<i", rank) + b"bc"[rank - 1 : rank])
    assert party.result() == [b"a", b"b", b"c"]
    assert receive(ranks[1], 3) == b"abc"
    for sock in ranks.values():
        sock.close()
    if not closes:
        assert is_closed(intruder)
        intruder.close()


def test_a_rank_that_comes_twice() -> None:
    """The first of two with the same number stays; the second is turned away, and told of."""
    port = free_port()
    party = Party(config(0, 3, port), gather, timeout_s=0.8)
    first, second = dial(port), None
    first.sendall(struct.pack("<i", 1))
    second = dial(port)
    second.sendall(struct.pack("<i", 1))
    assert is_closed(second)
    with pytest.raises(RendezvousError, match=r"rank 2 has not come.*said that it is rank 1"):
        party.result()
    first.close()
    second.close()


def test_a_rank_that_comes_again() -> None:
    """A rank whose connection broke while others are missing may come again."""
    port = free_port()
    party = Party(config(0, 3, port), lambda channel: channel.exchange(b"a", "test"))
    with dial(port) as sock:
        sock.sendall(struct.pack("<i", 1))
    with dial(port) as one, dial(port) as two:
        one.sendall(struct.pack("<i", 1) + b"b")
        two.sendall(struct.pack("<i", 2) + b"c")
        assert receive(one, 3) == receive(two, 3) == b"abc"
        assert party.result() == [b"a", b"b", b"c"]


def test_those_who_do_not_come_are_named() -> None:
    """After the deadline the error names the missing ranks, and what was there instead."""
    port = free_port()
    party = Party(config(0, 4, port), gather, timeout_s=0.6)
    with dial(port) as sock, dial(port) as silent:
        sock.sendall(struct.pack("<i", 2))
        with pytest.raises(RendezvousError) as caught:
            party.result()
        assert silent.fileno() >= 0
    error = caught.value
    assert error.missing == [1, 3]
    assert f"ranks 1, 3 have not come to 127.0.0.1:{port}" in str(error)
    assert any("says nothing" in each for each in error.evidence)


def test_a_rank_that_dies_while_forming_is_named() -> None:
    """A rank that said hello and ends is PeerDied at once, not a number without meaning."""
    port = free_port()
    party = Party(config(0, 3, port), gather)
    one, two = dial(port), dial(port)
    one.sendall(struct.pack("<i", 1))
    two.sendall(struct.pack("<i", 2) + struct.pack("<i", 3))
    one.sendall(struct.pack("<i", 3))
    assert receive(one, 12) == 3 * struct.pack("<i", 3)
    two.close()
    with pytest.raises(PeerDied, match=r"rank 2 on 127.0.0.1 ended .*exchange of queue pairs") as e:
        party.result()
    assert (e.value.rank, e.value.here, e.value.op) == (2, 0, "init")
    assert is_closed(one) or receive(one, 0) == b""
    one.close()


def test_rank_0_that_ends_is_named() -> None:
    """The others see rank 0's end, whoever failed."""
    port = free_port()
    party = Party(config(1, 3, port), gather)
    with accepted(port) as sock:
        receive(sock, 8)
    with pytest.raises(PeerDied, match="ends so as well when any other rank has failed") as caught:
        party.result()
    assert caught.value.rank == 0


def test_a_rank_that_does_not_go_on() -> None:
    """A rank that said hello and then nothing is named when the time is over."""
    port = free_port()
    party = Party(config(0, 3, port), gather, timeout_s=0.6)
    with dial(port) as one, dial(port) as two:
        one.sendall(struct.pack("<i", 1))
        two.sendall(struct.pack("<i", 2) + struct.pack("<i", 3))
        with pytest.raises(RendezvousError, match="rank 0 waits for rank 1 in the exchange") as e:
            party.result()
    assert e.value.missing == [1]


def test_no_rank_0() -> None:
    """Without a rank 0 the others stop at the deadline, and say how often they tried."""
    port = free_port()
    party = Party(config(1, 2, port), gather, timeout_s=0.5)
    with pytest.raises(RendezvousError, match=r"could not reach rank 0 .* ECONNREFUSED") as caught:
        party.result()
    assert caught.value.attempts is not None
    assert caught.value.attempts > 1


@pytest.mark.parametrize("announced", [2, 0, -1, 1 << 30])
def test_another_topology(announced: int) -> None:
    """A rank with another number of queue pairs forms another mesh or ring: said, not read."""
    port = free_port()
    party = Party(config(0, 2, port), lambda c: c.exchange_list([record(1)], "queue pairs"))
    with dial(port) as sock:
        sock.sendall(struct.pack("<ii", 1, announced))
        with pytest.raises(ConfigError, match=f"rank 1 announces {announced} queue pairs") as e:
            party.result()
    assert e.value.rank == 1


def test_a_port_that_is_taken() -> None:
    """A coordinator never shares its port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        party = Party(config(0, 2, port), gather, timeout_s=0.5)
        with pytest.raises(RendezvousError, match=r"cannot listen on .*EADDRINUSE"):
            party.result()


def test_many_strangers_do_not_use_it_up() -> None:
    """The oldest of too many silent connections makes room."""
    port = free_port()
    party = Party(config(0, 2, port), lambda channel: channel.exchange(b"a", "test"))
    silent = [dial(port) for _ in range(300)]
    with dial(port) as sock:
        sock.sendall(struct.pack("<i", 1) + b"b")
        assert receive(sock, 2) == b"ab"
    assert party.result() == [b"a", b"b"]
    for each in silent:
        each.close()


def test_keys() -> None:
    """With a key both ends prove themselves; JACCL's bytes follow."""
    port = free_port()
    parties = [
        Party(config(rank, 2, port), lambda c: c.exchange(b"x", "test"), key=KEY)
        for rank in range(2)
    ]
    assert [party.result() for party in parties] == [[b"x", b"x"]] * 2


def test_a_wrong_key() -> None:
    """A rank with another key is turned away on both ends; a stock rank, too."""
    port = free_port()
    right = Party(config(0, 2, port), gather, timeout_s=1.0, key=KEY)
    wrong = Party(config(1, 2, port), gather, timeout_s=1.0, key=KEY[::-1])
    with dial(port) as stock:
        stock.sendall(struct.pack("<i", 1))
        with pytest.raises(ConfigError, match="does not have the key of rank 1"):
            wrong.result()
        with pytest.raises(RendezvousError, match=r"rank 1 has not come.*does not have the key"):
            right.result()


def test_a_proof_is_of_no_use_elsewhere() -> None:
    """A proof belongs to its nonces, its rank and its side."""
    challenge, own = proof.nonce(), proof.nonce()
    good = proof.answer(KEY, challenge, own, 1)
    back = proof.check(KEY, challenge, good)
    assert back is not None
    assert proof.proves_rank_0(KEY, challenge, own, 1, back)
    assert not proof.proves_rank_0(KEY, challenge, own, 1, good[-32:])
    assert not proof.proves_rank_0(KEY, challenge, own, 2, back)
    assert proof.check(KEY, proof.nonce(), good) is None
    assert proof.check(KEY, challenge, struct.pack("<i", 2) + good[4:]) is None


def test_a_function_of_the_users() -> None:
    """all_gather takes the place of connections; what it returns is checked."""
    its = config(0, 2, 1, coordinator=None, all_gather=lambda data: [data, data[::-1]])
    with Loop(5) as loop:
        channel = open_channel(loop, its, None)
        channel.meet()
        assert channel.exchange(b"ab", "test") == [b"ab", b"ba"]
        assert channel.control() == []
    bad = config(0, 2, 1, coordinator=None, all_gather=lambda data: [data, data[1:]])
    with Loop(5) as loop, pytest.raises(ConfigError, match="pieces of 2, 1 bytes"):
        open_channel(loop, bad, None).exchange(b"ab", "test")
