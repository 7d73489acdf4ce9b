"""Hosts on one machine: namespaces, each joined to the others by a control and a data network.

    10.71.0.1 control --- control0 [bridge control] control1 --- control 10.71.0.2     and so on;
    10.72.0.1 data    --- data0    [bridge data]    data1    --- data    10.72.0.2     rank r's
    (host 0's own)        (all of these in the hub's namespace)          (host 1's)    host is r

Faults are put into the hub, where a switch would drop packets: no host's kernel is told. faults.py
has them; here is what is there before anything breaks.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Iterable, Iterator
from types import TracebackType

from tests.network.cable import SlowCables
from tests.network.namespaces import Namespace

CONTROL, DATA = NETWORKS = ("control", "data")
SUBNETS = {CONTROL: "10.71.0", DATA: "10.72.0"}
Way = tuple[int, int, str]
"""Sender, receiver, network."""
PROBE_S = 0.15
UP_S = 10.0


def address_of(host: int, network: str) -> str:
    return f"{SUBNETS[network]}.{host + 1}"


class Hosts:
    """Hosts 0 to count - 1, and the hub between them."""

    def __init__(self, count: int, delay_s: float = 0.0) -> None:
        """Build them; `delay_s`: how long each packet takes from one host to another."""
        self.count = count
        self.delay_s = delay_s
        self._probes: dict[tuple[int, str], socket.socket] = {}
        self._numbers = itertools.count()
        self._cables: SlowCables | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.hub = Namespace()
            self.members: list[Namespace] = []
            for _ in range(count):
                self.members.append(Namespace())
            if delay_s:
                # A packet goes through two of them, one on each side of the hub.
                self._cables = SlowCables(delay_s / 2, self._pairs())
            self._build(veths=not delay_s)
            self._open_probes()
            self.wait_whole()
            undo.pop_all()

    def _pairs(self) -> list[tuple[str, str, str, str]]:
        """Return the ends of all cables: namespace and device on the host, and in the hub."""
        return [
            (member.path, network, self.hub.path, f"{network}{host}")
            for host, member in enumerate(self.members)
            for network in NETWORKS
        ]

    def _build(self, *, veths: bool) -> None:
        lines = [
            f"link add {network} type bridge forward_delay 0 mcast_snooping 0"
            for network in NETWORKS
        ]
        for (path, near, _, far), host in zip(
            self._pairs(), [host for host in range(self.count) for _ in NETWORKS], strict=True
        ):
            if veths:
                lines.append(f"link add {far} type veth peer name {near} netns {path}")
            lines.append(f"link set {far} master {far.removesuffix(str(host))} up")
        lines += [f"link set {network} up" for network in NETWORKS]
        self.hub.run("ip", "-batch", "-", text="\n".join(lines))
        for host, member in enumerate(self.members):
            addresses = [f"address add {address_of(host, n)}/24 dev {n}" for n in NETWORKS]
            ups = [f"link set {network} up" for network in NETWORKS]
            member.run("ip", "-batch", "-", text="\n".join([*addresses, *ups]))

    def _open_probes(self) -> None:
        for host, member in enumerate(self.members):
            for network in NETWORKS:
                self._probes[host, network] = member.call(lambda: _open_probe(host, network))  # noqa: B023

    def name(self, host: int) -> str:
        """Return the host's name, as errors tell it."""
        return f"host{host}"

    def carries(self, sender: int, receiver: int, network: str) -> bool:
        """Tell whether a packet sent now arrives: in this direction alone."""
        return bool(self.carried([(sender, receiver, network)]))

    def carried(self, ways: Iterable[Way]) -> list[Way]:
        """Send a packet along each of these ways, and return those by which it arrived."""
        sent: dict[tuple[int, str, bytes], Way] = {}
        for sender, receiver, network in ways:
            word = b"%d" % next(self._numbers)
            sent[receiver, network, word] = (sender, receiver, network)
            to = self._probes[receiver, network].getsockname()
            with contextlib.suppress(OSError):  # an earlier one met a closed door
                self._probes[sender, network].sendto(word, to)
        arrived: list[Way] = []
        until = time.monotonic() + PROBE_S + self.delay_s
        while len(arrived) < len(sent) and time.monotonic() < until:
            for receiver, network, word in self._heard(until):
                if (receiver, network, word) in sent:
                    arrived.append(sent[receiver, network, word])
        return arrived

    def _heard(self, until: float) -> Iterator[tuple[int, str, bytes]]:
        names = {probe: name for name, probe in self._probes.items()}
        limit_s = max(0.0, until - time.monotonic())
        for probe in select.select(list(names), [], [], limit_s)[0]:
            with contextlib.suppress(OSError):
                yield (*names[probe], probe.recv(64))

    def ways(self) -> list[Way]:
        """List all ways there are."""
        pairs = list(itertools.permutations(range(self.count), 2))
        return [(*pair, network) for network in NETWORKS for pair in pairs]

    def wait_whole(self) -> None:
        """Wait until every way carries packets: a device that was down takes a moment."""
        until = time.monotonic() + UP_S
        broken = set(self.ways())
        while broken := broken.difference(self.carried(broken)):
            assert time.monotonic() < until, f"these ways carry nothing: {sorted(broken)}"

    def close(self) -> None:
        """Let go of everything; the kernel removes what nobody holds."""
        for probe in self._probes.values():
            probe.close()
        if self._cables is not None:
            self._cables.close()
        for namespace in (getattr(self, "hub", None), *getattr(self, "members", [])):
            if namespace is not None:
                namespace.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def _open_probe(host: int, network: str) -> socket.socket:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.bind((address_of(host, network), 0))
    return probe
