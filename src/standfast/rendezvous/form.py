"""form(): the ranks of a group find each other, prove themselves, and are joined by wires.

docs/design/rendezvous.md has the whole exchange. Called by group.py, once per group and subgroup.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from standfast.endpoint import parse_endpoint
from standfast.errors import ConfigError, PeerDied, StandfastError
from standfast.identity import Identity
from standfast.rendezvous import handshake
from standfast.rendezvous.coordinator import Coordinator
from standfast.rendezvous.formation import Formation, PeerInfo, Segments
from standfast.rendezvous.hello import hello_of
from standfast.rendezvous.host import host_name
from standfast.rendezvous.listen import check_listener, inherited_listener, open_coordinator
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.member import Member
from standfast.rendezvous.parting import sweep
from standfast.settings import Settings


def form(
    identity: Identity,
    settings: Settings,
    *,
    name: str = "",
    wires: bool = True,
    listener: socket.socket | None = None,
    segments: Segments | None = None,
    check: Callable[[], None] | None = None,
    standby: socket.socket | None = None,
    state: bytes = b"",
) -> Formation:
    """Return this rank's side of the formed group, or raise the same failure as all who came.

    Args:
        identity: who this rank is, and where the coordinator listens.
        settings: what `agreement` returns must be the same on all ranks.
        name: must be the same on all ranks; keeps subgroups apart.
        wires: False joins the ranks by control links alone. The same on all ranks.
        listener: rank 0 only: a listening socket to use as the coordinator's. It stays the
            caller's, and is left non-blocking. Wins over settings.listen_fd.
        segments: stands in for the native core's shared memory.
        check: called now and then while waiting; what it raises ends the attempt.
        standby: this rank's data port of an earlier generation, to be used again. It stays the
            caller's if the attempt fails.
        state: what this rank says of the state that it holds, at most 64 bytes.

    Raises:
        ConfigError: arguments or environment are wrong, or not those of the other ranks.
        RendezvousError: not all ranks came within init_timeout_s; a port cannot be listened on; no
            wire could be made.
        PeerDied, PeerLeft, RemoteFailure: what ended a rank that had joined.

    A failure leaves no descriptor, no segment and no thread behind (but a resolver that still looks
    up the coordinator's name may take its own time to end).
    """
    hello = hello_of(identity, settings, name, wires=wires)
    if identity.rank != 0 and listener is not None:
        raise ConfigError(f"only rank 0 listens; rank {identity.rank} was given a listener")
    if identity.size == 1:
        return _alone(standby, state)
    if segments is None:
        from standfast import _core

        segments = _core
    formation: Formation | None = None
    try:
        with Loop(settings.init_timeout_s, check) as loop:
            party: Coordinator | Member
            if identity.rank == 0:
                listeners = _listeners(loop, identity, settings, listener)
                party = Coordinator(
                    loop, identity, settings, hello, listeners, segments, standby, state
                )
            else:
                endpoint = parse_endpoint(_coordinator_of(identity))
                party = Member(loop, identity, settings, hello, endpoint, segments, standby, state)
            formation = _run(loop, party, identity, segments)
    except BaseException:
        if formation is not None:
            # A signal handler raised as the loop was left.
            _close(formation)
            if formation.standby is not None and formation.standby is not standby:
                formation.standby.close()
        raise
    return formation


def _run(
    loop: Loop, party: Coordinator | Member, identity: Identity, segments: Segments
) -> Formation:
    """Form the group; if that fails, tell the others, clean up, and raise the first cause."""
    try:
        return party.run()
    except BaseException as error:
        _complete(error, identity)
        first = party.fail(error)
        cause = first or error
        if isinstance(cause, PeerDied):
            sweep(loop, segments, party.pid_here(cause.rank))
        if first is None:
            raise
        _complete(first, identity)
        raise first from error


def _close(formation: Formation) -> None:
    for _, fd in formation.control:
        os.close(fd)
    for wire in formation.wires:
        os.close(wire.fd)
        if wire.shm_fd >= 0:
            os.close(wire.shm_fd)
    if formation.beacon_fd >= 0:
        os.close(formation.beacon_fd)


def _alone(standby: socket.socket | None, state: bytes) -> Formation:
    peer = PeerInfo(rank=0, host=host_name(), pid=os.getpid(), same_host=True, address="")
    return Formation(
        peers=(peer,),
        control=[],
        wires=[],
        ranks_here=1,
        beacon_fd=-1,
        standby=standby,
        routes=((),),
        token=handshake.nonce(),
        states=(state,),
    )


def _coordinator_of(identity: Identity) -> str:
    if identity.coordinator is None:
        raise ConfigError(f"rank {identity.rank} of {identity.size} was not told its coordinator")
    return identity.coordinator


def _listeners(
    loop: Loop, identity: Identity, settings: Settings, given: socket.socket | None
) -> list[socket.socket]:
    """Return where rank 0 listens: what it was given, what the launcher handed over, or its own."""
    if given is not None:
        check_listener(given, "listener")
        return [given]
    if settings.listen_fd is not None:
        inherited = inherited_listener(settings.listen_fd)
        loop.adopt(inherited)
        return [inherited]
    return open_coordinator(loop, parse_endpoint(_coordinator_of(identity)), identity.size)


def _complete(error: BaseException, identity: Identity) -> None:
    """Add what every error of this package tells: where it was raised, and of which generation."""
    if isinstance(error, StandfastError):
        error.here = identity.rank if error.here is None else error.here
        error.generation = error.generation if error.generation is not None else identity.generation
