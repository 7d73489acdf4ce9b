"""Why a JACCL group was not formed: the errors, in words and fields. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from standfast.errors import ConfigError, FabricError, PeerDied, RendezvousError
from standfast.rendezvous.failures import OP, ranks_text

LATE_HINT = "start the missing ranks, or wait longer: Options(timeout_s=...)"


def not_come(
    timeout_s: float, missing: Sequence[int], address: str, notes: Sequence[str]
) -> RendezvousError:
    """Not all ranks came to rank 0."""
    verb = "has" if len(missing) == 1 else "have"
    return RendezvousError(
        f"the JACCL group was not formed within {timeout_s:g} s: {ranks_text(missing)} {verb} not "
        f"come to {address}" + "".join(f"; {note}" for note in notes),
        hint=LATE_HINT,
        missing=list(missing),
        evidence=notes,
        address=address,
        here=0,
        op=OP,
    )


def not_answered(timeout_s: float, silent: Sequence[int], here: int, step: str) -> RendezvousError:
    """All ranks came, but one of them does not go on."""
    text = ranks_text(silent)
    return RendezvousError(
        f"the JACCL group was not formed within {timeout_s:g} s: rank {here} waits for {text} in "
        f"the exchange of {step}",
        hint=f"look at what {text} does; rank 0 also waits for those that have not come to it",
        rank=silent[0] if len(silent) == 1 else None,
        missing=list(silent),
        here=here,
        op=OP,
    )


def unreachable(
    timeout_s: float, address: str, attempts: int, last: str, here: int
) -> RendezvousError:
    """Rank 0's port was never reached."""
    return RendezvousError(
        f"rank {here} could not reach rank 0 of the JACCL group at {address} within {timeout_s:g} "
        f"s: {attempts} attempt{'s'[: attempts != 1]}; {last or 'no answer'}",
        hint="is rank 0 running, and is this its address? " + LATE_HINT,
        missing=[0],
        address=address,
        attempts=attempts,
        cause=last or None,
        here=here,
        op=OP,
    )


def ended(rank: int, host: str, how: str, *, here: int, step: str) -> PeerDied:
    """A rank's side channel ended: JACCL has no other way to say that it failed."""
    where = f" on {host}" if host else ""
    others = "" if here == 0 else "; it ends so as well when any other rank has failed"
    return PeerDied(
        f"rank {rank}{where} ended while the JACCL group was being formed: its side channel {how} "
        f"during the exchange of {step}{others}",
        hint=f"the output of rank {rank} says why; then form the group again",
        rank=rank,
        host=host or None,
        cause=f"side channel {how}",
        reporter=here,
        here=here,
        op=OP,
    )


def other_layout(rank: int, announced: int, expected: int, *, here: int, step: str) -> ConfigError:
    """A rank announced another number of queue pairs: it forms another topology."""
    return ConfigError(
        f"rank {rank} announces {announced} {step}, rank {here} has {expected}: they do not form "
        "the same mesh or ring",
        hint="all ranks need the same device file, and JACCL_RING on all or none",
        rank=rank,
        here=here,
        op=OP,
    )


def wrong_key(here: int, address: str) -> ConfigError:
    """The other end of a connection to rank 0 did not prove itself."""
    return ConfigError(
        f"rank 0 at {address} does not have the key of rank {here}",
        hint="give all ranks the same key, or none; stock ranks have none",
        rank=0,
        here=here,
        op=OP,
    )


def fabric(
    args: tuple[str, str, str, str, int], *, here: int, host: str, peer: int | None = None
) -> FabricError:
    """What the core says of a device; args are those of its VerbsError."""
    code, text, hint, device, number = args
    return FabricError(
        f"rank {here} on {host}: {text}",
        hint=hint or None,
        rank=here,
        host=host,
        cause=text,
        reporter=here,
        here=here,
        op=OP,
        code=code,
        device=device or None,
        error=number or None,
        peer=peer,
    )
