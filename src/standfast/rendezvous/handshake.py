"""Proofs of the key on a new connection: making them, and saying what is wrong with one. Pure.

The listening side sends a nonce, the connecting side answers with its own nonce and a proof, the
listening side proves itself in return. A proof is HMAC-SHA256 over the prover's side, both nonces,
the purpose, both ranks and the body, so it is of no use in another place: not sent back to its
maker, not on another connection, not as another rank.
"""

from __future__ import annotations

import hmac
import secrets
import struct

from standfast.errors import ConfigError, RendezvousError
from standfast.rendezvous.protocol import (
    EVERYBODY,
    LAUNCHER,
    NONCE_BYTES,
    VERSION,
    Begin,
    Challenge,
    Refused,
)
from standfast.settings import Secret

CONNECTS = b"connects"
LISTENS = b"listens"

KEY_HINT = "give all ranks the same key= (STANDFAST_KEY), or none"


def named(rank: int, purpose: str = "") -> str:
    """Return who is at an end of a connection for this purpose, for messages."""
    if purpose == LAUNCHER:
        return f"node {rank}'s launcher"
    return "a rank of the group that forms again" if rank == EVERYBODY else f"rank {rank}"


def nonce() -> bytes:
    """Return fresh random bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def data_secret(key: bytes | None, token: bytes) -> bytes:
    """Return what opens data ports: made from the group's token, and the key if there is one."""
    return Secret(hmac.digest(key or b"", b"standfast data" + token, "sha256"))


def prove(secret: bytes | None, side: bytes, challenge_nonce: bytes, begin: Begin) -> bytes:
    """Return a side's proof that it has the secret; without one there is nothing to prove."""
    if secret is None:
        return b""
    purpose = begin.purpose.encode()
    parts = (
        struct.pack(">BB", VERSION, len(side)),
        side,
        challenge_nonce,
        begin.nonce,
        struct.pack(">IIII", begin.rank, begin.target, len(purpose), len(begin.body)),
        purpose,
        begin.body,
    )
    return hmac.digest(secret, b"".join(parts), "sha256")


def answer(
    challenge: Challenge, *, secret: bytes | None, purpose: str, rank: int, target: int, body: bytes
) -> Begin:
    """Return the connecting side's answer to a challenge."""
    keyed = secret is not None
    bare = Begin(purpose, rank, target, nonce(), keyed, body, b"")
    # Without a challenge to a key there is nobody to prove it to.
    proof = prove(secret, CONNECTS, challenge.nonce, bare) if challenge.keyed else b""
    return Begin(purpose, rank, target, bare.nonce, keyed, body, proof)


def objection(
    begin: Begin, *, secret: bytes | None, purpose: str, rank: int, challenge_nonce: bytes
) -> Refused | None:
    """Say why the listening side must not believe this answer, or None."""
    if begin.purpose != purpose or begin.target != rank:
        return Refused(
            RendezvousError.kind,
            f"this is the {purpose} port of {named(rank, purpose)}, "
            f"not the {begin.purpose} port of {named(begin.target, begin.purpose)}",
        )
    caller, callee = named(begin.rank, purpose), named(rank, purpose)
    if begin.keyed != (secret is not None):
        has, lacks = (caller, callee) if begin.keyed else (callee, caller)
        return Refused(ConfigError.kind, f"{has} has a key and {lacks} has none", KEY_HINT)
    expected = prove(secret, CONNECTS, challenge_nonce, begin)
    if not hmac.compare_digest(expected, begin.proof):
        return Refused(ConfigError.kind, f"{caller} has another key than {callee}", KEY_HINT)
    return None


def proves_itself(
    proof: bytes, *, secret: bytes | None, challenge_nonce: bytes, begin: Begin
) -> bool:
    """Tell whether the listening side's proof is right."""
    return hmac.compare_digest(prove(secret, LISTENS, challenge_nonce, begin), proof)
