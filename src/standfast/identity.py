"""Who am I: rank, size and coordinator, from arguments or from what the launcher set.

init() calls `resolve` once per group; launchers.py has the variables.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from standfast.endpoint import Endpoint, parse_endpoint
from standfast.errors import ConfigError
from standfast.launchers import (
    FIRST_GENERATION,
    LAUNCHERS,
    NODE_LAUNCHERS,
    OURS,
    Environ,
    Launcher,
    Meeting,
    Reading,
    Rule,
    our_port,
)


@dataclass(frozen=True)
class Identity:
    """A rank's place in its group.

    coordinator is the text host:port as it was given, or None where a group of one, or a listener
    that was handed to rank 0, needs none. source says where rank and size came from.
    """

    rank: int
    size: int
    local_rank: int | None = None
    coordinator: str | None = None
    generation: int = FIRST_GENERATION
    job_id: str | None = None
    source: str = "arguments"


class Claim(NamedTuple):
    """A launcher that says who this rank is, wholly or in part."""

    launcher: Launcher
    rank: Reading | None
    size: Reading | None

    def complete(self) -> bool:
        """Tell whether both rank and size are known."""
        return self.rank is not None and self.size is not None

    def seen(self) -> str:
        """Name the variables that were found, with their values."""
        return ", ".join(f"{r.variable}={r.text!r}" for r in (self.rank, self.size) if r)


def resolve(
    *,
    rank: int | None = None,
    size: int | None = None,
    coordinator: str | None = None,
    generation: int | None = None,
    environ: Environ | None = None,
) -> Identity:
    """Return who this rank is: from the arguments, else STANDFAST_*, else a launcher's variables.

    Under an mpirun that says nothing of where ranks meet, mpi4py is asked, if it is installed and
    `environ` is this process's own: a broadcast, for which all ranks must call.

    Raises:
        ConfigError: nothing says it, or only half of it; two sources disagree; a number, address or
            file is not what it must be. Names the variables and their values.
        RendezvousError: MPI's broadcast did not come.
    """
    ask_mpi = environ is None
    environ = os.environ if environ is None else environ
    claims = _claims(rank, size, environ, _launchers(environ))
    claim = claims[0]
    assert claim.rank is not None
    assert claim.size is not None
    _check_range(claim)
    if coordinator is not None:
        parse_endpoint(coordinator)
    launcher = claim.launcher
    return Identity(
        rank=claim.rank.value,
        size=claim.size.value,
        local_rank=_value(Rule(("STANDFAST_LOCAL_RANK",)), launcher.local_rank, environ),
        coordinator=coordinator or _coordinator(claims, environ, ask_mpi=ask_mpi),
        generation=_generation(generation, launcher, environ),
        job_id=_job_id(launcher, environ),
        source=claim.seen(),
    )


def is_given(environ: Environ | None = None) -> bool:
    """Tell whether a launcher says, wholly or in part, which rank this process is."""
    environ = os.environ if environ is None else environ
    rows = _launchers(environ)
    return any(row.rank.read(environ) or row.size.read(environ) for row in rows)


def slot(environ: Environ | None = None) -> int | None:
    """Return the rank by which our launcher counts this process, whatever its group says."""
    found = OURS.rank.read(os.environ if environ is None else environ)
    return found.value if found else None


def job_id(environ: Environ | None = None) -> str | None:
    """Return the id of the job that our launcher gave, if it did."""
    return _job_id(OURS, os.environ if environ is None else environ)


def _launchers(environ: Environ) -> Sequence[Launcher]:
    """Return the rows to ask: all, or those that STANDFAST_LAUNCHER names."""
    chosen = environ.get("STANDFAST_LAUNCHER")
    if chosen is None:
        return (OURS, *LAUNCHERS)
    if chosen in ("none", OURS.name):
        return (OURS,)
    everybody = (*LAUNCHERS, *NODE_LAUNCHERS)
    rows = [row for row in everybody if row.name == chosen]
    if not rows:
        known = ", ".join(dict.fromkeys(row.name for row in everybody))
        raise ConfigError(f"STANDFAST_LAUNCHER={chosen!r} is not one of {known}, none")
    return rows


def _claims(
    rank: int | None, size: int | None, environ: Environ, launchers: Sequence[Launcher]
) -> Sequence[Claim]:
    """Choose the source that says who this rank is; others that say the same come behind it."""
    if rank is not None or size is not None:
        return [_from_arguments(rank, size)]
    claims = [Claim(row, row.rank.read(environ), row.size.read(environ)) for row in launchers]
    complete = [claim for claim in claims if claim.complete()]
    partial = [claim for claim in claims if claim.seen() and not claim.complete()]
    ours = [claim for claim in partial if claim.launcher is OURS]
    if ours or (partial and not complete):
        raise ConfigError(_incomplete(ours or partial), hint=_node_hint(environ))
    if not complete:
        raise ConfigError(
            "nothing says which rank this is",
            hint=_node_hint(environ)
            or "start it with `standfast run -n N -- ...` (or torchrun, or mlx.launch); "
            "or set STANDFAST_RANK, STANDFAST_WORLD_SIZE and STANDFAST_COORDINATOR=host:port; "
            "or call init(rank=..., size=..., coordinator='host:port'). "
            "A group of one is init(rank=0, size=1)",
        )
    chosen = complete[0]
    return [chosen, *(other for other in complete[1:] if _agree(chosen, other))]


def _node_hint(environ: Environ) -> str | None:
    """Say what to do where the environment names a node, which is not yet a rank."""
    for row in NODE_LAUNCHERS:
        found = row.rank.read(environ)
        if found is not None:
            return (
                f"{found.variable}={found.text!r} says which node this is, not which rank: if each "
                f"node has one rank, set STANDFAST_LAUNCHER={row.name}; else give each rank its "
                "STANDFAST_RANK and STANDFAST_WORLD_SIZE"
            )
    return None


def _from_arguments(rank: int | None, size: int | None) -> Claim:
    given = {"rank": rank, "size": size}
    for name, value in given.items():
        if value is None:
            other = next(n for n in given if n != name)
            raise ConfigError(f"{other}={given[other]} was given without {name}")
    readings = [Reading(name, str(value), _index(name, value)) for name, value in given.items()]
    return Claim(Launcher("arguments", Rule(), Rule()), *readings)


def _index(name: str, value: object) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type] # a TypeError is the answer
    except TypeError:
        raise ConfigError(f"{name}={value!r} is not a whole number") from None


def _incomplete(partial: Sequence[Claim]) -> str:
    """Say what was found and what is missing for it to be complete."""
    first = partial[0]
    same = [claim for claim in partial if claim.seen() == first.seen()]
    rules = [claim.launcher.size if claim.rank else claim.launcher.rank for claim in same]
    missing = dict.fromkeys(name for rule in rules for name in rule.variables)
    return f"{first.seen()} is set, but {' or '.join(missing)} is not"


def _agree(chosen: Claim, other: Claim) -> bool:
    """Tell whether two sources say the same; refuse them if neither may run inside the other."""
    values = [(c.rank.value, c.size.value) for c in (chosen, other) if c.rank and c.size]
    if values[0] == values[1]:
        return True
    if other.launcher.name in chosen.launcher.inside:
        return False
    words = dict.fromkeys(c.launcher.name for c in (chosen, other))
    raise ConfigError(
        f"two launchers disagree about who this rank is: {chosen.seen()} and {other.seen()}",
        hint=f"unset one of them, or choose: STANDFAST_LAUNCHER={'|'.join((*words, 'none'))}",
    )


def _check_range(claim: Claim) -> None:
    assert claim.rank is not None
    assert claim.size is not None
    if claim.size.value < 1:
        raise ConfigError(f"{claim.size.variable}={claim.size.text}: a group has at least 1 rank")
    if not 0 <= claim.rank.value < claim.size.value:
        raise ConfigError(
            f"{claim.seen()}: rank {claim.rank.value} is not one of the {claim.size.value} ranks "
            f"0..{claim.size.value - 1}"
        )


def _value(first: Rule, second: Rule, environ: Environ) -> int | None:
    found = first.read(environ) or second.read(environ)
    return found.value if found else None


def _job_id(launcher: Launcher, environ: Environ) -> str | None:
    return launcher.job(environ)


def _generation(argument: int | None, launcher: Launcher, environ: Environ) -> int:
    if argument is not None:
        value = _index("generation", argument)
        if value < 0:
            raise ConfigError(f"generation={value} is below 0")
        return value
    found = _value(Rule(("STANDFAST_GENERATION",)), launcher.generation, environ)
    return FIRST_GENERATION if found is None else found


def _coordinator(claims: Sequence[Claim], environ: Environ, *, ask_mpi: bool) -> str | None:
    """Return where the ranks meet; None for a group of one, or if rank 0 was handed a listener."""
    given = environ.get("STANDFAST_COORDINATOR")
    if given is not None:
        parse_endpoint(given, name="STANDFAST_COORDINATOR")
        return given
    claim = claims[0]
    assert claim.rank is not None
    assert claim.size is not None
    alone = claim.size.value == 1
    meeting = None if alone else _meeting(claims, environ)
    port = our_port(meeting, environ)
    if meeting and port:
        return str(Endpoint(meeting.host.strip("[]"), port))
    if alone or (claim.rank.value == 0 and "STANDFAST_LISTEN_FD" in environ):
        return None
    if ask_mpi and meeting is None and claim.launcher.over_mpi:
        from standfast import mpi

        if mpi.is_installed():
            return str(mpi.meeting(claim.rank.value, claim.size.value))
    lacking = "knows no port" if meeting else "has no coordinator"
    ways = [claim.launcher.hint] if claim.launcher.hint and not meeting else []
    ways.append("give every rank the address of rank 0: STANDFAST_COORDINATOR=host:port")
    if meeting:
        ways.append(f"STANDFAST_PORT on {meeting.host}")
    raise ConfigError(
        f"rank {claim.rank.value} of {claim.size.value} {lacking} to meet the others "
        f"({claim.seen()})",
        hint=", or ".join(ways),
    )


def _meeting(claims: Sequence[Claim], environ: Environ) -> Meeting | None:
    """Return where the first of these launchers that says so lets its ranks meet."""
    meetings = (claim.launcher.meeting(environ) for claim in claims)
    return next((meeting for meeting in meetings if meeting is not None), None)
