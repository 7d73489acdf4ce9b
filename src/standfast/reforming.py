"""Forming a group again without restarting Python: survivors and newcomers. Called by group.py.

Two steps, again and again until they succeed or the time is over: muster (who serves, who is in),
then the same form() as for a first generation. docs/design/reform.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import operator
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from standfast.endpoint import Endpoint, is_loopback, is_wildcard, parse_endpoint
from standfast.errors import ConfigError, FabricError, PeerError, RendezvousError, StandfastError
from standfast.identity import Identity
from standfast.matrix import whole
from standfast.rendezvous import Formation, lineage
from standfast.rendezvous.hello import hello_of
from standfast.rendezvous.lineage import Lineage, Wish
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.muster import Muster, Summons
from standfast.rendezvous.newcomer import JOIN, Newcomer
from standfast.rendezvous.protocol import STATE_BYTES_MAX, Hello, Outcome, Refused
from standfast.settings import Settings
from standfast.standby import StandBy

logger: logging.Logger = logging.getLogger("standfast")

# One attempt to form may take so long; if a rank freezes in it, the others try again without it.
FORM_S_MAX = 15.0
ID_DIGITS = 12


@dataclass(frozen=True)
class Past:
    """The generation that is over, at one of its ranks. cause: what ended it, if anything did."""

    lineage: Lineage
    who: Identity
    settings: Settings
    name: str
    standby: StandBy | None
    cause: StandfastError | None


@dataclass(frozen=True)
class Next:
    """Who this rank is in the generation to be formed, and where its ranks meet."""

    who: Identity
    settings: Settings
    outcome: Outcome
    listener: socket.socket | None
    check: Callable[[], None] | None = None


Form = Callable[[Next], Formation]


def check_state(state: bytes) -> bytes:
    """Return what a rank says of its state.

    Raises:
        TypeError, ValueError: it is not bytes, or too long.
    """
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise TypeError(f"state is a {type(state).__name__}; it must be bytes")
    if len(bytes(state)) > STATE_BYTES_MAX:
        raise ValueError(f"state has {len(state)} bytes; at most {STATE_BYTES_MAX} are sent")
    return bytes(state)


def wish_of(min_size: int | None, max_size: int | None, wait_s: float, known: Lineage) -> Wish:
    """Return when the group may form again.

    Raises:
        ValueError: the numbers are out of order.
    """
    most = known.full_size if max_size is None else operator.index(max_size)
    least = None if min_size is None else operator.index(min_size)
    if not 1 <= (least or 1) <= most:
        raise ValueError(f"min_size={min_size} and max_size={most}: must be 1 <= min <= max")
    if not 0 <= wait_s < float("inf"):
        raise ValueError(f"wait_s={wait_s} must be a number of seconds, 0 or more")
    return Wish(least, most, float(wait_s))


def first_lineage(who: Identity, formation: Formation) -> Lineage:
    """Return the lineage with which a group begins."""
    digest = hashlib.sha256(b"standfast group" + formation.token).hexdigest()
    numbers = tuple(range(who.size))
    return Lineage(
        group=digest[:ID_DIGITS],
        generation=who.generation,
        numbers=numbers,
        me=who.rank,
        routes=dict(enumerate(formation.routes)),
        hosts={peer.rank: peer.host for peer in formation.peers},
        full_size=who.size,
        attempted=who.generation,
        top=who.size - 1,
    )


def next_lineage(outcome: Outcome, formation: Formation) -> Lineage:
    """Return the lineage of a generation that was formed again."""
    numbers = tuple(outcome.numbers)
    return Lineage(
        group=outcome.group,
        generation=outcome.generation,
        numbers=numbers,
        me=numbers[outcome.rank],
        routes=dict(zip(numbers, formation.routes, strict=True)),
        hosts={numbers[peer.rank]: peer.host for peer in formation.peers},
        full_size=outcome.full_size,
        attempted=outcome.generation,
        top=max(numbers),
    )


def again(past: Past, wish: Wish, timeout_s: float, form: Form) -> tuple[Next, Formation]:
    """Meet the other survivors, and whoever joins, and form the next generation.

    Args:
        past: the generation that is over; its core is closed already.
        wish: how many ranks it takes, and for how long more are waited for.
        timeout_s: the one deadline.
        form: forms the group, given who this rank is in it.

    Raises:
        RendezvousError: not enough ranks came in time.
        StaleGroup: the others went on without this rank.
        ConfigError, FabricError: this rank or a newcomer is set up wrongly.
    """
    if past.standby is None:
        return _alone(past, form)
    past.standby.rest()
    if closed_to_newcomers(past.settings) is not None:
        wish = dataclasses.replace(wish, wait_s=0.0)  # nobody can come
    began = time.monotonic()
    known = past.lineage
    while True:
        spent_s = time.monotonic() - began
        left = dataclasses.replace(wish, wait_s=max(0.0, wish.wait_s - spent_s))
        summons = _muster(past, known, left, max(0.0, timeout_s - spent_s))
        try:
            return _formed(past.who, past.settings, summons, timeout_s + began, form)
        except FabricError:
            raise
        except (PeerError, RendezvousError) as error:
            if time.monotonic() - began >= timeout_s:
                raise
            logger.warning("generation %d was not formed: %s", summons.outcome.generation, error)
        known = dataclasses.replace(
            known,
            attempted=summons.outcome.generation,
            top=max(known.top, *summons.outcome.numbers),
        )


def join(
    addresses: str, settings: Settings, form: Form, job_id: str | None
) -> tuple[Next, Formation]:
    """Be taken into a group that forms again, as a process that was in no generation of it.

    Args:
        addresses: ``host:port,...`` of its ranks.
        settings: this process's.
        form: forms the group, given who this rank is in it.
        job_id: of the launcher, if there is one.

    Raises:
        RendezvousError: no group took this process in before the deadline.
        ConfigError: it is set up otherwise than the group's ranks.
    """
    endpoints = [parse_endpoint(text.strip(), name=JOIN) for text in addresses.split(",")]
    stranger = Identity(rank=0, size=1, generation=0, job_id=job_id, source=JOIN)
    hello = hello_of(stranger, settings, "", wires=True)
    deadline = time.monotonic() + settings.init_timeout_s
    while True:
        with Loop(max(0.0, deadline - time.monotonic())) as loop:
            summons = Newcomer(loop, endpoints, hello=hello, key=settings.key).run()
        try:
            return _formed(stranger, settings, summons, deadline, form)
        except FabricError:
            raise
        except (PeerError, RendezvousError) as error:
            if time.monotonic() >= deadline:
                raise
            logger.warning("generation %d was not formed: %s", summons.outcome.generation, error)


def _muster(past: Past, known: Lineage, wish: Wish, timeout_s: float) -> Summons:
    assert past.standby is not None
    cause = past.cause
    lost = lineage.lost_by(
        cause.kind if cause else "",
        cause.rank if cause else None,
        known.numbers,
        known.hosts,
        known.me,
    )
    hello = hello_of(past.who, past.settings, past.name, wires=True)
    with Loop(timeout_s) as loop:
        muster = Muster(
            loop,
            past.standby.listener,
            known,
            lost=lost,
            wish=wish,
            hello=hello,
            key=past.settings.key,
            closed=closed_to_newcomers(past.settings),
        )
        try:
            return muster.run()
        except BaseException as error:
            muster.fail(error)
            raise


def _formed(
    who: Identity, settings: Settings, summons: Summons, deadline: float, form: Form
) -> tuple[Next, Formation]:
    outcome, tether = summons.outcome, summons.tether
    with contextlib.ExitStack() as stack:
        stack.callback(tether.cut)
        if summons.listener is not None:
            stack.callback(summons.listener.close)
        left_s = max(0.001, deadline - time.monotonic())
        chosen = dataclasses.replace(
            _with_devices(settings, outcome), init_timeout_s=min(FORM_S_MAX, left_s)
        )
        following = Next(
            dataclasses.replace(
                who,
                rank=outcome.rank,
                size=len(outcome.numbers),
                coordinator=str(summons.coordinator),
                generation=outcome.generation,
            ),
            chosen,
            outcome,
            summons.listener,
            tether.check,
        )
        formation = form(following)
        tether.done()
    # Of the settings only the time to form was another.
    restored = dataclasses.replace(chosen, init_timeout_s=settings.init_timeout_s)
    following = dataclasses.replace(following, settings=restored, listener=None, check=None)
    return following, formation


def closed_to_newcomers(settings: Settings) -> Refused | None:
    """Return what a newcomer is told that the group cannot take in, whoever it is."""
    if settings.fabric != "verbs" or settings.devices is None:
        return None
    return Refused(
        ConfigError.kind,
        "the RDMA devices of this group are given by a matrix (STANDFAST_DEVICES), in which a "
        "newcomer has no row; the group goes on without it",
        "leave STANDFAST_DEVICES unset where each host has one device, so that it is found; or "
        "let all ranks end and start again, with `standfast run --restarts` and no --replace",
    )


def _with_devices(settings: Settings, outcome: Outcome) -> Settings:
    """Return the settings with the device matrix of those who are left."""
    if settings.devices is None or closed_to_newcomers(settings) is None:
        return settings
    return dataclasses.replace(settings, devices=whole(settings.devices).of(outcome.old_ranks))


def _alone(past: Past, form: Form) -> tuple[Next, Formation]:
    """A group of one that nobody knows of: there is nobody to meet."""
    known = past.lineage
    outcome = Outcome(
        group=known.group,
        generation=max(known.attempted, known.generation) + 1,
        rank=0,
        port=0,
        numbers=list(known.numbers),
        old_ranks=[0],
        full_size=known.full_size,
    )
    who = dataclasses.replace(past.who, generation=outcome.generation)
    following = Next(who, past.settings, outcome, None)
    return following, form(following)


def hello_at_work(who: Identity, settings: Settings, name: str) -> Hello:
    """Return what this rank compares comers with while it is at work."""
    return hello_of(who, settings, name, wires=True)


def addresses(
    known: Lineage, coordinator: str | None, numbers: Sequence[int] | None = None
) -> list[Endpoint]:
    """Return where each rank is found, as seen from here, from elsewhere if that is known.

    `numbers`: of whom; everybody in the order of ranks if not given.
    """
    asked = known.numbers if numbers is None else numbers
    found = [known.routes[number][-1] for number in asked if known.routes.get(number)]
    host = parse_endpoint(coordinator).host if coordinator else ""
    if not host or is_wildcard(host):
        return found
    return [Endpoint(host, each.port) if is_loopback(each.host) else each for each in found]
