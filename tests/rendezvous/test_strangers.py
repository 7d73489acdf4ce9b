"""Whoever else connects - scanners, garbage, the slow, the silent - breaks and delays nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from standfast.rendezvous import door, handshake, protocol
from standfast.rendezvous.protocol import Begin, Challenge, Hello, Reader, Refused
from tests.rendezvous.processes import Rank, Ranks, assert_formed

KEY = b"sixteen bytes or more"
OPENING_BYTES = len(protocol.OPENING)


class Stranger:
    """A plain socket that knows the frames, and how to break them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host.strip("[]"), int(port)), timeout=10)

    def read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.sock.recv(count - len(data))
            if not part:
                raise EOFError(data)
            data += part
        return data

    def opening(self) -> bytes:
        return self.read_exactly(OPENING_BYTES)

    def frame(self) -> bytes:
        (length,) = protocol.LENGTH.unpack(self.read_exactly(protocol.LENGTH.size))
        return self.read_exactly(length)

    def challenge(self) -> Challenge:
        assert self.opening() == protocol.OPENING
        return Reader[Challenge](Challenge).read(self.frame())

    def refusal(self) -> Refused:
        return Reader[Refused](Refused).read(self.frame())

    def is_ended(self) -> bool:
        """Wait for the other side to end the connection."""
        try:
            while self.sock.recv(4096):
                pass
        except ConnectionError:
            pass
        return True


@pytest.fixture
def strangers() -> Iterator[Callable[[str], Stranger]]:
    with contextlib.ExitStack() as stack:

        def connect(address: str) -> Stranger:
            stranger = Stranger(address)
            stack.enter_context(stranger.sock)
            return stranger

        yield connect


@pytest.fixture
def first(ranks: Ranks) -> Rank:
    """Rank 0 of a group of 3, listening."""
    first = ranks.start(0, 3)
    first.reached("listening")
    return first


def begin(challenge: Challenge, **changes: object) -> Begin:
    """Return an answer as rank 1 would give it, but for `changes`."""
    hello = Hello("v", 3, 1, True, "", None, {}, "host", "id", 1, 1, ["127.0.0.1"], False)
    values: dict[str, object] = {
        "purpose": "control",
        "rank": 1,
        "target": 0,
        "nonce": handshake.nonce(),
        "keyed": False,
        "body": protocol.encode(hello),
        "proof": b"",
    }
    return Begin(**{**values, **changes})  # type: ignore[arg-type] # some are wrong on purpose


def complete(ranks: Ranks, first: Rank, **options: object) -> None:
    """The group forms, promptly."""
    since = time.monotonic()
    others = [ranks.start(rank, 3, **options) for rank in (1, 2)]  # type: ignore[arg-type]
    outcomes = assert_formed([first, *others])
    assert max(outcome.ended for outcome in outcomes) - since < 5


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "jaccl": (1).to_bytes(4, "little"),
    "huge frame": protocol.OPENING + b"\xff\xff\xff\xff",
    "empty frame": protocol.OPENING + bytes(4),
    "no msgpack": protocol.OPENING + protocol.LENGTH.pack(5) + b"\xc1\xc1\xc1\xc1\xc1",
    "another message": protocol.OPENING + protocol.frame(protocol.Go()),
    "deep": protocol.OPENING + protocol.LENGTH.pack(6000) + b"\x91" * 6000,
    "nothing": b"",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage(
    ranks: Ranks, first: Rank, strangers: Callable[[str], Stranger], kind: str
) -> None:
    """Bytes that are none of ours end that connection and nothing else."""
    stranger = strangers(ranks.address)
    stranger.sock.sendall(GARBAGE[kind])
    if kind in ("jaccl", "nothing"):
        # Too little to judge it by: it is simply not waited for.
        complete(ranks, first)
        return
    assert stranger.is_ended()
    complete(ranks, first)


def test_random_garbage(ranks: Ranks, first: Rank, strangers: Callable[[str], Stranger]) -> None:
    """Random bytes, behind a right beginning, never harm rank 0."""
    for length in (1, 2, 11, 12, 13, 100, 1000, 5000):
        for beginning in (b"", protocol.OPENING, protocol.OPENING + protocol.LENGTH.pack(length)):
            stranger = strangers(ranks.address)
            with contextlib.suppress(ConnectionError):
                stranger.sock.sendall(beginning + os.urandom(length))
            stranger.sock.close()
    complete(ranks, first)


def test_silent_and_half_open_connections(
    ranks: Ranks, first: Rank, strangers: Callable[[str], Stranger]
) -> None:
    """Connections that say nothing, or just begin, delay nobody; too many lose the oldest."""
    silent = [strangers(ranks.address) for _ in range(door.strangers_max(3) + 20)]
    for stranger in silent[::3]:
        stranger.sock.sendall(protocol.OPENING[:5])
    assert silent[0].is_ended()
    complete(ranks, first)


def test_a_reset_connection(
    ranks: Ranks, first: Rank, strangers: Callable[[str], Stranger]
) -> None:
    """Connections that are reset at once are no event."""
    for _ in range(20):
        stranger = strangers(ranks.address)
        stranger.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stranger.sock.close()
    complete(ranks, first)


def test_a_slow_rank_is_a_rank(
    ranks: Ranks, first: Rank, strangers: Callable[[str], Stranger]
) -> None:
    """A frame that comes byte by byte is read like any other."""
    stranger = strangers(ranks.address)
    data = protocol.OPENING + protocol.frame(begin(stranger.challenge()))
    for byte in data:
        stranger.sock.sendall(bytes([byte]))
    assert "runs standfast v" in stranger.refusal().text
    complete(ranks, first)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"purpose": "data"}, "not the data port of rank 0"),
        ({"target": 2}, "not the control port of rank 2"),
        ({"keyed": True}, "has a key and rank 0 has none"),
        ({"proof": b"x"}, "has another key"),
        ({"body": b"\xc1"}, "an unexpected frame"),
        ({"body": b"\x93\x01\x02\x03"}, "an unexpected frame"),
        ({"rank": 0}, "standfast v"),
        ({"rank": 2**31 - 1}, "standfast v"),
    ],
)
def test_a_wrong_answer_is_refused(
    ranks: Ranks,
    first: Rank,
    strangers: Callable[[str], Stranger],
    changes: dict[str, object],
    words: str,
) -> None:
    """Each thing that is wrong with an answer is said, and the connection ended."""
    stranger = strangers(ranks.address)
    answer = begin(stranger.challenge(), **changes)
    stranger.sock.sendall(protocol.OPENING + protocol.frame(answer))
    assert words in stranger.refusal().text
    assert stranger.is_ended()
    complete(ranks, first)


def test_without_the_key_there_is_no_way_in(
    ranks: Ranks, strangers: Callable[[str], Stranger]
) -> None:
    """No answer without the key is taken: none, a wrong one, one of another connection."""
    first = ranks.start(0, 3, key=KEY)
    first.reached("listening")
    other = strangers(ranks.address).challenge()
    for proof in ("", "own", "other connection"):
        stranger = strangers(ranks.address)
        challenge = stranger.challenge()
        assert challenge.keyed
        secret = (
            None if not proof else KEY if proof == "other connection" else b"a guess of 16 bytes"
        )
        bare = begin(challenge, keyed=True)
        nonce = other.nonce if proof == "other connection" else challenge.nonce
        made = handshake.prove(secret, handshake.CONNECTS, nonce, bare)
        answer = begin(challenge, keyed=True, nonce=bare.nonce, proof=made)
        stranger.sock.sendall(protocol.OPENING + protocol.frame(answer))
        assert "another key" in stranger.refusal().text
    complete(ranks, first, key=KEY)


def test_a_reflected_proof_is_worthless(ranks: Ranks, strangers: Callable[[str], Stranger]) -> None:
    """A false coordinator that sends a rank's own proof back to it is not believed."""
    with socket.create_server(("127.0.0.1", 0)) as false:
        victim = ranks.start(1, 2, coordinator=f"127.0.0.1:{false.getsockname()[1]}", key=KEY)
        sock, _ = false.accept()
    with sock:
        stranger = Stranger.__new__(Stranger)
        stranger.sock = sock
        challenge = Challenge(handshake.nonce(), True, True)
        sock.sendall(protocol.OPENING + protocol.frame(challenge))
        assert stranger.opening() == protocol.OPENING
        answer = Reader[Begin](Begin).read(stranger.frame())
        sock.sendall(protocol.frame(protocol.Joined(answer.proof)))
        outcome = victim.outcome()
    assert "did not prove that it has the key" in str(outcome.error)
    assert outcome.leaked == []


def test_a_service_that_is_not_standfast(ranks: Ranks) -> None:
    """A rank that is sent to some other service is told at once what it found."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        address = f"127.0.0.1:{service.getsockname()[1]}"
        rank = ranks.start(1, 2, coordinator=address)
        sock, _ = service.accept()
    with sock:
        sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        outcome = rank.outcome()
    assert address in str(outcome.error)
    assert "not standfast" in str(outcome.error)
    assert "SSH-2.0" in str(outcome.error)


def test_a_coordinator_that_hangs_up_is_tried_again(ranks: Ranks) -> None:
    """A connection that breaks before it has led to anything is made anew."""
    host, _, port = ranks.address.rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        rank = ranks.start(1, 2, talk=True)
        for _ in range(3):
            listener.accept()[0].close()
    assert_formed([ranks.start(0, 2, talk=True), rank])


def test_a_stranger_on_a_data_port(ranks: Ranks, strangers: Callable[[str], Stranger]) -> None:
    """A data port takes nobody who does not hold the group's token, key or no key."""
    team = [ranks.start(rank, 3, hold_at=("table",) if rank == 2 else ()) for rank in range(3)]
    team[2].reached("table")
    for port in data_ports(team[1].pid):
        stranger = strangers(f"127.0.0.1:{port}")
        challenge = stranger.challenge()
        assert challenge.keyed
        answer = begin(challenge, purpose="data", rank=2, target=1, keyed=True, body=b"")
        stranger.sock.sendall(protocol.OPENING + protocol.frame(answer))
        assert "another key" in stranger.refusal().text
    team[2].go_on()
    assert_formed(team)


def data_ports(pid: int) -> list[int]:
    """Return the ports on which a process listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    ports = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            for line in list(file)[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.append(int(words[1].rpartition(":")[2], 16))
    assert ports
    return ports
