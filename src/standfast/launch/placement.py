"""Which rank runs where. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from standfast.launch.environment import Place


@dataclass(frozen=True, slots=True)
class Host:
    """An entry of the job's list of hosts; several may name the same host.

    Fields:
        name: as ssh takes it.
        slots: how many ranks it may have.
        data_address: the address, by the host file, that its ranks use for data.
        number: its position in the host file.
        rdma: for each host of the file, the devices that lead there; empty if it does not say.
    """

    name: str
    slots: int = 1
    data_address: str | None = None
    number: int = 0
    rdma: tuple[tuple[str, ...], ...] = ()


def slots_of(hosts: Sequence[Host]) -> int:
    """Return how many ranks these hosts may have together."""
    return sum(host.slots for host in hosts)


def entries_of(size: int, hosts: Sequence[Host]) -> list[Host]:
    """Return the entry that each rank is of; ValueError if they do not fit."""
    entries = [host for host in hosts for _ in range(host.slots)][:size]
    if len(entries) < size:
        raise ValueError(f"{size} ranks do not fit on {slots_of(hosts)} slots")
    return entries


def place_ranks(size: int, hosts: Sequence[Host]) -> list[tuple[str, Place]]:
    """Fill the hosts one after the other, rank by rank; what is left over has no rank.

    A host that is there several times is one node all the same. Returns host and place by rank.
    """
    entries = entries_of(size, hosts)
    names = [entry.name for entry in entries]
    nodes = {name: node for node, name in enumerate(dict.fromkeys(names))}
    return [
        (
            entry.name,
            Place(
                rank=rank,
                local_rank=names[:rank].count(entry.name),
                local_size=names.count(entry.name),
                node=nodes[entry.name],
                data_address=entry.data_address,
            ),
        )
        for rank, entry in enumerate(entries)
    ]


def place_newcomer(
    rank: int,
    hosts: Sequence[Host],
    used: Mapping[str, Sequence[int]],
    *,
    nodes: Sequence[str],
    rather: str,
) -> tuple[str, Place] | None:
    """Find room for one more rank; None if there is none.

    Args:
        rank: its number.
        hosts: those that can be used now.
        used: by host, the local ranks of those that run there.
        nodes: all hosts, in the order in which they are numbered; none for a place of no rank.
        rather: the host to take if there is room.
    """
    for host in sorted(hosts, key=lambda host: host.name != rather):
        there = used.get(host.name, ())
        if len(there) < slots_of([each for each in hosts if each.name == host.name]):
            local_rank = next(each for each in itertools.count() if each not in there)
            node = nodes.index(host.name) if nodes else 0
            return host.name, Place(rank, local_rank, len(there) + 1, node, host.data_address)
    return None
