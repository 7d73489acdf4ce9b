"""Deaths while a group is being formed: in every step of init() and split(), and right after."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.death.harness import Case, segments_of
from tests.death.judge import PROMISE_S, check_aftermath, check_death
from tests.death.nursery import now_ns
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp", "verbs")


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("fabric", FABRICS)
def test_right_after_init(nursery: Nursery, fabric: str, victim: int) -> None:
    """A rank that dies as soon as its init() has returned is missed by those still in it."""
    code = """
        def all_of_it():
            group = here.init()
            if here.rank == here.args["victim"]:
                here.say("ready")
                here.ask()
            while True:
                group.barrier()
        attempt("init", all_of_it)
        """
    args = {"code": code, "victim": victim}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait(victim, "ready")
        killed_ns = case.kill(victim)
        for rank in case.others(victim):
            error = case.error(rank)
            assert error.error["type"] == "PeerDied", f"{error}\n{case.story()}"
            assert error.error["rank"] == victim, f"{error}\n{case.story()}"
            case.prompt(f"right after init {fabric}", killed_ns, error.ns, PROMISE_S)
        case.finish(victim)


FORMING = """
    seen = []

    def stop_at(frame, event, argument):
        '''Stop at the first call of the stage-th function of rendezvous; names all until then.'''
        if event != "call" or "rendezvous" not in frame.f_code.co_filename:
            return
        name = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_qualname}"
        if name in seen:
            return
        seen.append(name)
        if len(seen) == here.args["stage"]:
            sys.setprofile(None)
            here.say("ready", at=name)
            here.ask()

    def form():
        if here.rank == here.args["victim"]:
            sys.setprofile(stop_at)
        group = here.init(timeout_s=here.args["timeout_s"])
        sys.setprofile(None)
        here.say("formed", stages=len(seen))
        if not here.args["stage"]:
            here.ask()
            group.close()
            return
        while True:
            group.barrier()

    attempt("init", form)
    """
FORMING_S = 1.5


def stages(nursery: Nursery, victim: int, fabric: str) -> int:
    """Count the functions of rendezvous that a rank calls."""
    args = {"code": FORMING, "victim": victim, "stage": 0, "timeout_s": 20.0}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("formed")
        found: int = case.wait(victim, "formed")["stages"]
        case.finish()
    return found


NEARLY_NS = 300_000_000
"""A deadline that ends so soon after the kill was not waited for because of it."""


def check_forming(case: Case, rank: int, victim: int, killed_ns: int) -> None:
    """A survivor names the victim: as dead, at once, if it had come; else as missing, in time."""
    event = case.error(rank)
    error = event.error
    if error["type"] == "PeerDied":
        assert error["rank"] == victim, f"{error}\n{case.story()}"
        case.prompt("in init", killed_ns, event.ns, PROMISE_S)
        return
    assert error["type"] == "RendezvousError", f"{error}\n{case.story()}"
    if event.ns < killed_ns + NEARLY_NS:
        return  # on a slow machine: the victim stood at its step until the deadline
    # Who came after rank 0 had raised for the victim's sake finds nobody there.
    came_too_late = victim != 0 and case.error(0).error["type"] == "PeerDied"
    missing = [[victim], [0]] if came_too_late else [[victim]]
    assert error.get("missing") in missing, f"{error}\n{case.story()}"
    case.prompt("in init, not yet there", killed_ns, event.ns, FORMING_S + PROMISE_S)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("fabric", [each for each in FABRICS if each != "verbs"])
def test_in_init(nursery: Nursery, fabric: str, victim: int) -> None:
    """Killed at any step of forming the group, first or last: nobody waits longer than promised.

    Every step is a function of rendezvous at its first call; a case for every eighth, from another
    one on each time. Several cases run side by side, since some wait for a deadline. Over RDMA
    the number of steps differs from run to run: tests/verbs kills ranks at chosen ones.
    """
    count = stages(nursery, victim, fabric)
    assert count > 30, "the steps of rendezvous were not found"
    first = 1 + (victim + 3 * FABRICS.index(fabric)) % 8
    waiting = list(range(first, count + 1, 8))
    while waiting:
        now, waiting = waiting[:8], waiting[8:]
        in_init_side_by_side(nursery, fabric, victim, now)


def in_init_side_by_side(nursery: Nursery, fabric: str, victim: int, steps: list[int]) -> None:
    cases = [
        Case(
            nursery,
            3,
            "program",
            {"code": FORMING, "victim": victim, "stage": stage, "timeout_s": FORMING_S},
            init={"fabric": fabric},
            quick_end=True,
        )
        for stage in steps
    ]
    entered: list[Case] = []
    try:
        killed: list[int] = []
        for case in cases:
            entered.append(case.__enter__())
        for case in cases:
            case.wait(victim, "ready")
            killed.append(case.kill(victim))
        for case, killed_ns in zip(cases, killed, strict=True):
            for rank in case.others(victim):
                check_forming(case, rank, victim, killed_ns)
            case.finish(victim)
    finally:
        left = [name for case in entered for name in case.clean_up()]
    assert not left, f"segments left: {left}"


def test_never_started(nursery: Nursery) -> None:
    """A rank that never comes is named by all others at the deadline, and not later."""
    args = {"code": FORMING, "victim": -1, "stage": 1, "timeout_s": 1.5}
    with Case(nursery, 4, "program", args, absent=[2]) as case:
        for rank in case.others():
            event = case.error(rank)
            assert event.error["type"] == "RendezvousError", event
            assert event.error["missing"] == [2], event
            assert event["took_s"] > 1.4, event
            case.prompt("never started", case.began_ns, event.ns, 1.5 + PROMISE_S + 0.5)
        case.finish()


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("fabric", FABRICS)
def test_in_split(nursery: Nursery, fabric: str, victim: int) -> None:
    """A rank that dies before it joins its part of a split: nobody waits for its deadline."""
    code = """
        from standfast import rendezvous
        real = rendezvous.form
        world = here.init(timeout_s=20.0)
        world.barrier()

        def form(*args, **more):
            if here.rank == here.args["victim"]:
                here.say("ready")
                here.ask()
            return real(*args, **more)

        rendezvous.form = form
        here.say("splitting")
        attempt("split", lambda: world.split(0).barrier())
        here.ask()
        """
    args = {"code": code, "victim": victim}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait(victim, "ready")
        case.wait_all("splitting")
        case.wait_asleep(*case.others(victim))
        killed_ns = case.kill(victim)
        for rank in case.others(victim):
            check_death(case, rank, victim, killed_ns, f"in split {fabric}", began=False)
        case.finish(victim)


@pytest.mark.skipif(sys.platform != "linux", reason="forks by the system call's number")
@pytest.mark.parametrize("fabric", FABRICS)
def test_gone_before_the_watch_begins(nursery: Nursery, fabric: str) -> None:
    """A rank is dead and reaped, its sockets live on in a child, when others begin to watch."""
    code = """
        from standfast import _core
        real = _core.Group

        def late(*args, **more):
            here.say("formed")
            here.ask()
            return real(*args, **more)

        if here.rank != 1:
            _core.Group = late
        group = here.init()
        if here.rank == 1:
            number = 57 if os.uname().machine == "x86_64" else 220  # fork, or clone with SIGCHLD
            child = ctypes.CDLL(None).syscall(number, 17, 0, 0, 0, 0)
            if child == 0:
                ctypes.CDLL(None).sleep(60)
                os._exit(0)
            here.say("ready", child=child)
            here.ask()
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    case = Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}, quick_end=True)
    with case:
        child = case.wait(1, "ready")["child"]
        try:
            for rank in (0, 2):
                case.wait(rank, "formed")
            case.kill(1)
            for rank in (0, 2):
                case.tell(rank)
            began_ns = now_ns()
            for rank in (0, 2):
                event = case.error(rank, limit_s=5.0)
                assert event.error["type"] == "PeerDied", f"{event}\n{case.story()}"
                assert event.error["rank"] == 1, f"{event}\n{case.story()}"
                case.prompt(f"gone before the watch {fabric}", began_ns, event.ns, PROMISE_S)
            check_aftermath(case, [0, 2])
        finally:
            os.kill(child, signal.SIGKILL)


def test_sweep(nursery: Nursery) -> None:
    """Shared memory of a rank that was killed while it made a wire is removed by the others."""
    code = """
        from standfast.rendezvous import wiring
        attach = wiring.Wiring._attach

        def late(self, pair, segment):
            here.say("ready")
            here.ask()
            return attach(self, pair, segment)

        if here.rank == 1:
            wiring.Wiring._attach = late
        attempt("init", lambda: here.init(timeout_s=5.0))
        here.ask()
        """
    case = Case(nursery, 2, "program", {"code": code}, init={"fabric": "shm"}, quick_end=True)
    with case:
        case.wait(1, "ready")
        pids = [one.pid for one in case.ranks.values()]
        assert segments_of(pids), "the fault did not take effect: no segment to remove"
        case.kill(1)
        event = case.error(0)
        assert event.error["type"] == "PeerDied", event
        assert segments_of(pids) == []
        case.finish(1)
