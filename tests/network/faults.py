"""What breaks between the hosts, and back: cuts, lost packets, hosts that vanish, resets.

Everything happens in the hub (hosts.py), and tells how many packets it has stopped.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass

from tests.death.nursery import now_ns
from tests.network.hosts import NETWORKS, Hosts, address_of

IN, OUT = "in", "out"
BOTH = (IN, OUT)

TABLE = """
table bridge faults
delete table bridge faults
table bridge faults {
  chain forward { type filter hook forward priority 0; policy accept; }
}
"""


@dataclass(frozen=True)
class Cut:
    """Rules that stop packets.

    ns: CLOCK_MONOTONIC just before they were in force. counters: their names by direction.
    """

    faults: Faults
    ns: int
    counters: dict[str, str]

    def stopped(self) -> dict[str, int]:
        """Return how many packets each direction has lost so far."""
        found = self.faults.counts()
        return {direction: found[name] for direction, name in self.counters.items()}

    def took_effect(self) -> None:
        """Assert that each direction has stopped packets."""
        stopped = self.stopped()
        assert all(stopped.values()), f"the fault did not take effect: {stopped}"


class Faults:
    """Breaks what Hosts has built."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._numbers = itertools.count()
        self.hosts.hub.run("nft", "-f", "-", text=TABLE)

    def cut(
        self,
        host: int,
        networks: Iterable[str] = NETWORKS,
        directions: Iterable[str] = BOTH,
        peers: Iterable[int] | None = None,
    ) -> Cut:
        """Stop all packets of a host, in all networks and directions or some, as a switch would.

        Args:
            host: whose.
            networks: CONTROL, DATA or both.
            directions: IN (to the host), OUT (from it) or both.
            peers: only what it exchanges with these.
        """
        others = [other for other in range(self.hosts.count) if other != host]
        return self._rules([host], others if peers is None else list(peers), networks, directions)

    def partition(self, one: Iterable[int], other: Iterable[int]) -> Cut:
        """Let no packet through between these hosts and those."""
        return self._rules(list(one), list(other), NETWORKS, BOTH)

    def lose(self, percent: int) -> Cut:
        """Lose so many of all packets, at random."""
        everybody = list(range(self.hosts.count))
        chance = f"numgen random mod 100 < {percent}"
        return self._rules(everybody, everybody, NETWORKS, [OUT], chance)

    def _rules(
        self,
        near: list[int],
        far: list[int],
        networks: Iterable[str],
        directions: Iterable[str],
        condition: str = "",
    ) -> Cut:
        matches: dict[str, list[str]] = {direction: [] for direction in directions}
        for network, direction in itertools.product(networks, matches):
            here, there = _set_of(near, network), _set_of(far, network)
            source, target = (here, there) if direction == OUT else (there, here)
            matches[direction].append(f"ip saddr {source} ip daddr {target} {condition}")
        return self._add(matches)

    def _add(self, matches: dict[str, list[str]]) -> Cut:
        """Drop what one of these rules matches, all from the same moment on."""
        number = next(self._numbers)
        counters = {direction: f"cut{number}{direction}" for direction in matches}
        lines = [f"add counter bridge faults {name}" for name in counters.values()]
        for direction, name in counters.items():
            for match in matches[direction]:
                lines.append(f"add rule bridge faults forward {match} counter name {name} drop")
        ns = now_ns()
        self.hosts.hub.run("nft", "-f", "-", text="\n".join(lines) + "\n")
        return Cut(self, ns, counters)

    def counts(self) -> dict[str, int]:
        """Return the packets of all counters."""
        told = json.loads(self.hosts.hub.run("nft", "-j", "list", "counters"))["nftables"]
        counters = [entry["counter"] for entry in told if "counter" in entry]
        return {counter["name"]: counter["packets"] for counter in counters}

    def vanish(self, host: int) -> Cut:
        """Pull the plug: no packet of any kind comes from a host or gets to it.

        Then kill its ranks, and nobody hears of that.
        """
        ports = "{ " + ", ".join(f"{network}{host}" for network in NETWORKS) + " }"
        return self._add({IN: [f"oifname {ports}"], OUT: [f"iifname {ports}"]})

    def reset(self, host: int, network: str, peer: int) -> int:
        """Reset a host's TCP connections with another; return the time just before.

        The kernel sends a reset to the peer, and tells its own side ECONNABORTED.
        """
        ns = now_ns()
        ends = ["src", address_of(host, network), "dst", address_of(peer, network)]
        gone = self.hosts.members[host].run("ss", "-HKtn", "state", "established", *ends)
        assert gone.strip(), (
            f"no connection of host {host} with {peer} was reset (INET_DIAG_DESTROY?)"
        )
        return ns

    def heal(self) -> None:
        """Take back all that was done; the counters stay."""
        self.hosts.hub.run("nft", "flush", "chain", "bridge", "faults", "forward")

    def restore(self) -> None:
        """Heal, wait until every way carries packets again, and forget all counters."""
        self.heal()
        self.hosts.wait_whole()
        self.hosts.hub.run("nft", "-f", "-", text=TABLE)


def _set_of(hosts: list[int], network: str) -> str:
    return "{ " + ", ".join(address_of(host, network) for host in hosts) + " }"
