"""Proofs are worth something in one place only."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.rendezvous import handshake
from standfast.rendezvous.protocol import CONTROL, DATA, Begin, Challenge, Refused

KEY = b"sixteen bytes or more"


def challenge(*, keyed: bool = True) -> Challenge:
    return Challenge(handshake.nonce(), keyed, False)


def answer(to: Challenge, secret: bytes | None = KEY, **changes: Any) -> Begin:
    values: dict[str, Any] = {"purpose": CONTROL, "rank": 2, "target": 0, "body": b"hello"}
    return handshake.answer(to, secret=secret, **{**values, **changes})


def judge(begin: Begin, to: Challenge, secret: bytes | None = KEY) -> Refused | None:
    return handshake.objection(
        begin, secret=secret, purpose=CONTROL, rank=0, challenge_nonce=to.nonce
    )


def altered(begin: Begin, **changes: Any) -> Begin:
    names = ("purpose", "rank", "target", "nonce", "keyed", "body", "proof")
    return Begin(**{**{name: getattr(begin, name) for name in names}, **changes})


def test_both_sides_prove_the_key() -> None:
    """With the same key each side takes the other's proof."""
    asked = challenge()
    begin = answer(asked)
    assert judge(begin, asked) is None
    proof = handshake.prove(KEY, handshake.LISTENS, asked.nonce, begin)
    assert handshake.proves_itself(proof, secret=KEY, challenge_nonce=asked.nonce, begin=begin)


def test_without_a_key_nothing_is_proved() -> None:
    """No key on both sides is an agreement too."""
    asked = challenge(keyed=False)
    begin = answer(asked, None)
    assert begin.proof == b""
    assert judge(begin, asked, None) is None
    assert handshake.proves_itself(b"", secret=None, challenge_nonce=asked.nonce, begin=begin)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 3},
        {"nonce": bytes(32)},
        {"body": b"hallo"},
        {"proof": b""},
        {"proof": bytes(32)},
    ],
)
def test_a_proof_covers_the_whole_answer(change: dict[str, Any]) -> None:
    """Whatever is changed in an answer makes its proof wrong."""
    asked = challenge()
    refusal = judge(altered(answer(asked), **change), asked)
    assert refusal is not None
    assert refusal.kind == "config"
    assert KEY.decode() not in str(refusal)


def test_a_proof_is_good_for_one_connection() -> None:
    """Another challenge needs another proof."""
    begin = answer(challenge())
    assert judge(begin, challenge()) is not None


def test_a_proof_cannot_be_sent_back() -> None:
    """A side's own proof does not prove the other side: no reflection."""
    asked = challenge()
    begin = answer(asked)
    assert not handshake.proves_itself(
        begin.proof, secret=KEY, challenge_nonce=asked.nonce, begin=begin
    )


def test_nor_used_for_another_purpose() -> None:
    """An answer meant for a data port, or for another rank, is not taken."""
    asked = challenge()
    for change in ({"purpose": DATA}, {"target": 1}):
        refusal = judge(answer(asked, **change), asked)
        assert refusal is not None
        assert refusal.kind == "rendezvous"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (KEY, None, "rank 0 has a key and rank 2 has none"),
        (None, KEY, "rank 2 has a key and rank 0 has none"),
        (KEY, KEY + b"!", "rank 2 has another key than rank 0"),
    ],
)
def test_a_refusal_says_who_lacks_the_key(
    ours: bytes | None, theirs: bytes | None, words: str
) -> None:
    """Three ways to disagree, three texts."""
    asked = challenge(keyed=ours is not None)
    refusal = judge(answer(asked, theirs), asked, ours)
    assert refusal is not None
    assert refusal.text == words
    assert refusal.hint == handshake.KEY_HINT


def test_the_data_secret_needs_token_and_key() -> None:
    """Data ports open to the group's token and, if there is one, the key."""
    secrets = {handshake.data_secret(key, token) for key in (None, KEY) for token in (b"a", b"b")}
    assert len(secrets) == 4


def test_an_unkeyed_challenge_gets_no_proof() -> None:
    """Who does not ask for a proof gets nothing that depends on the key."""
    assert answer(challenge(keyed=False)).proof == b""
