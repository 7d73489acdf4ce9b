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

from standfast import _core, hooks, identity, reforming, rendezvous, reports
from standfast import settings as configuration
from standfast.errors import RendezvousError, StandfastError
from standfast.messages import Place
from standfast.notices import Obituaries, tell
from standfast.rendezvous import Formation
from standfast.rendezvous.lineage import Lineage, Wish
from standfast.settings import Settings
from standfast.spare import wait_for_place
from standfast.standby import StandBy

logger: logging.Logger = logging.getLogger("standfast")


def settings_of(overrides: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings, from arguments and environment; set up hooks and log level.

    A spare of the launcher's waits here for its place, before anything is read.

    Args:
        overrides: the caller's arguments; None means: not given.
        usual: what holds where neither arguments nor environment say anything, other than the
            table's defaults.
    """
    wait_for_place(os.environ)
    hooks.install()
    chosen = configuration.load(overrides, os.environ, usual)
    hooks.install(chosen.excepthook)
    if logger.level == logging.NOTSET:
        logger.setLevel(chosen.log_level.upper())
    return chosen


@contextmanager
def reported(who: identity.Identity, chosen: Settings) -> Iterator[None]:
    """Tell the launcher that this rank has joined, or of what keeps it from that."""
    try:
        yield
        tell_ready(chosen.report_dir, who.rank, who)
    except StandfastError as error:
        if chosen.report_dir is not None:
            reports.write(chosen.report_dir, who.rank, who.generation, error)
        raise


def tell_ready(directory: str | None, slot: int | None, who: identity.Identity) -> None:
    """Tell the launcher that the process that it counts as `slot` is in a group, and as whom."""
    if slot is not None:
        tell(directory, "ready", slot, who.generation, seat=who.rank, size=who.size)


@dataclass(frozen=True)
class Seat:
    """This rank's place among others, with the core that watches them."""

    core: _core.Group
    who: identity.Identity
    settings: Settings
    formation: Formation
    name: str
    world_rank: int
    lineage: Lineage | None = None
    old_ranks: tuple[int | None, ...] = ()
    standby: StandBy | None = None

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
    state: bytes = b"",
) -> Seat:
    """Meet the other ranks, and hand the connections to a core of our own."""
    if check is None:
        check = Obituaries(chosen.report_dir, who.rank, who.generation).check
    formation = rendezvous.form(
        who, chosen, name=name, wires=wires, listener=listener, check=check, state=state
    )
    standby = None if formation.standby is None else StandBy(formation.standby)
    try:
        core = started(who, chosen, formation)
    except BaseException:
        if standby is not None:
            standby.close()
        raise
    return Seat(
        core,
        who,
        chosen,
        formation,
        name,
        world_rank,
        reforming.first_lineage(who, formation),
        (None,) * who.size,
        standby,
    )


def started(who: identity.Identity, chosen: Settings, formation: Formation) -> _core.Group:
    """Hand a formation's connections to a core.

    Raises:
        RendezvousError: the system does not give what it needs.
    """
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
    return core


def rejoin(
    past: reforming.Past, wish: Wish, timeout_s: float, state: bytes, world_rank: int
) -> Seat:
    """Form the next generation of a group with those who are left, and newcomers."""
    standby = past.standby
    listener = None if standby is None else standby.listener
    return _seat_of(
        *reforming.again(past, wish, timeout_s, _former(past.name, state, listener)),
        name=past.name,
        world_rank=world_rank,
        standby=standby,
    )


def come_new(chosen: Settings, state: bytes) -> Seat:
    """Be taken into a group that forms again (settings.join)."""
    assert chosen.join is not None
    following, formation = reforming.join(
        chosen.join, chosen, _former("", state, None), identity.job_id()
    )
    standby = None if formation.standby is None else StandBy(formation.standby)
    slot = identity.slot()
    seat = _seat_of(
        following,
        formation,
        name="",
        world_rank=following.who.rank if slot is None else slot,
        standby=standby,
    )
    tell_ready(chosen.report_dir, slot, following.who)
    return seat


def _former(name: str, state: bytes, standby: socket.socket | None) -> reforming.Form:
    def form(following: reforming.Next) -> Formation:
        return rendezvous.form(
            following.who,
            following.settings,
            name=name,
            listener=following.listener,
            check=following.check,
            standby=standby,
            state=state,
        )

    return form


def _seat_of(
    following: reforming.Next,
    formation: Formation,
    *,
    name: str,
    world_rank: int,
    standby: StandBy | None,
) -> Seat:
    """Start the core of a generation that was formed again; answer at the stand-by port."""
    who, chosen, outcome = following.who, following.settings, following.outcome
    try:
        core = started(who, chosen, formation)
    except BaseException:
        if standby is not None:
            standby.close()
        raise
    known = reforming.next_lineage(outcome, formation)
    if standby is not None:
        hello = reforming.hello_at_work(who, chosen, name)
        standby.serve(known, hello, chosen.key, reforming.closed_to_newcomers(chosen))
    old_ranks = tuple(None if rank < 0 else rank for rank in outcome.old_ranks)
    return Seat(core, who, chosen, formation, name, world_rank, known, old_ranks, standby)


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
        topology=formation.topology or chosen.topology,
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
