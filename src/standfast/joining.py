"""From arguments and environment to a native group: the way into init(), split() and watch().

Who am I, what are the settings, where are the others; then the connections go to a core.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast import _core, hooks, identity, rendezvous, reports
from standfast import settings as configuration
from standfast.errors import RendezvousError, StandfastError
from standfast.messages import Place
from standfast.rendezvous import Formation
from standfast.settings import Settings

logger = logging.getLogger("standfast")


def settings_of(overrides: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings, from arguments and environment; set up hooks and log level.

    Args:
        overrides: the caller's arguments; None means: not given.
        usual: what holds where neither arguments nor environment say anything, other than the
            table's defaults.
    """
    hooks.install()
    chosen = configuration.load(overrides, os.environ, usual)
    hooks.install(chosen.excepthook)
    if logger.level == logging.NOTSET:
        logger.setLevel(chosen.log_level.upper())
    return chosen


@contextmanager
def reported(who: identity.Identity, chosen: Settings) -> Iterator[None]:
    """Tell the launcher of what keeps this rank from joining."""
    try:
        yield
    except StandfastError as error:
        if chosen.report_dir is not None:
            reports.write(chosen.report_dir, who.rank, who.generation, error)
        raise


@dataclass(frozen=True)
class Seat:
    """This rank's place among others, with the core that watches them."""

    core: _core.Group
    who: identity.Identity
    settings: Settings
    formation: Formation
    name: str
    world_rank: int

    def place(self) -> Place:
        """Return what messages tell of this rank and the others."""
        links: dict[int, list[str]] = {}
        for end in self.formation.wires:
            links.setdefault(end.rank, []).append(end.link)
        peers = {peer.rank: peer for peer in self.formation.peers}
        ranks = range(self.who.size)
        return Place(
            here=self.who.rank,
            hosts=[peers[rank].host if rank in peers else "" for rank in ranks],
            pids=[peers[rank].pid if rank in peers else 0 for rank in ranks],
            links={rank: ", ".join(texts) for rank, texts in sorted(links.items())},
            generation=self.who.generation,
            group=self.name,
        )


def join(
    who: identity.Identity,
    chosen: Settings,
    *,
    name: str,
    world_rank: int,
    wires: bool = True,
    listener: socket.socket | None = None,
    check: Callable[[], None] | None = None,
) -> Seat:
    """Meet the other ranks, and hand the connections to a core of our own."""
    formation = rendezvous.form(who, chosen, name=name, wires=wires, listener=listener, check=check)
    try:
        core = core_of(who, chosen, formation)
    except OSError as error:
        raise RendezvousError(
            f"rank {who.rank} met all ranks, but could not start its core: {error}",
            here=who.rank,
            generation=who.generation,
        ) from error
    trouble = core.sentinel_trouble()
    if trouble:
        logger.warning(
            "rank %d has no sentinel, so that its death may be known late: %s", who.rank, trouble
        )
    return Seat(core, who, chosen, formation, name, world_rank)


def _sentinel(chosen: Settings) -> str:
    """Return the path of the program that stands in for a neighbour, or "" for none."""
    program = Path(__file__).with_name("_sentinel")
    return str(program) if chosen.sentinel and program.exists() else ""


def core_of(
    who: identity.Identity,
    chosen: Settings,
    formation: Formation,
    *,
    jaccl: _core.JacclEngine | None = None,
    stock: Sequence[int] = (),
) -> _core.Group:
    """Make the native group, which owns the formation's descriptors from here on.

    Args:
        who: this rank.
        chosen: the settings.
        formation: who the others are, and the connections to them.
        jaccl: carries the data in place of wires; the formation's are only descriptions then.
        stock: ranks to which nothing but JACCL's protocol may be said.
    """
    return _core.Group(
        rank=who.rank,
        size=who.size,
        generation=who.generation,
        peers=[
            _core.Peer(peer.rank, peer.host, peer.pid, peer.same_host) for peer in formation.peers
        ],
        control=list(formation.control),
        wires=[
            _core.WireSpec(
                rank=end.rank,
                fabric=end.fabric,
                fd=end.fd,
                shm_fd=end.shm_fd,
                first=end.first,
                link=end.link,
                rails=end.rails,
            )
            for end in formation.wires
            if jaccl is None
        ],
        topology=chosen.topology,
        verify=chosen.verify,
        ranks_here=formation.ranks_here,
        limits_s=(
            chosen.heartbeat_for(who.size),
            chosen.hint_s,
            chosen.silence_s,
            chosen.progress_s,
            chosen.startup_s,
        ),
        close_linger_s=chosen.close_linger_s,
        exit_on_fault=chosen.exit_on_fault,
        exit_grace_s=chosen.exit_grace_s,
        handle_sigterm=chosen.handle_sigterm,
        logs=chosen.log_level in ("debug", "info", "warning"),
        beacon_fd=formation.beacon_fd,
        sentinel=_sentinel(chosen),
        jaccl=jaccl,
        stock=stock,
    )
