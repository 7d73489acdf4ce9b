"""By which addresses a rank reaches another, and over which fabric. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from standfast.endpoint import Endpoint, is_link_local, is_loopback
from standfast.errors import ConfigError
from standfast.rendezvous.protocol import Entry

LOOPBACK = "127.0.0.1"


def without_scope(host: str) -> str:
    """Return a link-local address without its interface, whose name means nothing elsewhere."""
    return host.partition("%")[0]


def with_scope(host: str, via: str) -> str:
    """Return a link-local address with the interface by which `via` is reached."""
    scope = via.partition("%")[2]
    return f"{host}%{scope}" if scope and is_link_local(host) else host


def routes(entry: Entry, *, via: str, same_host: bool) -> list[Endpoint]:
    """Return where to try a rank's data port, best first. `via`: where we reached the coordinator.

    A rank without addresses is the coordinator: it is where we found it. A rank that came to the
    coordinator over loopback is on its machine, so from elsewhere it has the coordinator's address.
    """
    hosts = [with_scope(host, via) for host in entry.addresses] or [via]
    if not entry.explicit:
        hosts = [via if is_loopback(h) and not is_loopback(via) else h for h in hosts]
        if same_host and not any(map(is_loopback, hosts)):
            hosts.insert(0, LOOPBACK)
    return [Endpoint(host, entry.port) for host in dict.fromkeys(hosts)]


def advertised(source: str, observed: str) -> list[str]:
    """Return a member's addresses: the one it came from, and the one that rank 0 saw."""
    return [host for host in dict.fromkeys(map(without_scope, (source, observed))) if host]


def fabric_between(a: Entry, b: Entry, wanted: str) -> str:
    """Return "shm" or "tcp" for a pair; auto takes shm wherever it can work."""
    if wanted == "auto":
        return "shm" if a.host_id == b.host_id else "tcp"
    return wanted


def check_fabric(ranks: Sequence[Entry], wanted: str) -> None:
    """Make sure that the wanted fabric can join all ranks.

    Raises:
        ConfigError: shared memory was asked for, but not all ranks are on one host.
    """
    if wanted != "shm":
        return
    for (a, one), (b, other) in itertools.pairwise(enumerate(ranks)):
        if one.host_id != other.host_id:
            raise ConfigError(
                f"fabric='shm' needs all ranks on one host: rank {a} is on {one.host}, "
                f"rank {b} on {other.host}, which do not share memory",
                hint="fabric='auto' takes shm within each host and tcp between them",
            )
