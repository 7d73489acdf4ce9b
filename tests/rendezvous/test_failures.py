"""Whatever goes wrong while a group is formed: all who came say what, and leave nothing."""

from __future__ import annotations

import signal
import time

import pytest

from standfast.errors import (
    ConfigError,
    PeerDied,
    PeerLeft,
    RemoteFailure,
    RendezvousError,
    StaleGroup,
    StandfastError,
)
from standfast.rendezvous.protocol import VERSION
from tests.rendezvous.processes import Outcome, Rank, Ranks, assert_formed

# Promised is 1 s; the machine that runs the tests may be loaded.
PROMPT_S = 5.0
KEY = b"sixteen bytes or more"


def assert_clean(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.error is not None, f"rank {outcome.rank} formed the group"
        assert outcome.leaked == [], outcome.traceback


def assert_died(team: list[Rank], dead: Rank, since: float) -> None:
    """All survivors raise PeerDied naming the dead rank, in time."""
    dead.died()
    outcomes = [rank.outcome() for rank in team if rank is not dead]
    assert_clean(outcomes)
    for outcome in outcomes:
        error = outcome.error
        assert isinstance(error, PeerDied), outcome.traceback
        assert (error.rank, error.here) == (dead.rank, outcome.rank)
        assert error.host
        assert error.generation == 1
        assert f"rank {dead.rank}" in str(error)
        assert outcome.ended - since < PROMPT_S


# --- a rank dies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_dies_before_all_have_come(ranks: Ranks, rank: int) -> None:
    """A rank that had joined is killed while another is still missing: those who came raise it."""
    team = [ranks.start(r, 4) for r in range(3)]
    for other in (1, 2):
        team[other].reached("joined")
    since = time.monotonic()
    team[rank].kill()
    assert_died(team, team[rank], since)


@pytest.mark.parametrize(
    ("rank", "stage"),
    [
        (0, "all came"),
        (0, "table"),
        (0, "beacon"),
        (0, "created"),
        (1, "table"),
        (1, "beacon"),
        (1, "created"),
        (1, "attached"),
        (3, "table"),
        (3, "beacon"),
        (3, "attached"),
    ],
)
def test_a_rank_dies_while_wires_are_made(ranks: Ranks, rank: int, stage: str) -> None:
    """Death at each stage of the wiring, of each rank, is raised on all others."""
    since = time.monotonic()
    team = [ranks.start(r, 4, die_at=stage if r == rank else "") for r in range(4)]
    team[rank].died()
    if rank == 0 and stage in ("all came", "beacon"):
        # The last to come was not told yet that it is in: for it there is no coordinator.
        joined = [r for r in team[1:] if _joined(r)]
        assert len(joined) >= 2
        assert_died(joined, team[0], since)
        return
    assert_died(team, team[rank], since)


def _joined(rank: Rank) -> bool:
    rank.reached("challenged")
    return rank.has_reached("joined", within_s=3.0)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_dies_when_it_was_ready(ranks: Ranks, rank: int) -> None:
    """Death between ready and go: nobody gets a group with a dead member."""
    slow = 3 - rank
    team = [
        ranks.start(r, 3, hold_at=("table",) if r == slow else (), fabric="tcp") for r in range(3)
    ]
    team[rank].reached("table")
    team[slow].reached("table")
    since = time.monotonic()
    team[rank].kill()
    team[rank].died()
    team[slow].go_on()
    assert_died(team, team[rank], since)


def test_rank_0_dies_between_two_gos(ranks: Ranks) -> None:
    """Those who got their go have a group, whose watch sees the death; the others raise it here."""
    team = [ranks.start(r, 3, die_at="go 2" if r == 0 else "") for r in range(3)]
    team[0].died()
    outcomes = [rank.outcome() for rank in team[1:]]
    assert outcomes[0].error is None
    assert isinstance(outcomes[1].error, PeerDied)
    assert outcomes[1].error.rank == 0


def test_a_rank_that_dies_before_it_joins_may_be_started_again(ranks: Ranks) -> None:
    """Who has not joined is nobody's loss."""
    team = [ranks.start(r, 3) for r in (0, 1)]
    ranks.start(2, 3, die_at="challenged").died()
    assert_formed([*team, ranks.start(2, 3)])


# --- a rank raises, leaves or freezes -------------------------------------------------------------


@pytest.mark.parametrize(("rank", "stage"), [(0, "table"), (1, "table"), (2, "ready")])
def test_a_rank_that_raises_is_quoted_by_all(ranks: Ranks, rank: int, stage: str) -> None:
    """An exception in the midst of forming reaches all who came, with type and text."""
    # The held rank keeps rank 0 from saying go before the failure.
    at = "complete" if stage == "ready" else "table"
    hold = {r: (at,) if r not in (0, rank) else () for r in range(3)}
    team = [
        ranks.start(r, 3, raise_at=stage if r == rank else "", hold_at=hold[r], fabric="tcp")
        for r in range(3)
    ]
    team[rank].outcome()
    for r in range(3):
        if hold[r]:
            team[r].go_on()
    outcomes = [r.outcome() for r in team]
    assert_clean(outcomes)
    for outcome in outcomes:
        if outcome.rank == rank:
            assert isinstance(outcome.error, OSError)
            continue
        error = outcome.error
        assert isinstance(error, RemoteFailure), outcome.traceback
        assert (error.rank, error.remote_type) == (rank, "OSError")
        assert "No space left on device" in str(error)
        assert "form.py" in (error.remote_traceback or "")


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_while_waiting(ranks: Ranks, rank: int) -> None:
    """Ctrl-C acts at once here, and the others are told that this rank left."""
    team = [ranks.start(r, 4) for r in range(3)]
    for other in (1, 2):
        team[other].reached("joined")
    since = time.monotonic()
    team[rank].kill(signal.SIGINT)
    outcomes = [r.outcome() for r in team]
    assert_clean(outcomes)
    for outcome in outcomes:
        assert outcome.ended - since < PROMPT_S
        if outcome.rank == rank:
            assert isinstance(outcome.error, KeyboardInterrupt)
            continue
        assert isinstance(outcome.error, PeerLeft), outcome.traceback
        assert (outcome.error.rank, outcome.error.cause) == (rank, "interrupted")


def test_ctrl_c_as_the_group_is_formed(ranks: Ranks) -> None:
    """A signal at the very end closes what was formed already."""
    team = ranks.start_all(2, interrupted_at_end=True)
    outcomes = [r.outcome() for r in team]
    assert_clean(outcomes)
    for outcome in outcomes:
        assert isinstance(outcome.error, KeyboardInterrupt)


def test_ctrl_c_while_knocking(ranks: Ranks) -> None:
    """Ctrl-C ends a rank whose coordinator is not there."""
    rank = ranks.start(1, 2)
    time.sleep(0.05)
    rank.kill(signal.SIGINT)
    outcome = rank.outcome()
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert outcome.leaked == []


@pytest.mark.parametrize("broken", ["create", "attach"])
def test_shm_that_does_not_work_is_an_error_if_it_must(ranks: Ranks, broken: str) -> None:
    """fabric=shm takes nothing else: all ranks say why, and where."""
    team = [ranks.start(r, 3, fabric="shm", broken=(broken,) if r == 1 else ()) for r in range(3)]
    outcomes = [r.outcome() for r in team]
    assert_clean(outcomes)
    reason = "No space left" if broken == "create" else "Permission denied"
    for outcome in outcomes:
        assert isinstance(outcome.error, RendezvousError), outcome.traceback
        assert reason in str(outcome.error)
        assert "rank 1" in str(outcome.error)
        assert "fabric='shm'" in str(outcome.error)


def test_shm_between_hosts_is_an_error(ranks: Ranks) -> None:
    """fabric=shm with ranks of two hosts: all ranks name them."""
    team = [ranks.start(r, 3, fabric="shm", host="aab"[r]) for r in range(3)]
    outcomes = [r.outcome() for r in team]
    assert_clean(outcomes)
    for outcome in outcomes:
        assert isinstance(outcome.error, ConfigError), outcome.traceback
        assert "rank 1 is on a, rank 2 on b" in str(outcome.error)


# --- the deadline ---------------------------------------------------------------------------------


def test_at_the_deadline_all_learn_who_is_missing(ranks: Ranks) -> None:
    """Everybody who came names everybody who did not."""
    team = [ranks.start(r, 5, init_timeout_s=1.0) for r in (0, 1, 3)]
    outcomes = [r.outcome() for r in team]
    assert_clean(outcomes)
    for outcome in outcomes:
        assert isinstance(outcome.error, RendezvousError), outcome.traceback
        assert outcome.error.missing == [2, 4]
        assert "ranks 2, 4 have not come" in str(outcome.error)
        assert outcome.error.address == ranks.address
        assert 0.8 < outcome.seconds < 1.0 + PROMPT_S


def test_a_rank_with_an_earlier_deadline_ends_all(ranks: Ranks) -> None:
    """The first deadline that passes is everybody's, and names the missing ranks too."""
    team = [ranks.start(0, 3), ranks.start(1, 3, init_timeout_s=0.5)]
    for outcome in (r.outcome() for r in team):
        assert isinstance(outcome.error, RendezvousError), outcome.traceback
        assert outcome.error.missing == [2]
        assert "within 0.5 s" in str(outcome.error)
        assert outcome.seconds < PROMPT_S


def test_no_coordinator(ranks: Ranks) -> None:
    """Without rank 0 the error lists address, attempts and the last errno, at the deadline."""
    outcome = ranks.start(1, 2, init_timeout_s=1.0).outcome()
    error = outcome.error
    assert isinstance(error, RendezvousError)
    assert error.missing == [0]
    assert error.address == ranks.address
    assert error.attempts is not None
    assert error.attempts > 5
    assert f"{error.attempts} attempts" in str(error)
    assert f"{ranks.address}: ECONNREFUSED" in str(error)
    assert 0.9 < outcome.seconds < 1.0 + PROMPT_S
    assert outcome.leaked == []


def test_a_name_that_does_not_exist(ranks: Ranks) -> None:
    """A name without an address is tried until the deadline, and named."""
    outcome = ranks.start(1, 2, coordinator="nowhere.invalid:29500", init_timeout_s=0.5).outcome()
    assert isinstance(outcome.error, RendezvousError)
    assert "nowhere.invalid:29500" in str(outcome.error)
    assert outcome.seconds < PROMPT_S


def test_a_frozen_rank_is_named(ranks: Ranks) -> None:
    """A rank that came and does not go on is told apart from one that did not come."""
    team = [
        ranks.start(r, 3, init_timeout_s=1.5, hold_at=("table",) if r == 2 else ())
        for r in range(3)
    ]
    for outcome in (r.outcome() for r in team[:2]):
        assert isinstance(outcome.error, RendezvousError), outcome.traceback
        assert outcome.error.missing == []
        assert "all ranks came" in str(outcome.error)
        assert outcome.error.rank == 2
        assert "but rank 2 did not finish" in str(outcome.error)
        assert "rank 1 has no wire to rank 2" in str(outcome.error)
        assert outcome.leaked == []


def test_a_frozen_coordinator_is_named(ranks: Ranks) -> None:
    """A rank 0 that stops answering cannot hold the others beyond their deadline."""
    first, other = ranks.start(0, 3), ranks.start(1, 3, init_timeout_s=1.0)
    other.reached("joined")
    first.kill(signal.SIGSTOP)
    outcome = other.outcome()
    assert isinstance(outcome.error, RendezvousError)
    assert "rank 0" in str(outcome.error)
    assert "does not answer" in str(outcome.error)
    assert outcome.seconds < PROMPT_S
    assert outcome.leaked == []


# --- the wrong ones -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"rank": 1}, ConfigError, "two processes say that they are rank 1"),
        ({"rank": 3, "size": 4}, ConfigError, "group of 4, rank 0 in a group of 3"),
        ({"rank": 2, "size": 7}, ConfigError, "group of 7, rank 0 in a group of 3"),
        ({"rank": 9}, ConfigError, "not one of the 3 ranks 0..2"),
        ({"version": "9.9"}, ConfigError, "runs standfast 9.9"),
        ({"protocol": 9}, ConfigError, f"version {VERSION} of the protocol, this rank 9"),
        ({"generation": 2}, RendezvousError, "generation 2; this is generation 1"),
        ({"generation": 0}, StaleGroup, "generation 0; this is generation 1"),
        ({"name": "other"}, RendezvousError, "group 'other'"),
        ({"job_id": "b"}, RendezvousError, "job 'b'; this is job 'a'"),
        ({"silence_s": 30.0}, ConfigError, "silence_s=30.0 (rank 0: 20.0)"),
        ({"fabric": "tcp"}, ConfigError, "fabric='tcp' (rank 0: 'auto')"),
    ],
)
def test_a_wrong_rank_is_refused_and_the_right_ones_go_on(
    ranks: Ranks, wrong: dict[str, object], error: type[StandfastError], words: str
) -> None:
    """The wrong one learns why it is refused; the group forms without it."""
    team = [ranks.start(rank, 3, job_id="a") for rank in (0, 1)]
    team[1].reached("joined")
    options = {"rank": 2, "size": 3, "job_id": "a", **wrong}
    rank, size = options.pop("rank"), options.pop("size")
    outcome = ranks.start(rank, size, **options).outcome()  # type: ignore[arg-type] # mixed
    assert type(outcome.error) is error, outcome.traceback
    assert words in str(outcome.error)
    assert outcome.leaked == []
    assert outcome.seconds < PROMPT_S
    assert_formed([*team, ranks.start(2, 3, job_id="a")])


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (KEY, None, "rank 0 has a key and rank 2 has none"),
        (None, KEY, "rank 2 has a key and rank 0 has none"),
        (KEY, b"another key of 16 bytes", "rank 2 has another key than rank 0"),
    ],
)
def test_a_wrong_key_is_refused(
    ranks: Ranks, ours: bytes | None, theirs: bytes | None, words: str
) -> None:
    """Without the key there is no way in, and no message shows a key."""
    team = [ranks.start(rank, 3, key=ours) for rank in (0, 1)]
    outcome = ranks.start(2, 3, key=theirs).outcome()
    assert isinstance(outcome.error, ConfigError), outcome.traceback
    assert words in str(outcome.error)
    for key in (ours, theirs):
        assert key is None or key.decode() not in outcome.traceback
    assert_formed([*team, ranks.start(2, 3, key=ours)])


def test_a_second_rank_0_finds_the_port_taken(ranks: Ranks) -> None:
    """Two processes with rank 0 are told apart by the port."""
    first = ranks.start(0, 2)
    first.reached("listening")
    assert "EADDRINUSE" in str(ranks.start(0, 2).outcome().error)
    assert_formed([first, ranks.start(1, 2)])
