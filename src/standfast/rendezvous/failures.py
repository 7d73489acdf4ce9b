"""Why a group was not formed: the errors, in words and as frames for the other ranks. Pure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from standfast.errors import (
    BY_KIND,
    ConfigError,
    FabricError,
    InternalError,
    PeerDied,
    PeerLeft,
    RemoteFailure,
    RendezvousError,
    StaleGroup,
    StandfastError,
)
from standfast.rendezvous import second_look
from standfast.rendezvous.protocol import Failed, Refused, Trouble, clipped
from standfast.rendezvous.second_look import Look

OP = "init"
TRACEBACK_LINES_MAX = 20
ERRORS: Mapping[str, type[StandfastError]] = {
    **BY_KIND,
    ConfigError.kind: ConfigError,
    RendezvousError.kind: RendezvousError,
    StaleGroup.kind: StaleGroup,
    FabricError.kind: FabricError,
}
LATE_HINT = "start the missing ranks, or wait longer: init_timeout_s (STANDFAST_INIT_TIMEOUT_S)"
# Fields that are about the rank that raises, and not to be told to others.
LOCAL_FIELDS = ("here", "detected_ns", "waited_s")


def ranks_text(ranks: Sequence[int]) -> str:
    """Return "rank 2" or "ranks 2, 3"."""
    return f"rank{'s'[: len(ranks) != 1]} {', '.join(map(str, ranks))}"


def died(rank: int, host: str, cause: str, *, reporter: int, generation: int) -> PeerDied:
    """A rank that had joined is gone."""
    seen = f"{cause.replace('connection', 'control link', 1)} without goodbye"
    return PeerDied(
        f"rank {rank} on {host} died while the group was being formed: {seen}",
        hint="its own output and exit status say why; then form the group again",
        rank=rank,
        host=host,
        cause=seen,
        reporter=reporter,
        op=OP,
        generation=generation,
    )


def too_late(timeout_s: float, missing: Sequence[int], address: str) -> RendezvousError:
    """The deadline passed before all ranks had come."""
    verb = "has" if len(missing) == 1 else "have"
    return RendezvousError(
        f"the group was not formed within {timeout_s:g} s: "
        f"{ranks_text(missing)} {verb} not come to {address}",
        hint=LATE_HINT,
        missing=list(missing),
        address=address,
        op=OP,
    )


def most_missed(unready: Sequence[int], troubles: Mapping[int, Trouble]) -> list[int]:
    """Return those of the unready ranks that the most others have no wire to.

    One frozen rank leaves all others unready as well, but it alone is missed by all.
    """
    votes = {rank: sum(rank in t.peers for t in troubles.values()) for rank in unready}
    return [rank for rank in unready if votes[rank] == max(votes.values())]


def not_wired(
    timeout_s: float, unready: Sequence[int], troubles: Mapping[int, Trouble], address: str
) -> RendezvousError:
    """The deadline passed before all ranks had their wires."""
    suspects = most_missed(unready, troubles)
    details = [f"rank {rank} has {trouble.text}" for rank, trouble in sorted(troubles.items())]
    return RendezvousError(
        f"the group was not formed within {timeout_s:g} s: all ranks came, but "
        f"{ranks_text(suspects)} did not finish connecting to the others"
        + "".join(f"; {detail}" for detail in details),
        hint="each rank must reach the others' data ports: see STANDFAST_DATA_ADDRESS, firewalls",
        rank=suspects[0] if suspects else None,
        missing=[],
        evidence=details,
        address=address,
        op=OP,
    )


def other_table(rank: int, here: int) -> InternalError:
    """A rank is in another group than those who wait for it, though it was let in."""
    return InternalError(
        f"rank {rank} holds another table of ranks than rank {here}",
        hint="this is a bug in standfast; please report it",
        rank=rank,
        here=here,
        op=OP,
    )


def no_answer(timeout_s: float, missing: Sequence[int], address: str) -> RendezvousError:
    """The deadline of a rank that had joined passed, and rank 0 did not say anything."""
    waiting = f"; it last waited for {ranks_text(missing)}" if missing else ""
    return RendezvousError(
        f"the group was not formed within {timeout_s:g} s: rank 0 at {address} does not answer"
        + waiting,
        rank=0,
        missing=list(missing),
        address=address,
        op=OP,
    )


def unreachable(
    rank: int,
    timeout_s: float,
    address: str,
    attempts: int,
    last: str,
    *,
    seen: Look | None = None,
    platform: str = "",
) -> RendezvousError:
    """The coordinator was never reached. seen: by a second look at it, on this platform."""
    advice = second_look.advice(seen, platform=platform) if seen else None
    return RendezvousError(
        f"rank {rank} could not reach rank 0 at {address} within {timeout_s:g} s: "
        f"{attempts} attempt{'s'[: attempts != 1]}; {last or 'no answer'}"
        + (f"; {second_look.evidence(seen)}" if seen else ""),
        hint=advice or "is rank 0 running, and is this its address? " + LATE_HINT,
        missing=[0],
        address=address,
        attempts=attempts,
        cause=last or None,
        op=OP,
    )


def refused(refusal: Refused, *, by: str, here: int) -> StandfastError:
    """The coordinator does not want this rank."""
    cls = ERRORS.get(refusal.kind, RendezvousError)
    text = clipped(refusal.text)
    return cls(
        f"rank {here} was refused by the coordinator at {by}: {text}",
        hint=clipped(refusal.hint) if refusal.hint else None,
        cause=text,
        here=here,
        op=OP,
        **({"address": by} if cls is RendezvousError else {}),
    )


def as_told(error: BaseException, *, rank: int, host: str, generation: int) -> Failed:
    """Return what the others are told of an error that ended this rank's part in the forming."""
    if isinstance(error, StandfastError) and not isinstance(error, InternalError):
        return _failed(error)
    about: dict[str, Any] = {"rank": rank, "host": host, "reporter": rank}
    about |= {"op": OP, "generation": generation}
    if not isinstance(error, Exception):
        cause = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        message = f"rank {rank} on {host} left while the group was being formed: {cause}"
        return _failed(PeerLeft(message, cause=cause, **about))
    name, text = type(error).__name__, str(error)
    tail = traceback.format_exception(error)[-TRACEBACK_LINES_MAX:]
    return _failed(
        RemoteFailure(
            f"rank {rank} on {host} raised while the group was being formed: {name}: {text}",
            cause=f"{name}: {text}",
            remote_type=name,
            remote_message=text,
            remote_traceback="".join(tail),
            **about,
        )
    )


def _failed(error: StandfastError) -> Failed:
    fields = error.to_dict()
    for name in ("type", "kind", "message", "hint", *LOCAL_FIELDS):
        fields.pop(name, None)
    return Failed(error.kind, error.message, error.hint, fields)


def from_told(failed: Failed, *, here: int) -> StandfastError:
    """Return the error that another rank told of, to be raised here."""
    cls = ERRORS.get(failed.kind, RendezvousError)
    known = {name: value for name, value in failed.fields.items() if name not in LOCAL_FIELDS}
    known |= {"here": here, "detected_ns": time.monotonic_ns()}
    if cls is RendezvousError:
        known.setdefault("missing", [])
    try:
        return cls(failed.message, hint=failed.hint, **known)
    except TypeError:
        return cls(failed.message, hint=failed.hint, here=here)
