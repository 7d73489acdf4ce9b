"""A rank stands still (SIGSTOP): nothing if it is short, PeerStalled on all others if it is not.

One that wakes after that learns that its group went on without it: an error, never a result.
"""

from __future__ import annotations

import random

import pytest

from tests.death.harness import Case
from tests.death.judge import check_aftermath
from tests.death.operations import MIXED
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp", "verbs")
SHORTEST = {"silence_s": 1.0, "progress_s": 1.0}
"""hint_s and heartbeat_s follow: 0.5 and 0.17 s."""
VERDICT_S = 3.0
"""From the freeze to the exception with the shortest limits."""


def check_frozen(case: Case, rank: int, victim: int, frozen_ns: int, label: str) -> None:
    """Assert that a rank raises PeerStalled about the victim, in time, and says why."""
    event = case.error(rank)
    error = event.error
    assert error["type"] == "PeerStalled", f"rank {rank}: {error}\n{case.story()}"
    assert error["rank"] == victim, f"rank {rank}: {error}\n{case.story()}"
    assert "no sign of life for " in error["cause"], error
    assert "its host acknowledges" in error["cause"], error
    assert any("SIGSTOP" in text for text in error["evidence"]), error
    assert error["detected_ns"] > frozen_ns + 0.8e9, f"too early: {error}\n{case.story()}"
    case.prompt(label, frozen_ns, event.ns, VERDICT_S)


def check_woken(case: Case, victim: int) -> None:
    """Assert that the rank that slept ends with an error about itself, and without a result."""
    event = case.error(victim)
    assert case.ranks[victim].said("returned") is None, case.story()
    assert event.error["type"] == "PeerStalled", f"{event}\n{case.story()}"
    assert event.error["rank"] == victim, f"{event}\n{case.story()}"


@pytest.mark.parametrize("topology", ["mesh", "ring"])
@pytest.mark.parametrize("fabric", FABRICS)
def test_short(nursery: Nursery, fabric: str, topology: str) -> None:
    """Shorter than the limit, at any moment of any operation: all results right, no word (R01)."""
    args = {"op": MIXED, "limits": {"silence_s": 2.0, "progress_s": 2.0}}
    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "working", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        for rank in random.sample(range(4), 4):
            case.freeze(rank)
            case.pause(random.uniform(0.3, 0.7))
            case.thaw(rank)
            case.pause(random.uniform(0.0, 0.05))
        case.tell(0)
        for rank in range(4):
            worked = case.wait(rank, "worked")
            assert worked["healthy"], f"{worked}\n{case.story()}"
            assert worked["turns"] > 3, f"{worked}\n{case.story()}"
            assert case.ranks[rank].said("raised") is None, case.story()
        case.finish()


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("fabric", FABRICS)
def test_at_work(nursery: Nursery, fabric: str, victim: int) -> None:
    """Longer, in the middle of the work: all others name it; it wakes to the same error."""
    args = {"op": MIXED}
    init = {"fabric": fabric, **SHORTEST}
    with Case(nursery, 4, "busy", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.pause(random.uniform(0.0, 0.05))
        frozen_ns = case.freeze(victim)
        for rank in case.others(victim):
            check_frozen(case, rank, victim, frozen_ns, f"frozen at work {fabric}")
        case.thaw(victim)
        check_woken(case, victim)
        check_aftermath(case, case.others())


@pytest.mark.parametrize(
    ("op", "victim", "fabric"),
    [("all_reduce", 1, "shm"), ("recv", 0, "tcp"), ("barrier async", 3, "tcp")],
)
def test_away(nursery: Nursery, op: str, victim: int, fabric: str) -> None:
    """All wait for one that is frozen outside of any operation."""
    args = {"op": op, "peer": victim, "idle": [victim]}
    init = {"fabric": fabric, **SHORTEST}
    with Case(nursery, 4, "blocked", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(victim))
        frozen_ns = case.freeze(victim)
        for rank in case.others(victim):
            check_frozen(case, rank, victim, frozen_ns, f"frozen away {fabric}")
        case.thaw(victim)
        case.tell(victim)
        check_woken(case, victim)
        check_aftermath(case, case.others())


@pytest.mark.parametrize("victim", [0, 2])
def test_all_idle(nursery: Nursery, victim: int) -> None:
    """Nobody is in any operation: healthy() turns False on all ranks, and all name it."""
    with Case(nursery, 4, "idle", init=SHORTEST, quick_end=True) as case:
        case.wait_all("ready")
        frozen_ns = case.freeze(victim)
        for rank in case.others(victim):
            event = case.wait(rank, "unhealthy")
            case.prompt("frozen, all idle", frozen_ns, event.ns, VERDICT_S)
            assert event["last"]["type"] == "PeerStalled", event
            check_frozen(case, rank, victim, frozen_ns, "frozen, all idle")
        case.thaw(victim)
        check_woken(case, victim)
        check_aftermath(case, case.others())


def test_frozen_with_its_data_there(nursery: Nursery) -> None:
    """All that the frozen rank waited for has come when it wakes, and the news beside it.

    The others had its share and went on; it must not go on alone with its result.
    """
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 3:
            here.ask()
        attempt("all_gather", lambda: do(group, "all_gather", 0), "gathered")
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    init = {"topology": "mesh", **SHORTEST}
    with Case(nursery, 4, "program", {"code": code}, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1, 2)
        frozen_ns = case.freeze(2)
        case.tell(3)
        for rank in (0, 1, 3):
            assert "error" not in case.wait(rank, "gathered").fields, case.story()
            check_frozen(case, rank, 2, frozen_ns, "frozen in a wait")
        case.thaw(2)
        gathered = case.wait(2, "gathered")
        assert gathered.fields.get("error", {}).get("type") == "PeerStalled", case.story()
        check_woken(case, 2)
        check_aftermath(case, case.others())


@pytest.mark.parametrize("fabric", FABRICS)
def test_one_after_the_other(nursery: Nursery, fabric: str) -> None:
    """Two stand still; one of them is killed: death is seen at once, a stand-still at its limit."""
    args = {"op": "all_reduce", "peer": 1, "idle": [1, 2]}
    init = {"fabric": fabric, "silence_s": 10.0, "progress_s": 10.0}
    with Case(nursery, 4, "blocked", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 3)
        case.freeze(1)
        case.freeze(2)
        case.pause(0.5)
        killed_ns = case.kill(1)
        for rank in (0, 3):
            event = case.error(rank)
            assert event.error["type"] == "PeerDied", f"{event}\n{case.story()}"
            assert event.error["rank"] == 1, f"{event}\n{case.story()}"
            case.prompt(f"frozen, then killed {fabric}", killed_ns, event.ns, 1.0)
        case.thaw(2)
        check_aftermath(case, [0, 3])
