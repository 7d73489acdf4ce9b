"""No false alarm: busy machines, held interpreters and long idling end nobody (R18, R87, R122).

Limits are at their least, 1 s, so what takes ten seconds here stands for minutes of a real job.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.death.harness import Case
from tests.death.operations import MIXED
from tests.death.processes import Nursery

SHORTEST = {"silence_s": 1.0, "progress_s": 1.0}
LONG_S = 11.0
"""More than ten times the limit."""


@contextlib.contextmanager
def all_cores_busy(times: int = 2) -> Iterator[None]:
    """Let so many processes per core compute; check that they did."""
    count = times * (os.cpu_count() or 1)
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
        assert all(hog.poll() is None for hog in hogs)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def check_calm(case: Case, rank: int) -> None:
    """Assert that nothing was raised and nobody was ended."""
    case.wait(rank, "returned")
    assert case.ranks[rank].said("raised") is None, case.story()
    assert case.wait(rank, "worked")["healthy"], case.story()


# What each rank does for as long as that, while the others do something else.
HELD = """
    group = here.init(**here.args["limits"])
    group.barrier()
    here.say("ready")
    span_s = here.args["span_s"]
    def hold():
        if here.rank == 0:
            ctypes.PyDLL(None).usleep(int(span_s * 1e6))  # holds the GIL
        elif here.rank == 1:
            in_the_kernel(span_s)
        elif here.rank == 2:
            end = time.monotonic() + span_s
            while time.monotonic() < end:
                pass
        else:
            time.sleep(span_s)
    def in_the_kernel(span_s):
        # This thread is uninterruptible until the child of a vfork() ends; and it holds the GIL.
        CLONE_VFORK, SIGCHLD = 0x4000, 17
        number = 56 if os.uname().machine == "x86_64" else 220
        if ctypes.PyDLL(None).syscall(number, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
            ctypes.PyDLL(None).usleep(int(span_s * 1e6))
            os._exit(0)
        os.wait()
    attempt("hold", lambda: (hold(), group.barrier(), do(group, "all_reduce", 0)))
    here.say("worked", healthy=group.healthy())
    here.ask()
    group.close()
    """


@pytest.mark.skipif(sys.platform != "linux", reason="forks by the system call's number")
def test_long_and_loaded(nursery: Nursery) -> None:
    """All cores are busy; one group works, in another each rank is held in its own way.

    With the silence limit at 1 s, for more than ten times as long.
    """
    held = {"code": HELD, "span_s": LONG_S, "limits": {"silence_s": 1.0, "progress_s": 60.0}}
    mixed = {"op": MIXED, "limits": SHORTEST}
    with (
        Case(nursery, 4, "program", held, deadline_s=60.0, quick_end=True) as one,
        Case(nursery, 4, "working", mixed, deadline_s=60.0, quick_end=True) as other,
    ):
        one.wait_all("ready")
        other.wait_all("ready")
        with all_cores_busy():
            one.pause(2.0)
            assert one.state(1) == "D", one.story()
            for rank in range(4):
                check_calm(one, rank)
            other.tell(0)
            for rank in range(4):
                check_calm(other, rank)
        assert one.wait(3, "returned")["took_s"] > LONG_S * 0.99
        assert other.wait(0, "worked")["turns"] > 20, other.story()
        one.finish()
        other.finish()


@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
def test_idle(nursery: Nursery, fabric: str) -> None:
    """Idle for ten times the limits, with one late thread; then work goes on. Not a word."""
    code = """
        group = here.init()
        group.barrier()
        if here.rank == 1:
            # Of all its threads the main one alone has its usual share of the processors.
            for thread in os.listdir("/proc/self/task"):
                if int(thread) != os.getpid():
                    os.setpriority(os.PRIO_PROCESS, int(thread), 19)
        here.say("ready")
        here.ask()
        attempt("work", lambda: do(group, "all_reduce", 0))
        here.say("worked", healthy=group.healthy())
        group.close()
        """
    if sys.platform != "linux":
        code = code.replace("here.rank == 1", "False")
    init = {"fabric": fabric, **SHORTEST}
    # The machine may stand still for as long as the shortest hint: then a hint is no mistake.
    for _ in range(3):
        with Case(nursery, 4, "program", {"code": code}, init=init, quick_end=True) as case:
            case.wait_all("ready")
            with all_cores_busy(1):
                case.pause(10.0 if fabric == "shm" else 4.0)
            for rank in range(4):
                case.tell(rank)
            for rank in range(4):
                check_calm(case, rank)
            words = [case.text(rank) for rank in range(4)]
            story = case.story()
            case.finish()
        if not any(words):
            return
    pytest.fail(f"words in each of three tries; the last:\n{story}")


def test_goes_on_slowly(nursery: Nursery) -> None:
    """Each step takes most of the limit, and waits are long: nothing but hints."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        def work():
            for turn in range(6):
                if turn % here.size == here.rank:
                    time.sleep(0.8)
                do(group, "all_reduce", 0)
        attempt("work", work)
        here.say("worked", healthy=group.healthy())
        group.close()
        """
    with Case(nursery, 3, "program", {"code": code}, init=SHORTEST, quick_end=True) as case:
        for rank in range(3):
            check_calm(case, rank)
        case.finish()
