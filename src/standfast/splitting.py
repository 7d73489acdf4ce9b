"""How a group splits: who belongs together, and where each team meets. Called by Group.split().

All ranks tell each other color and key, and so know every team. Then the first rank of each team
opens a listener, and all ranks tell each other its port. Both go over the group that splits. The
address is the one by which each rank reaches that rank already.
"""

from __future__ import annotations

import dataclasses
import errno
import operator
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from standfast.endpoint import Endpoint, parse_endpoint
from standfast.errors import RendezvousError
from standfast.identity import Identity
from standfast.matrix import whole
from standfast.rendezvous import PeerInfo
from standfast.rendezvous.listen import ANY4, ANY6, has_ipv6, open_listener
from standfast.settings import Settings

KEY_MAX = 2**63 - 1
LOOPBACK = "127.0.0.1"


class Parent(Protocol):
    """What this needs of the group that splits."""

    @property
    def rank(self) -> int:
        """This rank."""

    def all_gather(self, x: bytes, *, timeout_s: float | None = None) -> bytes:
        """Concatenate bytes of one length."""


@dataclasses.dataclass(frozen=True)
class Team:
    """The ranks of one color.

    rank: this rank's place. members: the ranks, as the parent numbers them. coordinator: where they
    meet, or None for a team of one. listener: the socket for that, at the team's first rank; closed
    on leaving the context.
    """

    rank: int
    members: Sequence[int]
    coordinator: str | None
    listener: socket.socket | None

    def settings(self, parent: Settings) -> Settings:
        """Return the settings of the new group: its part of the device matrix.

        Raises:
            ConfigError: the device file has been changed, and cannot be read any more.
        """
        if parent.fabric != "verbs" or parent.devices is None:
            return parent
        return dataclasses.replace(parent, devices=whole(parent.devices).of(self.members))

    def identity(self, parent: Identity) -> Identity:
        """Return who this rank is in the new group."""
        return dataclasses.replace(
            parent, rank=self.rank, size=len(self.members), coordinator=self.coordinator
        )

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self.listener is not None:
            self.listener.close()


def check(color: int | None, key: int) -> tuple[int, int]:
    """Return color and key as numbers; -1 is "no color".

    Raises:
        TypeError: they are no ints.
        ValueError: they do not fit into 64 bits.
    """
    found = (-1 if color is None else operator.index(color), operator.index(key))
    for name, number in zip(("color", "key"), found, strict=True):
        if not -KEY_MAX - 1 <= number <= KEY_MAX:
            raise ValueError(f"{name} is {number}, which does not fit into 64 bits")
    return max(found[0], -1), found[1]


def teams(entries: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the old ranks of each color, in their new order, from each rank's (color, key)."""
    found: dict[int, list[int]] = {}
    for rank, (color, _) in enumerate(entries):
        if color >= 0:
            found.setdefault(color, []).append(rank)
    for members in found.values():
        members.sort(key=lambda rank: (entries[rank][1], rank))
    return found


def exchange(
    parent: Parent, peers: Sequence[PeerInfo], color: int, key: int, timeout_s: float | None
) -> Team | None:
    """Agree with all ranks of the parent; return this rank's team, or None.

    Args:
        parent: the group that splits.
        peers: its ranks, as this one reaches them.
        color: team, or -1.
        key: order within the team.
        timeout_s: limit of each of the two exchanges.

    Raises:
        RendezvousError: the team's first rank cannot listen.
    """
    told = parent.all_gather(struct.pack("<qq", color, key), timeout_s=timeout_s)
    members = teams(list(struct.iter_unpack("<qq", told))).get(color, [])
    listener, port = None, 0
    if len(members) > 1 and members[0] == parent.rank:
        listener, port = _listen([peers[rank] for rank in members])
    try:
        told = parent.all_gather(struct.pack("<i", port), timeout_s=timeout_s)
        if not members:
            return None
        (port,) = struct.unpack_from("<i", told, 4 * members[0])
        where = _address(peers[members[0]], port) if len(members) > 1 else None
        return Team(members.index(parent.rank), members, where, listener)
    except BaseException:
        if listener is not None:
            listener.close()
        raise


def _address(first: PeerInfo, port: int) -> str:
    """Return where this rank finds the listener of its team's first rank."""
    if port < 0:
        raise RendezvousError(
            f"rank {first.rank} on {first.host} cannot listen for its part of split: "
            f"{errno.errorcode.get(-port, str(-port))}",
            rank=first.rank,
            host=first.host,
        )
    host = LOOPBACK if first.same_host else parse_endpoint(first.address, name="address").host
    return str(Endpoint(host, port))


def _listen(members: Sequence[PeerInfo]) -> tuple[socket.socket | None, int]:
    """Open a listener for a team; return it and its port, or None and minus the errno."""
    host = LOOPBACK if all(peer.same_host for peer in members) else ANY4
    dual = host == ANY4 and has_ipv6()
    try:
        listener = open_listener(ANY6 if dual else host, 0, 2 * len(members), dual=dual)
    except OSError as error:
        return None, -(error.errno or errno.EIO)
    return listener, listener.getsockname()[1]
