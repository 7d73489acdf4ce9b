"""What a rank takes from the table of all ranks: whom to call where, and who is who. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from standfast.endpoint import Endpoint
from standfast.rendezvous import handshake
from standfast.rendezvous.formation import PeerInfo
from standfast.rendezvous.protocol import Entry, Hello, Table, encode
from standfast.rendezvous.routes import fabric_between, routes


@dataclass(frozen=True)
class Plan:
    """What a rank must know to make its wires.

    fabrics: what the pair with each peer should use. routes: the data ports of the lower ranks.
    fallback: take tcp where shm turns out not to work. hosts: names, by rank.
    """

    rank: int
    size: int
    secret: bytes
    fabrics: Mapping[int, str]
    routes: Mapping[int, list[Endpoint]]
    fallback: bool
    hosts: Sequence[str]


def entry_of(hello: Hello, addresses: list[str]) -> Entry:
    """Return a rank's row of the table."""
    return Entry(
        host=hello.host,
        host_id=hello.host_id,
        pid=hello.pid,
        port=hello.port,
        addresses=addresses,
        explicit=hello.explicit,
    )


def plan_for(rank: int, table: Table, *, via: str, fabric: str, key: bytes | None) -> Plan:
    """Return what this rank needs to make its wires. `via`: where it reached the coordinator."""
    me = table.ranks[rank]
    return Plan(
        rank=rank,
        size=len(table.ranks),
        secret=handshake.data_secret(key, table.token),
        fabrics={
            peer: fabric_between(me, entry, fabric)
            for peer, entry in enumerate(table.ranks)
            if peer != rank
        },
        routes={
            peer: routes(entry, via=via, same_host=entry.host_id == me.host_id)
            for peer, entry in enumerate(table.ranks[:rank])
        },
        fallback=fabric == "auto",
        hosts=[entry.host for entry in table.ranks],
    )


def check_of(table: Table, generation: int) -> bytes:
    """Return what all ranks of a group have in common once they have its table."""
    return hashlib.sha256(b"%d" % generation + encode(table)).digest()


def routes_for(rank: int, table: Table, *, via: str) -> tuple[tuple[Endpoint, ...], ...]:
    """Return where each rank's data port is tried from here, by rank; nothing if it has none."""
    mine = table.ranks[rank].host_id
    return tuple(
        tuple(routes(entry, via=via, same_host=entry.host_id == mine)) if entry.port else ()
        for entry in table.ranks
    )


def peers_for(rank: int, table: Table, *, via: str) -> tuple[PeerInfo, ...]:
    """Return all ranks as the core must know them."""
    mine = table.ranks[rank].host_id
    return tuple(
        PeerInfo(
            rank=peer,
            host=entry.host,
            pid=entry.pid,
            same_host=entry.host_id == mine,
            address=_data_address(entry, via=via, same_host=entry.host_id == mine),
        )
        for peer, entry in enumerate(table.ranks)
    )


def _data_address(entry: Entry, *, via: str, same_host: bool) -> str:
    """Return where a rank's data port is reached; "" where ranks only watch each other."""
    return str(routes(entry, via=via, same_host=same_host)[0]) if entry.port else ""
