"""The tool itself: what is cut carries nothing, all else does, and nothing stays."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.network.conftest import skip_or_fail
from tests.network.faults import BOTH, IN, OUT, Cut, Faults
from tests.network.hosts import CONTROL, DATA, NETWORKS, Hosts, Way, address_of
from tests.network.namespaces import CommandFailed
from tests.ranks import ROOT


def carried(network: Faults) -> set[Way]:
    return set(network.hosts.carried(network.hosts.ways()))


def check_stopped(cut: Cut, ours: dict[str, int]) -> None:
    """Check how many packets were stopped: ours, and few of the kernel's (who has which MAC)."""
    stopped = cut.stopped()
    assert stopped.keys() == ours.keys()
    for direction, count in ours.items():
        assert count <= stopped[direction] <= count + 6, f"{stopped}, of ours {ours}"


def test_whole(network: Faults) -> None:
    """Without a fault every way carries packets."""
    assert carried(network) == set(network.hosts.ways())


@pytest.mark.parametrize("networks", [[CONTROL], [DATA], list(NETWORKS)], ids="+".join)
@pytest.mark.parametrize("directions", [[IN], [OUT], list(BOTH)], ids="+".join)
def test_cut(network: Faults, networks: list[str], directions: list[str]) -> None:
    """A cut stops what it names and nothing else; it counts what it stops; it can be healed."""
    cut = network.cut(2, networks, directions)
    lost = {
        (sender, receiver, way)
        for sender, receiver, way in network.hosts.ways()
        if way in networks
        and ((receiver == 2 and IN in directions) or (sender == 2 and OUT in directions))
    }
    assert carried(network) == set(network.hosts.ways()) - lost
    check_stopped(cut, dict.fromkeys(directions, 3 * len(networks)))
    cut.took_effect()
    network.heal()
    assert carried(network) == set(network.hosts.ways())


def test_cut_of_a_pair(network: Faults) -> None:
    """Only what two hosts exchange is stopped."""
    network.cut(1, [DATA], peers=[2])
    assert set(network.hosts.ways()) - carried(network) == {(1, 2, DATA), (2, 1, DATA)}


def test_partition(network: Faults) -> None:
    """Two halves: whole in themselves, nothing between them."""
    network.partition([0, 1], [2, 3])
    within = {way for way in network.hosts.ways() if (way[0] < 2) == (way[1] < 2)}
    assert carried(network) == within


def test_no_effect_is_noticed(network: Faults) -> None:
    """A cut that has stopped nothing is no fault, and says so."""
    cut = network.cut(2, directions=[IN])
    with pytest.raises(AssertionError, match="did not take effect"):
        cut.took_effect()


def test_lose(network: Faults) -> None:
    """Some packets are lost, and some are not."""
    cut = network.lose(50)
    ways = network.hosts.ways()
    arrived = sum(len(network.hosts.carried(ways)) for _ in range(5))
    assert 0 < arrived < 5 * len(ways)
    check_stopped(cut, {OUT: 5 * len(ways) - arrived})


class Pipe:
    """A TCP connection from host 1 to host 2."""

    def __init__(self, hosts: Hosts) -> None:
        address = (address_of(2, DATA), 0)
        with hosts.members[2].call(lambda: socket.create_server(address)) as listener:
            to = listener.getsockname()
            self.near = hosts.members[1].call(lambda: socket.create_connection(to, timeout=5.0))
            self.far, _ = listener.accept()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.near.close()
        self.far.close()


def hears(sock: socket.socket, limit_s: float) -> bool:
    return bool(select.select([sock], [], [], limit_s)[0])


def test_vanish(network: Faults) -> None:
    """A host that vanishes says nothing more: not even that its connections are closed."""
    with Pipe(network.hosts) as pipe:
        cut = network.vanish(1)
        pipe.near.close()
        assert not hears(pipe.far, 0.3)
        assert not [way for way in carried(network) if 1 in way[:2]]
        cut.took_effect()
        network.heal()
        assert hears(pipe.far, 5.0), "the kernel sends FIN again and again: now it must arrive"


def test_reset(network: Faults) -> None:
    """Both ends of a connection that was reset hear of it at once; later ones are fine."""
    with Pipe(network.hosts) as pipe:
        network.reset(1, DATA, 2)
        with pytest.raises(ConnectionAbortedError):
            pipe.near.send(b"x")
        assert hears(pipe.far, 1.0)
        with pytest.raises(ConnectionResetError):
            pipe.far.recv(1)
    with Pipe(network.hosts) as pipe:
        pipe.near.send(b"x")
        assert pipe.far.recv(1) == b"x"
    with pytest.raises(AssertionError, match="no connection"):
        network.reset(1, DATA, 2)


def test_slow() -> None:
    """Slow cables let everything through, late and in order."""
    delay_s = 0.2
    try:
        hosts = Hosts(3, delay_s)
    except (OSError, CommandFailed) as error:
        skip_or_fail(error)
    with hosts, Pipe(hosts) as pipe:
        began_s = time.monotonic()
        words = os.urandom(20_000)
        pipe.near.sendall(words)
        assert hears(pipe.far, 5.0)
        assert time.monotonic() - began_s >= delay_s
        found = b""
        while len(found) < len(words):
            found += pipe.far.recv(len(words))
        assert found == words


def test_nothing_stays() -> None:
    """Namespaces go with the process that made them, also if it is killed."""
    code = """
import os, time
from tests.network.hosts import Hosts
hosts = Hosts(2, 0.05)
print(*[os.stat(host.path).st_ino for host in hosts.members], flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            made = {f"net:[{number}]" for number in process.stdout.readline().split()}
            if not made:
                skip_or_fail(CommandFailed("no namespaces were made"))
            held = holders(made, process.pid)
        finally:
            process.kill()
    assert len(made) == 2
    assert len(held) == 2, f"the process itself and that of its cables, not {held}"
    until = time.monotonic() + 10.0
    while left := holders(made, process.pid):
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.05)


def holders(namespaces: set[str], maker: int) -> set[int]:
    """Return the processes that hold one of these namespaces, or the cables of their maker."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            said = Path(f"/proc/{name}/cmdline").read_bytes()
            if b"tests.network.cable" in said and b"/proc/%d/" % maker in said:
                found.add(int(name))
            fds = [f"fd/{fd}" for fd in os.listdir(f"/proc/{name}/fd")]
            if namespaces & {os.readlink(f"/proc/{name}/{link}") for link in ("ns/net", *fds)}:
                found.add(int(name))
    return found
