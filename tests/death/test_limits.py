"""Time limits, and ranks that are frozen for shorter than these."""

from __future__ import annotations

import re

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath
from tests.death.operations import OPS, waits_in
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp")
LIMIT_S = 0.2


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", OPS)
def test_timeout_of_each_operation(nursery: Nursery, op: str, fabric: str) -> None:
    """One rank's timeout_s ends its operation after that time, and the others' with it (R96)."""
    caller, away = (2, 1) if op.startswith("gather") else (0, 1)
    code = """
        group = here.init()
        group.barrier()
        if here.rank == here.args["away"]:
            here.ask()
            attempt("late", group.barrier)
        elif here.rank == here.args["caller"]:
            here.say("ready")
            limit = {"timeout_s": here.args["limit_s"]}
            attempt("wait", lambda: do(group, here.args["op"], here.args["away"], **limit))
        else:
            here.say("ready")
            attempt("wait", lambda: step(here, group, here.args["op"], here.args["away"]))
        aftermath(here, group)
        """
    args = {"code": code, "op": op, "caller": caller, "away": away, "limit_s": LIMIT_S}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        began_ns = case.wait(caller, "ready").ns
        event = case.error(caller)
        assert event.error["type"] == "NoProgress", f"{event}\n{case.story()}"
        assert waits_in(op, caller, away, 4)
        assert event.error["op"] == OPS[op].name, event
        assert event["took_s"] >= LIMIT_S * 0.99, f"too early\n{case.story()}"
        case.prompt("timeout_s", began_ns, event.ns, LIMIT_S + PROMISE_S)
        for rank in case.others(caller, away):
            other = case.error(rank)
            assert other.error["type"] == "NoProgress", f"{other}\n{case.story()}"
            case.prompt("timeout_s, the others", event.ns, max(event.ns, other.ns), PROMISE_S)
        case.tell(away)
        assert case.error(away).error["type"] == "NoProgress", case.story()
        check_aftermath(case, case.others())


@pytest.mark.parametrize("fabric", FABRICS)
def test_group_limit(nursery: Nursery, fabric: str) -> None:
    """Without timeout_s the group's progress limit ends a wait, and names who was waited for."""
    code = """
        group = here.init(heartbeat_s=0.1, hint_s=0.3, silence_s=1.0, progress_s=1.5)
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}) as case:
        began_ns = case.wait_all("ready")[0].ns
        for rank in (0, 2):
            event = case.error(rank)
            assert event.error["type"] == "PeerStalled", f"{event}\n{case.story()}"
            assert event.error["rank"] == 1, f"{event}\n{case.story()}"
            case.prompt("progress limit", began_ns, event.ns, 1.5 + PROMISE_S)
        assert case.error(0)["took_s"] > 1.4, case.story()
        case.tell(1)
        check_aftermath(case, case.others())


@pytest.mark.parametrize("fabric", FABRICS)
def test_timeout_while_waiting_for_a_turn(nursery: Nursery, fabric: str) -> None:
    """The limit also holds for a call that waits behind another thread's operation."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
            attempt("late", group.barrier)
        else:
            first = threading.Thread(target=lambda: attempt("first", group.barrier, "first"))
            first.start()
            time.sleep(0.1)
            attempt("second", lambda: group.barrier(timeout_s=0.3))
            first.join()
        aftermath(here, group)
        """
    with Case(nursery, 2, "program", {"code": code}, init={"fabric": fabric}) as case:
        began_ns = case.wait(0, "ready").ns
        event = case.error(0)
        assert event.error["type"] == "NoProgress", f"{event}\n{case.story()}"
        case.prompt("timeout_s in the queue", began_ns, event.ns, 0.4 + PROMISE_S)
        assert case.wait(0, "first").error["type"] == "NoProgress", case.story()
        case.tell(1)
        check_aftermath(case, case.others())


SHORT_LIMITS = {"heartbeat_s": 0.1, "hint_s": 0.3, "silence_s": 2.0, "progress_s": 3.0}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize(
    ("op", "topology"),
    [
        ("all_reduce", "mesh"),
        ("all_reduce large", "mesh"),
        ("all_reduce large", "ring"),
        ("all_gather", "ring"),
        ("send", "mesh"),
        ("recv", "mesh"),
    ],
)
def test_frozen_for_a_while(nursery: Nursery, fabric: str, topology: str, op: str) -> None:
    """Each rank is frozen in turn, shorter than the limits: all results are right."""
    args = {"op": op, "limits": SHORT_LIMITS}
    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "working", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        for rank in range(4):
            case.freeze(rank)
            case.pause(0.15)
            case.thaw(rank)
            case.pause(0.02)
        case.tell(0)
        for rank in range(4):
            worked = case.wait(rank, "worked")
            assert worked["healthy"], f"{worked}\n{case.story()}"
            assert "error" not in case.wait(rank, "returned").fields
        case.finish()


def test_frozen_for_longer(nursery: Nursery) -> None:
    """A second and more of silence is no death either."""
    args = {"op": "all_reduce", "limits": SHORT_LIMITS}
    with Case(nursery, 4, "working", args) as case:
        case.wait_all("ready")
        for rank in (0, 3):
            case.freeze(rank)
            case.pause(1.2)
            case.thaw(rank)
        case.tell(0)
        for rank in range(4):
            assert case.wait(rank, "worked")["healthy"], case.story()
        case.finish()
        for rank in range(4):
            for line in case.text(rank).splitlines():  # hints, and nothing else
                assert line.startswith(f"standfast: rank {rank}: "), case.story()
                known = r" is (frozen|late|wedged): | is back$|: waiting for "
                assert re.search(known, line), line
