"""standfast.watch(): ranks that exchange no data with us are killed, frozen, stuck or raise.

Every survivor learns of it in the stated time, by check(), by on_fault, or by its end with 75.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.death.harness import BLINDING, Case, Late
from tests.death.judge import PROMISE_S
from tests.death.processes import Nursery

SIZE = 4
GRACE_S = 0.5
# The core's timer goes off so long after the grace.
TIMER_S = 2.0
SILENCE_S = 1.0
# The verdict comes within a few beats after the limit.
FREEZE_S = SILENCE_S + 1.0
FAR = {"silence_s": 60.0, "progress_s": 0.0}


def case_of(nursery: Nursery, scenario: str, *, size: int = SIZE, **more: Any) -> Case:
    return Case(nursery, size, f"tests.death.watch_only:{scenario}", quick_end=True, **more)


def check_error(case: Case, rank: int, victim: int, kind: str) -> dict[str, Any]:
    error = case.error(rank).error
    assert (error["type"], error["rank"]) == (kind, victim), case.story()
    assert f"rank {victim} on " in error["message"]
    again = case.wait(rank, "again").error
    assert (again["type"], again["rank"]) == (kind, victim)
    state = case.wait(rank, "state")
    assert state["healthy"] is False
    assert state["last"]["rank"] == victim
    return error


@pytest.mark.parametrize("victim", range(SIZE))
def test_a_killed_rank_is_raised_by_check(nursery: Nursery, victim: int) -> None:
    """check() of every survivor names the dead rank within 1 s; end() says peer_fault."""
    with case_of(nursery, "checking", init=FAR) as case:
        case.wait_all("ready")
        killed_ns = case.kill(victim)
        for rank in case.others(victim):
            check_error(case, rank, victim, "PeerDied")
            case.prompt("watch only: kill", killed_ns, case.error(rank).ns, PROMISE_S)
        case.finish(victim)
        for rank in case.others(victim):
            assert case.wait(rank, "closed")["ended"] == "peer_fault"


@pytest.mark.parametrize("victim", [0, 2])
def test_a_frozen_rank_is_hinted_at_then_raised(nursery: Nursery, victim: int) -> None:
    """A hint on every rank within hint_s, the verdict after silence_s, neither before."""
    init = {"silence_s": SILENCE_S}
    with case_of(nursery, "checking", args={"listens": True}, init=init) as case:
        case.wait_all("ready")
        frozen_ns = case.freeze(victim)
        for rank in case.others(victim):
            hint = case.wait(rank, "hint")
            assert hint["rank"] == victim
            assert hint["host"]
            assert f"rank {victim} on " in hint["text"]
            assert hint["evidence"]
            case.prompt("watch only: hint", frozen_ns, hint.ns, SILENCE_S)
            check_error(case, rank, victim, "PeerStalled")
            raised_ns = case.error(rank).ns
            case.prompt("watch only: freeze", frozen_ns, raised_ns, FREEZE_S)
            assert raised_ns - frozen_ns > SILENCE_S * 0.6e9
            assert case.wait(rank, "verdict")["rank"] == victim
        case.kill(victim)
        case.finish(victim)


def test_a_short_freeze_is_no_death(nursery: Nursery) -> None:
    """Frozen for less than the limit: the hint comes and goes, and check() raises nothing."""
    init = {"silence_s": 4.0, "hint_s": 0.4, "heartbeat_s": 0.1}
    with case_of(nursery, "checking", args={"listens": True}, init=init) as case:
        case.wait_all("ready")
        case.freeze(2)
        for rank in case.others(2):
            assert case.wait(rank, "hint")["rank"] == 2
        case.thaw(2)
        for rank in case.others(2):
            assert case.wait(rank, "hint_over")["rank"] == 2
        case.pause(0.5)
        for rank in case.others():
            assert case.ranks[rank].said("raised") is None, case.story()
            assert case.ranks[rank].said("verdict") is None, case.story()


@pytest.mark.parametrize("hooks", [(), ("says",), ("raises", "blocks")])
def test_exit_ends_the_process(nursery: Nursery, hooks: tuple[str, ...]) -> None:
    """on_fault="exit": hooks run first, and no hook, however it behaves, holds the end up."""
    init = {**FAR, "on_fault": "exit", "exit_grace_s": GRACE_S}
    with case_of(nursery, "asleep", args={"hooks": hooks}, init=init) as case:
        case.wait_all("ready")
        killed_ns = case.kill(2)
        for rank in case.others(2):
            assert case.wait_end(rank) == 75, case.story()
            limit_s = PROMISE_S + (GRACE_S if hooks else 0.0)
            case.prompt("watch only: exit", killed_ns, case.ranks[rank].ended_ns, limit_s)
            assert "rank 2 on " in case.text(rank), case.story()
            assert (case.ranks[rank].said("hook") is not None) == bool(
                {"says", "blocks"} & {*hooks}
            )


@pytest.mark.parametrize("on_fault", ["raise", "exit"])
def test_who_keeps_the_gil_is_ended_all_the_same(nursery: Nursery, on_fault: str) -> None:
    """No Python thread runs any more: the native thread ends the process, grace + 2 s later."""
    init = {**FAR, "on_fault": on_fault, "exit_grace_s": GRACE_S}
    with case_of(nursery, "stuck", args={"hooks": ["says"]}, init=init) as case:
        case.wait_all("ready")
        killed_ns = case.kill(2)
        for rank in case.others(2):
            assert case.wait_end(rank) == 75, case.story()
            ended_ns = case.ranks[rank].ended_ns
            limit_s = GRACE_S + TIMER_S + PROMISE_S
            case.prompt("watch only: stuck", killed_ns, ended_ns, limit_s)
            assert ended_ns - killed_ns > (GRACE_S + TIMER_S) * 0.9e9
            assert "rank 2" in case.text(rank), case.story()


def test_who_never_checks_is_ended(nursery: Nursery) -> None:
    """on_fault="raise" without a check(): the process does not outlive the fault for ever."""
    init = {**FAR, "on_fault": "raise", "exit_grace_s": GRACE_S}
    with case_of(nursery, "asleep", init=init) as case:
        case.wait_all("ready")
        killed_ns = case.kill(0)
        for rank in case.others(0):
            assert case.wait_end(rank) == 75, case.story()
            limit_s = GRACE_S + TIMER_S + PROMISE_S
            case.prompt("watch only: unasked", killed_ns, case.ranks[rank].ended_ns, limit_s)


def test_who_has_checked_decides(nursery: Nursery) -> None:
    """Once check() has raised, the timer is off: the survivor lives on as long as it likes."""
    init = {**FAR, "exit_grace_s": 0.0}
    with case_of(nursery, "checking", init=init) as case:
        case.wait_all("ready")
        case.kill(2)
        case.wait_all("state", but=[2])
        case.pause(TIMER_S + 1.0)
        case.finish(2)


def test_a_hook_frees_the_program(nursery: Nursery) -> None:
    """Freed by its hook, the program ends by its own error, and with 75, the cause being named."""
    init = {**FAR, "on_fault": "exit", "exit_grace_s": 5.0}
    with case_of(nursery, "freed", init=init) as case:
        case.wait_all("ready")
        killed_ns = case.kill(1)
        for rank in case.others(1):
            case.wait(rank, "freed")
            assert case.wait_end(rank) == 75, case.story()
            case.prompt("watch only: freed", killed_ns, case.ranks[rank].ended_ns, 2 * PROMISE_S)
            text = case.text(rank)
            assert "RuntimeError: the ring was aborted" in text
            assert "is a consequence: rank 1 on " in text


def test_a_callable_gets_the_error(nursery: Nursery) -> None:
    """on_fault=callable: called once with the verdict; then the program decides."""
    init = {**FAR, "exit_grace_s": 0.0}
    with case_of(nursery, "handed", init=init) as case:
        case.wait_all("ready")
        killed_ns = case.kill(3)
        for rank in case.others(3):
            event = case.wait(rank, "handed")
            assert (event.error["type"], event.error["rank"]) == ("PeerDied", 3)
            case.prompt("watch only: handed", killed_ns, event.ns, PROMISE_S)
        case.pause(TIMER_S + 0.5)
        case.finish(3)


@pytest.mark.parametrize("idles", [False, True])
def test_beats_that_stop(nursery: Nursery, idles: bool) -> None:
    """Alive, but its beats have stopped: PeerStalled after progress_s. Idle: nothing at all."""
    init = {"silence_s": 1.0, "progress_s": 1.5}
    args = {"quiet": 1, "idles": idles}
    with case_of(nursery, "beating", args=args, init=init) as case:
        ready = case.wait_all("ready")
        if idles:
            case.pause(3.0)
            assert not [rank for rank in case.others() if case.ranks[rank].said("raised")]
            return
        for rank in case.others():
            error = case.error(rank).error
            assert (error["type"], error["rank"]) == ("PeerStalled", 1), case.story()
            assert "decode" in error["message"]
            case.prompt("watch only: no beat", ready[1].ns, case.error(rank).ns, 1.5 + 1.5)
        case.finish()


def test_a_program_that_raises_is_told(nursery: Nursery) -> None:
    """An uncaught exception reaches the others within 1 s; its own rank ends with status 1."""
    with case_of(nursery, "raising", init=FAR) as case:
        case.wait_all("ready")
        for rank in case.others(2):
            case.tell(rank, "check")
        case.tell(2, "raise")
        assert case.wait_end(2) == 1
        for rank in case.others(2):
            error = case.error(rank).error
            assert (error["type"], error["rank"]) == ("RemoteFailure", 2), case.story()
            assert "LookupError: no such layer" in error["message"]
        case.finish(2)


def test_a_rank_that_ends_in_good_order_is_no_fault(nursery: Nursery) -> None:
    """Who says that it is done may go; the others go on being watched."""
    with case_of(nursery, "raising", init=FAR) as case:
        case.wait_all("ready")
        case.tell(2, "end")
        assert case.wait(2, "closed")["ended"] == "orderly"
        for rank in (0, 1, 3):
            case.tell(rank, "check")
        case.kill(2)
        case.pause(0.3)
        assert not [rank for rank in (0, 1, 3) if case.ranks[rank].said("raised")], case.story()
        case.kill(3)
        for rank in (0, 1):
            error = case.error(rank).error
            assert (error["type"], error["rank"]) == ("PeerDied", 3), case.story()


@pytest.mark.parametrize("within", [False, True])
def test_a_librarys_error_waits_for_its_reason(nursery: Nursery, within: bool) -> None:
    """A library that raises because a peer died blames nobody: the peer is the cause, status 75."""
    args = {"within": within}
    with case_of(nursery, "blamed", size=3, args=args, init=FAR) as case:
        case.wait_all("ready")
        case.tell(1)
        case.pause(0.05)
        case.kill(2)
        case.tell(0)
        for rank in (0, 1):
            assert case.wait_end(rank) == 75, case.story()
            assert "is a consequence: rank 2 on " in case.text(rank), case.story()


UNSEEN: dict[str, Callable[[Nursery], None]] = {
    "freeze": lambda nursery: test_a_frozen_rank_is_hinted_at_then_raised(nursery, 2),
    "stuck": lambda nursery: test_who_keeps_the_gil_is_ended_all_the_same(nursery, "raise"),
    "unasked": test_who_never_checks_is_ended,
    "beats": lambda nursery: test_beats_that_stop(nursery, False),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_without_a_watch(nursery: Nursery, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """With a watch that judges nothing and ends nobody, these fail: it is what they test."""
    monkeypatch.setattr(Case, "blinding", BLINDING)
    monkeypatch.setattr(Case, "deadline_max_s", 5.0)
    with pytest.raises(Late):
        UNSEEN[what](nursery)
