"""The death tests can fail: with the watch blinded a fault is not seen, and they say so (R138)."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.death import (
    test_calm,
    test_end,
    test_freeze,
    test_hints,
    test_mismatch,
    test_stale,
    test_wedge,
)
from tests.death.harness import BLINDING, Case, Late
from tests.death.judge import check_death
from tests.death.nursery import now_ns
from tests.death.processes import Nursery

# The peers' processes are not watched (no pidfd), there are no beacons, and a child that keeps all
# descriptors of the victim hides the end of its links: what a watch could see of the death is all
# taken away.
BLINDED = """
    from standfast import _core
    real = _core.Peer
    _core.Peer = lambda rank, host, pid, same_host: real(rank, host, pid, False)
    group = here.init(beacon=False, sentinel=False)
    group.barrier()
    if here.rank == here.args["victim"]:
        number = 57 if os.uname().machine == "x86_64" else 220
        if here.args["hidden"] and ctypes.CDLL(None).syscall(number, 17, 0, 0, 0, 0) == 0:
            ctypes.CDLL(None).sleep(60)
            os._exit(0)
        here.say("ready")
        here.ask()
    here.say("ready")
    attempt("barrier", lambda: group.barrier(timeout_s=2.0))
    here.ask()
    """


@pytest.mark.skipif(sys.platform != "linux", reason="forks by the system call's number")
@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
def test_blinded(nursery: Nursery, fabric: str) -> None:
    """A watch that sees nothing makes the check fail: late, and with another error."""
    args = {"code": BLINDED, "victim": 1, "hidden": True}
    case = Case(nursery, 3, "program", args, init={"fabric": fabric}, forks=True)
    with case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        killed_ns = case.kill(1)
        with pytest.raises(Late):
            case.error(0, limit_s=1.0)
        with pytest.raises(AssertionError, match="NoProgress"):
            check_death(case, 0, 1, killed_ns, None)
        case.finish(1)


@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
def test_half_blinded(nursery: Nursery, fabric: str) -> None:
    """Without the hidden links the same check succeeds: it was they that made the difference."""
    args = {"code": BLINDED, "victim": 1, "hidden": False}
    case = Case(nursery, 3, "program", args, init={"fabric": fabric}, forks=True)
    with case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        killed_ns = case.kill(1)
        for rank in (0, 2):
            check_death(case, rank, 1, killed_ns, "links alone")
        case.finish(1)


UNSEEN: dict[str, Callable[[Nursery], None]] = {
    "freeze": lambda nursery: test_freeze.test_all_idle(nursery, 2),
    "freeze in a wait": test_freeze.test_frozen_with_its_data_there,
    "wedge": lambda nursery: test_wedge.test_chain(nursery, "shm"),
    "circle": lambda nursery: test_wedge.test_circle(nursery, "shm"),
    "hints": test_hints.test_late,
    "end": test_end.test_a_watch_that_threw_still_ends,
    "mismatch": test_mismatch.test_no_frame_shows_it,
}


@pytest.mark.parametrize("what", UNSEEN)
def test_without_a_watch(nursery: Nursery, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Where the watch judges neither silence nor progress, and ends nobody: each of them fails."""
    monkeypatch.setattr(Case, "blinding", BLINDING)
    monkeypatch.setattr(Case, "deadline_max_s", 3.5)
    with pytest.raises(Late):
        UNSEEN[what](nursery)


def test_without_a_fault(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill that did not happen: the operation has its result, and the test says so."""
    monkeypatch.setattr(Case, "kill", lambda case, *ranks: now_ns())
    with pytest.raises(AssertionError, match="gathered"):
        test_stale.test_last_microsecond(nursery, "sync")


def test_an_alarm_is_seen(nursery: Nursery) -> None:
    """What must be calm, and is not, is noticed: here a rank that is really frozen for too long."""
    args = {"op": "all_reduce", "limits": test_calm.SHORTEST}
    with Case(nursery, 3, "working", args, quick_end=True, deadline_s=4.0) as case:
        case.wait_all("ready")
        case.freeze(1)
        case.pause(2.0)
        case.thaw(1)
        with pytest.raises(AssertionError):
            test_calm.check_calm(case, 0)


def test_wrong_result_is_seen(nursery: Nursery) -> None:
    """A wrong result is an error of the scenario, and not a death."""
    code = """
        group = here.init()
        real = group.all_reduce
        if here.rank == 1:
            group.all_reduce = lambda *args, **more: real(*args, **more) + 1e-9
        attempt("work", lambda: do(group, "all_reduce", 0))
        here.ask()
        """
    with Case(nursery, 2, "program", {"code": code}) as case:
        assert case.error(1).error["type"] == "AssertionError"
        case.wait(0, "returned")
        with pytest.raises(AssertionError):
            check_death(case, 1, 0, 0, None)
        case.finish()


def test_leftovers_are_seen(nursery: Nursery) -> None:
    """A segment that a rank leaves in /dev/shm fails its test."""
    code = """
        from standfast import _core
        name, fd = _core.shm_create()
        here.say("ready", name=name)
        here.ask()
        """
    case = Case(nursery, 1, "program", {"code": code}, quick_end=True)
    case.__enter__()
    name = case.wait(0, "ready")["name"]
    case.finish()
    with pytest.raises(AssertionError, match="left behind"):
        case.__exit__(None, None, None)
    from standfast import _core

    _core.shm_unlink(name)
