"""How the ranks of a torch group find each other: one look into torch's store, then our rendezvous.

The store has no liveness of its own, so it carries nothing but rank 0's address and the group's
key, once per group, within the deadline. All else goes over connections that are watched.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standfast import group as groups
from standfast import identity, joining
from standfast.errors import RendezvousError
from standfast.group import Group
from standfast.invitation import NOBODY, Invitation, invite, read
from standfast.rendezvous.interfaces import chosen_address, ipv4_addresses
from standfast.rendezvous.listen import LOOPBACK
from standfast.settings import Settings

# How often a rank looks whether rank 0 has said where it listens: seldom after a while.
LOOK_S, LOOK_MAX_S = 0.001, 0.05
INIT_S_MAX = 600.0


@dataclass(frozen=True)
class Party:
    """Who meets. name: "" for the whole job. global_ranks: by rank of the group."""

    store: Any
    rank: int
    size: int
    name: str
    global_ranks: tuple[int, ...]
    timeout_s: float

    @property
    def title(self) -> str:
        """The group's name in messages."""
        return self.name or groups.TOP_NAME

    def world_rank(self) -> int:
        """Return this process's rank in the whole job."""
        return self.global_ranks[self.rank] if self.global_ranks else self.rank


def settings_for(timeout_s: float) -> Settings:
    """Return the settings of a torch group: torch's timeout is its progress limit."""
    limit_s = max(1.0, timeout_s)
    usual = {
        "progress_s": limit_s,
        "startup_s": limit_s,
        "init_timeout_s": min(timeout_s, INIT_S_MAX),
    }
    chosen = joining.settings_of({}, usual)
    return dataclasses.replace(chosen, join=None, listen_fd=None)


def meet(party: Party, check: Callable[[], None]) -> Group:
    """Form the standfast group of a torch group.

    Args:
        party: who meets.
        check: raises where there is no hope any more, as the whole job's group has failed.

    Raises:
        RendezvousError: not all came before the deadline.
    """
    chosen = settings_for(party.timeout_s)
    deadline = time.monotonic() + chosen.init_timeout_s
    listener: socket.socket | None = None
    told: Invitation = NOBODY
    try:
        if party.size > 1:
            # By counting, a group that is formed again does not read what the former one said.
            attempt = party.store.add(f"standfast/attempts/{party.rank}", 1)
            place = f"standfast/meeting/{attempt}"
            if party.rank == 0:
                host = own_address(party.store, chosen)
                listener, told = invite(host, title=party.title, size=party.size, chosen=chosen)
                party.store.set(place, told.text())
            else:
                told = read(ask(party, place, deadline, check))
        left_s = max(0.1, deadline - time.monotonic())
        chosen = dataclasses.replace(told.with_key(chosen), init_timeout_s=left_s)
        who = identity.resolve(rank=party.rank, size=party.size, coordinator=told.address)
        return _formed(party, who, chosen, listener, check)
    finally:
        if listener is not None:
            listener.close()


def _formed(
    party: Party,
    who: identity.Identity,
    chosen: Settings,
    listener: socket.socket | None,
    check: Callable[[], None],
) -> Group:
    def form(check: Callable[[], None] | None) -> Group:
        return groups._form(
            who,
            chosen,
            name=party.name,
            world_rank=party.world_rank(),
            listener=listener,
            check=check,
        )

    if party.name:
        return form(check)
    with joining.reported(who, chosen):
        return form(None)


def ask(party: Party, place: str, deadline: float, check: Callable[[], None]) -> bytes:
    """Wait until rank 0 has said where it listens."""
    pause_s = LOOK_S
    began = time.monotonic()
    while not party.store.check([place]):
        check()
        if time.monotonic() > deadline:
            raise RendezvousError(
                f"rank {party.rank} waited {time.monotonic() - began:.1f} s for rank 0 of the group"
                f" {party.title}, which has not said in torch's store where it listens",
                hint="all ranks of the group must call init_process_group or new_group, in the same"
                " order; does rank 0 still run?",
                here=party.rank,
                rank=0,
                missing=(0,),
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_MAX_S)
    return bytes(party.store.get(place))


def own_address(store: Any, chosen: Settings) -> str:
    """Return the address at which the other ranks reach this one.

    It is the one named by the setting data_address, or else the one by which this rank reaches
    torch's store, as all ranks do. A store that is a file says nothing of that: then it is the
    address of this host's name.
    """
    if chosen.data_address is not None:
        return chosen_address(chosen.data_address, ipv4_addresses())
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "host") and hasattr(store, "port"):
        return _route_to(store.host, store.port) or LOOPBACK
    return _route_to(os.uname().nodename, 9) or LOOPBACK


def _route_to(host: str, port: int) -> str | None:
    """Return the own address from which packets to a host go; nothing is sent."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return None
