"""Proofs of the key on a side-channel connection, before JACCL's first byte. Pure.

Rank 0 sends a nonce; the other answers with its own nonce and a proof; rank 0 proves itself in
return. A proof is HMAC-SHA256 over the prover's side, both nonces and the rank.
"""

from __future__ import annotations

import hmac
import secrets

from standfast.jaccl.records import INT

NONCE_BYTES = PROOF_BYTES = 32
# Rank, nonce, proof.
ANSWER_BYTES = INT.size + NONCE_BYTES + PROOF_BYTES


def nonce() -> bytes:
    """Return fresh random bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def _prove(key: bytes, side: bytes, challenge: bytes, own: bytes, rank: int) -> bytes:
    said = b"standfast jaccl " + side + challenge + own + INT.pack(rank)
    return hmac.digest(key, said, "sha256")


def answer(key: bytes, challenge: bytes, own: bytes, rank: int) -> bytes:
    """Return what the connecting side answers to a nonce, with a nonce of its own."""
    return INT.pack(rank) + own + _prove(key, b"connects", challenge, own, rank)


def check(key: bytes, challenge: bytes, answered: bytes) -> bytes | None:
    """Return rank 0's own proof if the other side's answer is right, else None."""
    (rank,) = INT.unpack_from(answered)
    own = answered[INT.size : INT.size + NONCE_BYTES]
    expected = answer(key, challenge, own, rank)
    if not hmac.compare_digest(expected, answered):
        return None
    return _prove(key, b"listens", challenge, own, rank)


def proves_rank_0(key: bytes, challenge: bytes, own: bytes, rank: int, proof: bytes) -> bool:
    """Tell whether rank 0 has the key."""
    return hmac.compare_digest(_prove(key, b"listens", challenge, own, rank), proof)
