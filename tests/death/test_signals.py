"""SIGINT and SIGTERM in every kind of wait: they act at once here, and the others hear why."""

from __future__ import annotations

import signal

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath, check_death
from tests.death.operations import OPS
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp", "verbs")
HERE_S = 0.2
"""The promise. Asserted as 1 s: what it takes is in the table."""
ALLOWED_S = 1.0

WAITING = """
    group = here.init(**here.args.get("init", {}))
    group.barrier()
    if here.rank == here.args["away"]:
        here.say("ready")
        here.ask()
        attempt("late", lambda: step(here, group, here.args["op"], here.args["away"]))
    else:
        here.say("ready")
        attempt("wait", lambda: step(here, group, here.args["op"], here.args["away"]))
    aftermath(here, group)
    """
UNCAUGHT = """
    import atexit
    def handler(number, frame):
        raise {raised}
    group = here.init(**here.args.get("init", {{}}))
    group.barrier()
    if here.rank == here.args["victim"]:
        {setup}
        atexit.register(lambda: here.say("ending"))
        here.say("ready")
        step(here, group, here.args["op"], here.args["away"])
    here.say("ready")
    if here.rank == here.args["away"]:
        here.ask()
    attempt("wait", lambda: step(here, group, here.args["op"], here.args["away"]))
    aftermath(here, group)
    """


def check_left(
    case: Case, rank: int, victim: int, signal_ns: int, cause: str, label: str | None
) -> None:
    """Assert that a rank hears that the victim was interrupted."""
    event = case.error(rank)
    error = event.error
    assert error["type"] == "PeerLeft", f"{error}\n{case.story()}"
    assert error["rank"] == victim, f"{error}\n{case.story()}"
    assert cause in error["cause"], error
    assert error.get("hint") is None, error
    if label is not None:
        case.prompt(label, signal_ns, event.ns, PROMISE_S)


ASYNC = {key for key in OPS if key.endswith("async")}
AWAIT = {key for key in OPS if key.endswith("await")}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", [key for key in OPS if key not in ASYNC | AWAIT])
def test_ctrl_c(nursery: Nursery, op: str, fabric: str) -> None:
    """KeyboardInterrupt within 0.2 s here, whatever this rank waits in; PeerLeft there."""
    victim, away = (2, 1) if op.startswith("gather") else (0, 1)
    args = {"code": WAITING, "op": op, "away": away}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(away))
        signal_ns = case.signal(victim, signal.SIGINT)
        event = case.error(victim)
        assert event.error["type"] == "KeyboardInterrupt", f"{event}\n{case.story()}"
        case.prompt(f"Ctrl-C, here {fabric}", signal_ns, event.ns, ALLOWED_S)
        for rank in case.others(victim, away):
            check_left(case, rank, victim, signal_ns, "interrupted", f"Ctrl-C, there {fabric}")
        case.tell(away)
        check_left(case, away, victim, signal_ns, "interrupted", None)
        for rank in case.others():
            case.wait(rank, "state")
        again = [event for event in case.ranks[victim].events if event.name == "again"]
        assert all("error" in event.fields for event in again), again
        allowed_s = case.allowed_s(0.5)
        assert all(event["took_s"] < allowed_s for event in again), again
        case.finish()


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", sorted(ASYNC | AWAIT))
def test_ctrl_c_in_a_handle(nursery: Nursery, op: str, fabric: str) -> None:
    """Ctrl-C ends the wait for a handle, and with it the `with` block: the others hear of that."""
    code = """
        group = here.init()
        def block():
            with group:
                step(here, group, here.args["op"], 1)
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        attempt("wait", block if here.rank == 0 else lambda: step(here, group, here.args["op"], 1))
        if here.rank != 0:
            aftermath(here, group)
        """
    args = {"code": code, "op": op}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        signal_ns = case.signal(0, signal.SIGINT)
        event = case.error(0)
        assert event.error["type"] == "KeyboardInterrupt", f"{event}\n{case.story()}"
        case.prompt("Ctrl-C in a handle, here", signal_ns, event.ns, ALLOWED_S)
        if op in AWAIT:  # asyncio cancels the task, and a cancelled await aborts the group
            other = case.error(2)
            assert other.error["type"] in ("PeerLeft", "GroupAborted"), case.story()
            assert other.error["rank"] == 0, case.story()
            case.prompt("Ctrl-C in an await, there", signal_ns, other.ns, PROMISE_S)
        else:
            check_left(case, 2, 0, signal_ns, "interrupted", "Ctrl-C in a handle, there")
        case.tell(1)
        case.error(1)
        case.finish()


LEAVINGS = ("PeerLeft", "GroupAborted", "RemoteFailure")
ENDS = {
    # number, what the victim does before, what its handler raises, status, cause at the others
    "SIGINT": (signal.SIGINT, "pass", "None", -signal.SIGINT, "interrupted"),
    "SIGTERM": (signal.SIGTERM, "pass", "None", -signal.SIGTERM, "interrupted by SIGTERM"),
    "SIGTERM raises": (
        signal.SIGTERM,
        "signal.signal(signal.SIGTERM, handler)",
        "SystemExit(5)",
        5,
        "interrupted",
    ),
    "SIGINT raises": (
        signal.SIGINT,
        "signal.signal(signal.SIGINT, handler)",
        "RuntimeError('enough')",
        1,
        "interrupted",
    ),
    "SIGUSR2 raises": (
        signal.SIGUSR2,
        "signal.signal(signal.SIGUSR2, handler)",
        "SystemExit(0)",
        0,
        "interrupted",
    ),
}


@pytest.mark.parametrize("op", ["send", "barrier async", "all_reduce await"])
@pytest.mark.parametrize("how", ENDS)
def test_ends_the_program(nursery: Nursery, how: str, op: str) -> None:
    """Nobody catches it: the process ends within 1 s, with the status it has without us."""
    number, setup, raised, status, cause = ENDS[how]
    code = UNCAUGHT.format(setup=setup, raised=raised)
    args = {"code": code, "op": op, "away": 1, "victim": 2}
    with Case(nursery, 4, "program", args, fresh=how == "SIGINT") as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(1))
        signal_ns = case.signal(2, number)
        for rank in (0, 3):
            if (op in ASYNC and "raises" in how) or (op in AWAIT and how != "SIGTERM"):
                # The handler's exception leaves the wait for the handle, not the operation: how the
                # program ends decides what the others hear.
                assert case.error(rank).error["type"] in LEAVINGS, case.story()
                assert case.error(rank).error["rank"] == 2, case.story()
                continue
            check_left(case, rank, 2, signal_ns, cause, f"{how}, there")
        assert case.wait_end(2) == status, case.story()
        ended_ns = case.ranks[2].ended_ns
        if case.ranks[2].said("ending"):
            ended_ns = case.wait(
                2, "ending"
            ).ns  # after that it is Python's own end, which takes time
        # close() gives an operation that still runs a second to end, unless the cause is Ctrl-C.
        limit_s = ALLOWED_S + (1.0 if op in ASYNC and "raises" in how else 0.0)
        case.prompt(f"{how}, until its end", signal_ns, ended_ns, limit_s)
        case.finish(1, statuses={2: status})


@pytest.mark.parametrize("fabric", FABRICS)
def test_sigterm_while_idle(nursery: Nursery, fabric: str) -> None:
    """A rank that is in no operation, but in other code, ends by SIGTERM; the others hear why."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            time.sleep(30)
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1, 2)
        signal_ns = case.signal(1, signal.SIGTERM)
        assert case.wait_end(1) == -signal.SIGTERM, case.story()
        case.prompt("SIGTERM while idle", signal_ns, case.ranks[1].ended_ns, ALLOWED_S)
        for rank in (0, 2):
            check_left(
                case, rank, 1, signal_ns, "interrupted by SIGTERM", "SIGTERM while idle, there"
            )
        check_aftermath(case, [0, 2])


def test_sigterm_while_stuck(nursery: Nursery) -> None:
    """Stuck in native code that holds the GIL: SIGTERM still ends it, with a goodbye."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            while True:
                ctypes.PyDLL(None).sleep(30)
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 3, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1, 2)
        signal_ns = case.signal(1, signal.SIGTERM)
        assert case.wait_end(1) == -signal.SIGTERM, case.story()
        case.prompt("SIGTERM while stuck", signal_ns, case.ranks[1].ended_ns, ALLOWED_S)
        for rank in (0, 2):
            check_left(
                case, rank, 1, signal_ns, "interrupted by SIGTERM", "SIGTERM while stuck, there"
            )
        check_aftermath(case, [0, 2])


@pytest.mark.parametrize("how", ["handle_sigterm=False", "SIG_DFL for SIGINT"])
def test_killed_by_default(nursery: Nursery, how: str) -> None:
    """Where the program wants the system's default, the signal kills: that is a death."""
    number = signal.SIGTERM if how.startswith("handle") else signal.SIGINT
    code = WAITING.replace(
        "group.barrier()\n",
        "group.barrier()\n    signal.signal(signal.SIGINT, signal.SIG_DFL)\n",
        1,
    )
    init = {"handle_sigterm": False} if how.startswith("handle") else {}
    args = {"code": code, "op": "barrier", "away": 1, "init": init}
    with Case(nursery, 3, "program", args) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        signal_ns = case.signal(2, number)
        assert case.wait_end(2) == -number
        check_death(case, 0, 2, signal_ns, "killed by default")
        case.tell(1)
        case.finish(2)


RETURNING = {
    "handler": "signal.signal(number, lambda *_: calls.append(1))",
    "ignored": "signal.signal(number, signal.SIG_IGN)",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize("op", ["all_reduce large", "send", "barrier async"])
@pytest.mark.parametrize("how", RETURNING)
def test_wait_goes_on(nursery: Nursery, how: str, op: str, number: int) -> None:
    """A handler that returns (and SIG_IGN) is served in the wait, which then goes on to its end."""
    code = f"""
        calls = []
        number = here.args["number"]
        {RETURNING[how]}
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        attempt("wait", lambda: do(group, here.args["op"], 1))
        here.say("called", times=len(calls))
        group.close()
        """
    args = {"code": code, "op": op, "number": int(number)}
    with Case(nursery, 3, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        for _ in range(3):
            case.signal(2, number)
            case.pause(0.06)
        assert case.ranks[2].said("raised") is None, case.story()
        case.tell(1)
        for rank in case.others():
            case.wait(rank, "returned")
        assert (case.wait(2, "called")["times"] >= 1) == (how == "handler"), case.story()
        case.finish()


@pytest.mark.parametrize("op", ["all_reduce large", "all_gather", "send", "recv"])
@pytest.mark.parametrize("fabric", FABRICS)
def test_storm(nursery: Nursery, fabric: str, op: str) -> None:
    """A signal each millisecond, in Python and in every system call: all results are right."""
    code = """
        calls = []
        signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        group = here.init()
        for turn in range(12):
            do(group, here.args["op"], turn % here.size, min(OPS[here.args["op"]].elements, LARGE))
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert calls
        group.close()
        """
    args = {"code": code, "op": op}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.finish()
        assert [case.text(rank) for rank in range(3)] == ["", "", ""]


def test_in_init(nursery: Nursery) -> None:
    """While it waits for ranks that have not come: KeyboardInterrupt here, an error there."""
    code = """
        here.say("ready")
        attempt("init", lambda: here.init(timeout_s=30.0))
        here.ask()
        """
    with Case(nursery, 3, "program", {"code": code}, absent=[2]) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1)
        case.pause(0.2)  # until the two have met
        signal_ns = case.signal(1, signal.SIGINT)
        event = case.error(1)
        assert event.error["type"] == "KeyboardInterrupt", f"{event}\n{case.story()}"
        case.prompt("Ctrl-C in init", signal_ns, event.ns, ALLOWED_S)
        other = case.error(0)
        assert other.error["type"] == "PeerLeft", f"{other}\n{case.story()}"
        assert other.error["rank"] == 1, other
        case.finish()


def test_twice(nursery: Nursery) -> None:
    """The second Ctrl-C while the first is dealt with does no harm."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            try:
                group.barrier()
            except KeyboardInterrupt:
                attempt("wait", here.ask)
                group.close()
        else:
            here.ask()
        """
    with Case(nursery, 2, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(1)
        case.signal(1, signal.SIGINT)
        case.pause(0.2)
        case.wait_asleep(1)
        case.signal(1, signal.SIGINT)
        assert case.error(1).error["type"] == "KeyboardInterrupt"
        case.finish()
