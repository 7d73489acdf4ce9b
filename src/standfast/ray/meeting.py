"""How the ranks of a ray.util.collective group find each other: one entry in Ray's key-value store.

Rank 0 writes where it listens, and the group's key; the others read it. The entry is there while
rank 0 waits for them and no longer, unless rank 0 is killed meanwhile: so whoever has read it looks
again while it waits, and follows a newer one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from standfast import group as groups
from standfast import identity, joining
from standfast.errors import RendezvousError, StandfastError
from standfast.group import Group
from standfast.invitation import NOBODY, Invitation, invite, read
from standfast.rendezvous.interfaces import chosen_address, ipv4_addresses
from standfast.settings import Settings

# How often a rank looks for the entry: seldom after a while; and how often for a newer one.
LOOK_S, LOOK_MAX_S = 0.002, 0.1
AGAIN_S = 0.5
NAMESPACE = "standfast"


class Board(Protocol):
    """Where one group's entry is."""

    def read(self) -> bytes | None:
        """Return the entry, or None."""

    def write(self, entry: bytes) -> None:
        """Put an entry there, in place of an older one."""

    def clear(self) -> None:
        """Remove the entry."""


class RayBoard:
    """The entry of a group in Ray's key-value store, which is the GCS's."""

    def __init__(self, group_name: str) -> None:
        import ray
        from ray.experimental import internal_kv

        self._kv: Any = internal_kv
        # Groups' names are their own in each of Ray's namespaces, as those of its actors.
        self._key = f"collective/{ray.get_runtime_context().namespace}/{group_name}"

    def read(self) -> bytes | None:
        """Return the entry, or None."""
        found: bytes | None = self._kv._internal_kv_get(self._key, namespace=NAMESPACE)
        return found

    def write(self, entry: bytes) -> None:
        """Put an entry there, in place of an older one."""
        self._kv._internal_kv_put(self._key, entry, namespace=NAMESPACE)

    def clear(self) -> None:
        """Remove the entry."""
        self._kv._internal_kv_del(self._key, namespace=NAMESPACE)


@dataclasses.dataclass(frozen=True)
class Party:
    """Who meets. host: the address at which the others reach this process."""

    board: Board
    rank: int
    size: int
    group_name: str
    host: str

    @property
    def title(self) -> str:
        """The group's name in messages."""
        return f"ray:{self.group_name}"


class _Moved(Exception):
    """The entry that was read is not the one that is there now."""


def meet(party: Party) -> Group:
    """Form the standfast group of a collective group.

    Raises:
        ConfigError: a STANDFAST_... variable is wrong.
        RendezvousError: not all ranks came before the deadline (STANDFAST_INIT_TIMEOUT_S).
    """
    chosen = dataclasses.replace(joining.settings_of({}), join=None, listen_fd=None)
    deadline = time.monotonic() + chosen.init_timeout_s
    if party.size == 1:
        return _formed(party, NOBODY, chosen, deadline, _hope)
    if party.rank == 0:
        with _shown(party, chosen) as (listener, told):
            return _formed(party, told, chosen, deadline, _hope, listener)
    entry: bytes | None = None
    while True:
        entry = _awaited(party, entry, chosen, deadline)
        watcher = _Watcher(party.board, entry)
        try:
            return _formed(party, read(entry), chosen, deadline, watcher.check)
        except _Moved:
            pass
        except StandfastError:
            if not watcher.has_moved():
                raise


@contextlib.contextmanager
def _shown(party: Party, chosen: Settings) -> Iterator[tuple[socket.socket, Invitation]]:
    """Listen, and show the entry for as long as the block takes."""
    host = party.host
    if chosen.data_address is not None:
        host = chosen_address(chosen.data_address, ipv4_addresses())
    listener, told = invite(host, title=party.title, size=party.size, chosen=chosen)
    with listener:
        party.board.write(told.text().encode())
        try:
            yield listener, told
        finally:
            party.board.clear()


def _formed(
    party: Party,
    told: Invitation,
    chosen: Settings,
    deadline: float,
    check: Callable[[], None],
    listener: socket.socket | None = None,
) -> Group:
    left_s = max(0.1, deadline - time.monotonic())
    return groups._form(
        identity.resolve(rank=party.rank, size=party.size, coordinator=told.address),
        dataclasses.replace(told.with_key(chosen), init_timeout_s=left_s),
        name=party.title,
        world_rank=party.rank,
        listener=listener,
        check=check,
    )


def _hope() -> None:
    """Raise nothing."""


class _Watcher:
    """Looks now and then whether there is another entry than the one that was read."""

    def __init__(self, board: Board, entry: bytes) -> None:
        self._board, self._entry = board, entry
        self._next = time.monotonic() + AGAIN_S

    def has_moved(self) -> bool:
        """Look. No entry at all is no other: rank 0 removes it when all are there."""
        return self._board.read() not in (None, self._entry)

    def check(self) -> None:
        """Raise if there is another, looking seldom."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN_S
        if self.has_moved():
            raise _Moved


def _awaited(party: Party, known: bytes | None, chosen: Settings, deadline: float) -> bytes:
    """Wait until there is an entry other than the one that is known."""
    pause_s = LOOK_S
    while True:
        entry = party.board.read()
        if entry is not None and entry != known:
            return entry
        if time.monotonic() > deadline:
            raise RendezvousError(
                f"rank {party.rank} of {party.size} of the group {party.title} waited"
                f" {chosen.init_timeout_s:g} s for rank 0, which has not said in Ray's store where"
                " it listens",
                hint="all ranks of the group must call init_collective_group() with the same name,"
                " in one Ray namespace; does rank 0's actor still run?",
                here=party.rank,
                rank=0,
                missing=(0,),
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_MAX_S)
