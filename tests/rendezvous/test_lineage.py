"""Who serves, when it is time, who is who afterwards: the rules of forming again, as tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from standfast.endpoint import Endpoint
from standfast.identity import Identity
from standfast.rendezvous import lineage
from standfast.rendezvous.hello import hello_of
from standfast.rendezvous.lineage import Lineage, Lost, Wish
from standfast.rendezvous.protocol import Comer
from standfast.settings import Settings

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
KNOWN = Lineage(
    group="c0ffee",
    generation=3,
    numbers=(0, 1, 2, 3),
    me=1,
    routes={number: (Endpoint("127.0.0.1", 4000 + number),) for number in range(4)},
    hosts=HOSTS,
    full_size=4,
    attempted=3,
    top=3,
)
HELLO = hello_of(Identity(rank=1, size=4, generation=3, job_id="j"), Settings(), "", wires=True)


def comer(number: int = 2, group: str = "c0ffee", top: int = 3, **hello: Any) -> Comer:
    generation = hello.pop("generation", 3)
    identity = Identity(rank=0, size=1, generation=generation, job_id=hello.pop("job_id", "j"))
    settings = dataclasses.replace(Settings(), **hello)
    own = hello_of(identity, settings, "", wires=True)
    return Comer(own, group, number, True, generation, top)


@pytest.mark.parametrize(
    ("kind", "rank", "me", "lost"),
    [
        ("died", 2, 1, Lost(dead=frozenset({2}))),
        ("died", 1, 1, Lost()),
        ("stalled", 0, 1, Lost(doubtful=frozenset({0}))),
        ("unreachable", 2, 1, Lost(doubtful=frozenset({2, 3}))),
        ("unreachable", 0, 1, Lost(doubtful=frozenset({0}))),
        ("left", 2, 1, Lost()),
        ("failed", 2, 1, Lost()),
        ("link_lost", 2, 1, Lost()),
        ("no_progress", None, 1, Lost()),
        ("died", 9, 1, Lost()),
    ],
)
def test_whom_a_verdict_concerns(kind: str, rank: int | None, me: int, lost: Lost) -> None:
    """The dead are not asked, the frozen and unreachable not waited for, all others are."""
    assert lineage.lost_by(kind, rank, (0, 1, 2, 3), HOSTS, me) == lost


@pytest.mark.parametrize(
    ("me", "lost", "ahead"),
    [
        (0, Lost(), []),
        (2, Lost(), [0, 1]),
        (2, Lost(dead=frozenset({0})), [1]),
        (2, Lost(doubtful=frozenset({0})), [1]),
        (0, Lost(doubtful=frozenset({0})), [1, 2, 3]),
        (1, Lost(dead=frozenset({0}), doubtful=frozenset({1})), [2, 3]),
    ],
)
def test_who_serves_rather_than_me(me: int, lost: Lost, ahead: list[int]) -> None:
    """The lowest that is not in doubt; one that is in doubt goes behind all others."""
    assert lineage.before(me, (0, 1, 2, 3), lost) == ahead


@pytest.mark.parametrize(
    ("wish", "survivors", "newcomers", "missing", "elapsed_s", "time"),
    [
        (Wish(None, 4, 0), 3, 0, 0, 0.0, True),
        (Wish(None, 4, 0), 3, 0, 1, 0.0, False),
        (Wish(None, 4, 0), 2, 2, 0, 9.0, False),  # half of the old ones, whoever else comes
        (Wish(1, 4, 0), 1, 0, 0, 0.0, True),
        (Wish(3, 4, 0), 2, 0, 0, 9.0, False),
        (Wish(3, 4, 0), 2, 1, 0, 0.0, True),
        (Wish(None, 4, 5), 3, 0, 0, 4.9, False),
        (Wish(None, 4, 5), 3, 0, 0, 5.0, True),
        (Wish(None, 4, 5), 3, 1, 0, 0.0, True),
        (Wish(None, 4, 5), 3, 7, 0, 0.0, True),
        (Wish(4, 4, 5), 3, 0, 0, 9.0, False),
        (Wish(1, 2, 5), 3, 0, 0, 0.0, True),  # survivors are always taken
    ],
)
def test_when_it_is_time(
    wish: Wish, survivors: int, newcomers: int, missing: int, elapsed_s: float, time: bool
) -> None:
    """Nobody is missing, those who came are enough, and nobody else is waited for."""
    found = lineage.is_time(
        wish,
        old_size=4,
        survivors=survivors,
        newcomers=newcomers,
        missing=missing,
        elapsed_s=elapsed_s,
    )
    assert found is time


def test_the_next_generation() -> None:
    """Old order, newcomers behind with numbers of their own, a generation that nobody has tried."""
    outcome = lineage.outcome_of(
        KNOWN, {3: comer(3, top=8), 2: comer(2, generation=6)}, [comer(-1, generation=0)], 5000
    )
    assert outcome.numbers == [1, 2, 3, 9]
    assert outcome.old_ranks == [1, 2, 3, -1]
    assert (outcome.generation, outcome.rank, outcome.port) == (7, 0, 5000)
    assert (outcome.group, outcome.full_size) == ("c0ffee", 4)


def test_the_one_that_serves_is_rank_0() -> None:
    """Also where one comes after all that was in doubt, and had the lower number."""
    outcome = lineage.outcome_of(KNOWN, {0: comer(0), 2: comer(2)}, [], 5000)
    assert (outcome.numbers, outcome.old_ranks) == ([1, 0, 2], [1, 0, 2])


@pytest.mark.parametrize(
    ("who", "kind", "words"),
    [
        (comer(2), None, ""),
        (comer(2, generation=4), None, ""),  # it was in an attempt that failed
        (comer(-1, generation=0, group=""), None, ""),
        (comer(7), "stale", "went on without this rank: its generation is 3 now, of 4 ranks"),
        (comer(2, group="beef"), "rendezvous", "group beef; this is group c0ffee"),
        (comer(2, job_id="k"), "rendezvous", "job 'k'"),
        (comer(-1, group="", silence_s=50.0), "config", "silence_s=50.0 (rank 0: 20.0)"),
    ],
)
def test_who_belongs_to_it(who: Comer, kind: str | None, words: str) -> None:
    """Members by their number, newcomers of the same kind; a rank that was left behind is told."""
    found = lineage.objection(who, KNOWN, HELLO)
    assert (found.kind if found else None) == kind
    assert words in (found.text if found else "")


def test_at_work_nobody_is_let_in() -> None:
    """Whoever belongs to the group is asked to come again, others learn what keeps them out."""
    assert lineage.answer_at_work(comer(2), KNOWN, HELLO).kind == "again"
    assert lineage.answer_at_work(comer(7), KNOWN, HELLO).kind == "stale"
