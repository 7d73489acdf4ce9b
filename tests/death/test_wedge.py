"""A rank lives and beats, but does not get on, or does not come: PeerStalled at the progress limit.

Its process answers, its heartbeats are fresh; only what it does not do shows it (R86, R95).
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

from tests.death.harness import Case
from tests.death.judge import check_aftermath
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp")
LIMITS = {"silence_s": 1.0, "progress_s": 1.0}
VERDICT_S = 3.0

# What the victim does instead of joining in; it never comes back by itself.
WEDGED = {
    "a loop in Python": "while True: pass",
    "native code": "ctypes.CDLL(None).sleep(60)",
    "native code that holds the GIL": "ctypes.PyDLL(None).sleep(60)",
    "never joins": "here.ask()",
}


def check_wedged(
    case: Case, rank: int, victim: int, since_ns: int, words: str, label: str = "wedged"
) -> dict[str, Any]:
    """Assert that a rank raises PeerStalled about the victim, in time, and says what it did."""
    event = case.error(rank)
    error = event.error
    assert error["type"] == "PeerStalled", f"rank {rank}: {error}\n{case.story()}"
    assert error["rank"] == victim, f"rank {rank}: {error}\n{case.story()}"
    assert words in error["cause"], f"rank {rank}: {error}\n{case.story()}"
    assert "it lives" in error["cause"], error
    assert any(text.startswith("last beat ") for text in error["evidence"]), error
    case.prompt(label, since_ns, event.ns, VERDICT_S)
    return error


@pytest.mark.parametrize(("how", "victim"), list(zip(WEDGED, (0, 2, 2, 1), strict=True)))
def test_outside(nursery: Nursery, how: str, victim: int) -> None:
    """It is stuck in code of its own; rank 3, which waits for nothing, hears of it as well."""
    code = f"""
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == here.args["victim"]:
            {WEDGED[how]}
        if here.rank == 3:
            while group.healthy():
                time.sleep(0.01)
        attempt("all_sum", lambda: group.all_sum(np.ones(8)))
        aftermath(here, group)
        """
    fabric = FABRICS[victim % 2]
    init = {"fabric": fabric, **LIMITS}
    args = {"code": code, "victim": victim}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        since_ns = max(event.ns for event in case.wait_all("ready").values())
        survivors = case.others(victim)
        for rank in survivors:
            error = check_wedged(case, rank, victim, since_ns, "did not begin all_sum")
            assert "it said that it was in no operation" in error["evidence"], error
        case.prompt("wedged, until known", since_ns, case.error(3).ns, VERDICT_S)
        check_aftermath(case, survivors)


HANDLER = """
    group = here.init()
    group.barrier()
    def handler(number, frame):
        here.say("handling")
        time.sleep(60)
    signal.signal(signal.SIGUSR2, handler)
    here.say("ready")
    if here.rank == 3:
        here.ask()
    attempt("all_sum", lambda: (group.all_sum(np.ones(8)), group.barrier()))
    aftermath(here, group)
    """


@pytest.mark.parametrize("fabric", FABRICS)
def test_in_a_signal_handler(nursery: Nursery, fabric: str) -> None:
    """A handler that ran in the middle of a wait does not come back: that rank is not waiting."""
    init = {"fabric": fabric, **LIMITS, "progress_s": 1.5}
    with Case(nursery, 4, "program", {"code": HANDLER}, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1, 2)
        case.signal(2, signal.SIGUSR2)
        since_ns = case.wait(2, "handling").ns
        case.tell(3)
        for rank in (0, 1, 3):
            check_wedged(case, rank, 2, since_ns, "does not get on with all_sum", "in a handler")
        check_aftermath(case, [0, 1, 3])


@pytest.mark.skipif(sys.platform != "linux", reason="relies on Linux's SIGSEGV for pages")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_inside(nursery: Nursery, how: str) -> None:
    """The thread that runs its operation stands still, all its other threads go on."""
    code = """
        from tests.death.stuck import PAGE, trapped
        group = here.init()
        group.barrier()
        x = np.ones(PAGE, dtype=np.uint8)
        def hold():
            here.say("held")
            here.ask()
        out = trapped(here.size, 0, hold) if here.rank == 2 else None
        def gather():
            if here.args["how"] == "sync":
                group.all_gather(x, out=out)
            else:
                group.all_gather_async(x, out=out).wait()
            group.barrier()
        here.say("ready")
        attempt("all_gather", gather)
        aftermath(here, group)
        """
    args = {"code": code, "how": how}
    init = {"fabric": "shm", "topology": "mesh", **LIMITS}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        since_ns = case.wait(2, "held").ns
        for rank in (0, 1, 3):
            check_wedged(case, rank, 2, since_ns, "does not get on with all_gather", "inside")
        case.tell(2)
        assert case.error(2).error["type"] == "PeerStalled", case.story()
        check_aftermath(case, case.others())


@pytest.mark.parametrize("fabric", FABRICS)
def test_chain(nursery: Nursery, fabric: str) -> None:
    """0 waits for 1, 1 for 2, and 2 is stuck: it is 2 that all name, also 3, which waits for 0."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 2:
            here.ask()
        attempt("recv", lambda: group.recv(8, "float32", (here.rank + 1) % 4))
        aftermath(here, group)
        """
    init = {"fabric": fabric, **LIMITS}
    with Case(nursery, 4, "program", {"code": code}, init=init, quick_end=True) as case:
        since_ns = max(event.ns for event in case.wait_all("ready").values())
        for rank in (0, 1, 3):
            check_wedged(case, rank, 2, since_ns, "did not begin recv", "chain")
        case.tell(2)
        assert case.error(2).error["rank"] == 2, case.story()
        check_aftermath(case, case.others())


@pytest.mark.parametrize("fabric", FABRICS)
def test_circle(nursery: Nursery, fabric: str) -> None:
    """0 waits for 1, 1 for 2, 2 for 0: nobody is to blame; all four hear who waits for whom."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        def wait():
            if here.rank < 3:
                group.recv(8, "float32", (here.rank + 1) % 3)
            here.ask()
            group.barrier()
        attempt("recv", wait)
        aftermath(here, group)
        """
    init = {"fabric": fabric, **LIMITS}
    with Case(nursery, 4, "program", {"code": code}, init=init, quick_end=True) as case:
        since_ns = max(event.ns for event in case.wait_all("ready").values())
        case.tell(3)
        for rank in range(4):
            event = case.error(rank)
            error = event.error
            assert error["type"] == "NoProgress", f"{error}\n{case.story()}"
            told = " ".join([error["cause"], *error["evidence"]])
            assert "circle" in told, error
            assert "ranks [0, 1, 2] are in recv" in told, error
            case.prompt("circle", since_ns, event.ns, VERDICT_S)
        check_aftermath(case, case.others())


LOADING = """
    group = here.init(**here.args["limits"])
    here.say("ready")
    if here.rank in here.args["loading"]:
        ctypes.PyDLL(None).usleep(int(here.args["loads_s"] * 1e6))
    attempt("barrier", lambda: (group.barrier(), group.barrier()))
    aftermath(here, group)
    """


@pytest.mark.parametrize("loading", [[0], [1, 2]])
def test_loads_for_long(nursery: Nursery, loading: list[int]) -> None:
    """A rank that has not begun anything yet may take longer than the limit; nothing (R11)."""
    args = {"code": LOADING, "limits": LIMITS, "loading": loading, "loads_s": 3.0}
    with Case(nursery, 3, "program", args, quick_end=True) as case:
        for rank in range(3):
            case.wait(rank, "returned")
        assert case.wait(1, "returned").ns - case.wait(1, "ready").ns > 2.5e9
        case.finish()


def test_loads_for_ever(nursery: Nursery) -> None:
    """The start-up grace has an end, too."""
    limits = {**LIMITS, "startup_s": 2.0}
    args = {"code": LOADING, "limits": limits, "loading": [1], "loads_s": 60.0}
    with Case(nursery, 3, "program", args, quick_end=True) as case:
        since_ns = max(event.ns for event in case.wait_all("ready").values())
        for rank in (0, 2):
            error = check_wedged(case, rank, 1, since_ns, "did not begin barrier", "loads for ever")
            assert error["detected_ns"] - since_ns > 1.8e9, error
        check_aftermath(case, [0, 2])
