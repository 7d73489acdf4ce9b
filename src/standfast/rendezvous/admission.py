"""Does a rank that says hello belong to this group? Pure; rank 0 asks it for each that comes."""

from __future__ import annotations

from collections.abc import Mapping

from standfast.errors import ConfigError, RendezvousError, StaleGroup
from standfast.rendezvous.protocol import Hello, Refused, clipped


def objection(
    rank: int, hello: Hello, *, ours: Hello, present: Mapping[int, Hello]
) -> Refused | None:
    """Say why this rank is refused, or None.

    `ours` is rank 0's own hello; `present` has all ranks that have joined, rank 0 too.
    """
    who = f"rank {rank} ({hello.host}, pid {hello.pid})"
    stranger = other_group(who, hello, ours)
    if stranger:
        return Refused(RendezvousError.kind, clipped(stranger))
    if hello.generation != ours.generation:
        kind = StaleGroup.kind if hello.generation < ours.generation else RendezvousError.kind
        return Refused(kind, clipped(_other_time(who, hello, ours)))
    problem = (
        other_kind(who, hello, ours)
        or _other_place(who, rank, hello, ours)
        or _duplicate(rank, hello, present)
    )
    return Refused(ConfigError.kind, clipped(problem)) if problem else None


def other_group(who: str, hello: Hello, ours: Hello) -> str | None:
    """Say to what else it belongs, or None."""
    if hello.name != ours.name:
        return f"{who} wants to join group {hello.name!r}; this is group {ours.name!r}"
    if hello.job_id is not None and ours.job_id is not None and hello.job_id != ours.job_id:
        return f"{who} belongs to job {hello.job_id!r}; this is job {ours.job_id!r}"
    return None


def _other_time(who: str, hello: Hello, ours: Hello) -> str:
    return f"{who} belongs to generation {hello.generation}; this is generation {ours.generation}"


def other_kind(who: str, hello: Hello, ours: Hello) -> str | None:
    """Say in what its program differs, whatever its rank and size, or None."""
    if hello.version != ours.version:
        return f"{who} runs standfast {hello.version}, rank 0 runs {ours.version}"
    if hello.wires != ours.wires:
        calls = {True: "standfast.init()", False: "standfast.watch()"}
        return f"{who} called {calls[hello.wires]}, rank 0 {calls[ours.wires]}"
    return _other_settings(who, hello, ours)


def _other_place(who: str, rank: int, hello: Hello, ours: Hello) -> str | None:
    """It is one of ours, started in another place."""
    if hello.size != ours.size:
        return f"{who} was started in a group of {hello.size}, rank 0 in a group of {ours.size}"
    if not 0 <= rank < ours.size:
        return f"{who} is not one of the {ours.size} ranks 0..{ours.size - 1}"
    return None


def _other_settings(who: str, hello: Hello, ours: Hello) -> str | None:
    names = sorted(hello.settings.keys() | ours.settings.keys())
    pairs = [(name, hello.settings.get(name), ours.settings.get(name)) for name in names]
    differing = [
        f"{name}={here!r} (rank 0: {there!r})" for name, here, there in pairs if here != there
    ]
    return f"{who} has other settings than rank 0: {', '.join(differing)}" if differing else None


def _duplicate(rank: int, hello: Hello, present: Mapping[int, Hello]) -> str | None:
    """Its place is taken."""
    first = present.get(rank)
    if first is None:
        return None
    return (
        f"two processes say that they are rank {rank}: pid {first.pid} on {first.host}, which came "
        f"first, and pid {hello.pid} on {hello.host}, which is refused"
    )
