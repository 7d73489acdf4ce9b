"""What rendezvous hands to the native core when a group is formed, and what it needs from it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Protocol

from standfast.endpoint import Endpoint


@dataclass(frozen=True)
class PeerInfo:
    """A rank of the group. address: its data port as this rank reaches it, "" if it has none."""

    rank: int
    host: str
    pid: int
    same_host: bool
    address: str


@dataclass(frozen=True)
class WireEnd:
    """This rank's end of the wire to one peer; whoever holds it owns the descriptors.

    fd: the pair's connected stream socket (the doorbell, for shm; for goodbyes, with RDMA). shm_fd:
    the segment, or -1. first: True on the lower rank. link: text for messages, e.g. "shm" or
    "tcp 10.0.0.3:41234". rails: what carries data over RDMA, else None.
    """

    rank: int
    fabric: str
    fd: int
    shm_fd: int
    first: bool
    link: str
    rails: Any = None


@dataclass(frozen=True)
class Formation:
    """A formed group, as one rank sees it.

    peers: all ranks, by rank. control: (rank, fd) of the control links: from rank 0 one to each
    other rank, from the others one to rank 0. wires: one per peer, by rank. ranks_here: how many
    ranks are on this host. beacon_fd: the memory of this host's beacons, or -1. topology: how
    collectives have to run over these wires, or "" where the setting decides. The descriptors are
    close-on-exec, the sockets non-blocking, all of them the caller's to close.

    standby: the data port, which stays open: there this rank is found when the group forms again.
    routes: where each rank's is tried from here, by rank. token: made for this group alone. states:
    what each rank has said of its state, by rank.
    """

    peers: tuple[PeerInfo, ...]
    control: list[tuple[int, int]]
    wires: list[WireEnd]
    ranks_here: int
    beacon_fd: int
    standby: socket.socket | None = None
    routes: tuple[tuple[Endpoint, ...], ...] = ()
    token: bytes = b""
    states: tuple[bytes, ...] = ()
    topology: str = ""


class Segments(Protocol):
    """The native core's shared memory by name; see _core.pyi."""

    def shm_create(self, *, ranks_here: int) -> tuple[str, int]:
        """Make a segment for a pair of the ranks here; return its name and descriptor."""

    def shm_attach(self, name: str, /) -> int:
        """Open a segment by name; return its descriptor."""

    def shm_unlink(self, name: str, /) -> None:
        """Remove a name."""

    def shm_sweep(self) -> list[str]:
        """Remove what dead processes have left; return the names."""

    def beacon_open(self, *, maker: int, key: str, size: int) -> tuple[str, int]:
        """Open the beacons' memory, or make it; return its name and descriptor, or ("", -1)."""
