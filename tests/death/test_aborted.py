"""group.abort(reason): everybody raises GroupAborted with the reason, frozen peers or not."""

from __future__ import annotations

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp", "verbs")

CODE = """
    group = here.init()
    group.barrier()
    here.say("ready")
    if here.rank == here.args["aborter"]:
        here.ask()
        here.say("aborting")
        attempt("abort", lambda: group.abort("out of cheese"), "aborted")
        attempt("after", group.barrier)
    else:
        attempt("wait", lambda: step(here, group, here.args["op"], here.args["aborter"]))
    aftermath(here, group)
    """


def check_abort(case: Case, rank: int, aborter: int, since_ns: int, label: str) -> None:
    event = case.error(rank)
    error = event.error
    assert error["type"] == "GroupAborted", f"{error}\n{case.story()}"
    assert error["rank"] == aborter, f"{error}\n{case.story()}"
    assert error["cause"] == "out of cheese", error
    assert "out of cheese" in error["message"], error
    case.prompt(label, since_ns, event.ns, PROMISE_S)


@pytest.mark.parametrize("aborter", range(4))
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", ["all_reduce large", "recv", "send", "barrier async"])
def test_releases_all(nursery: Nursery, op: str, fabric: str, aborter: int) -> None:
    """From any rank: all others' calls end within 1 s, and so does abort() (R91)."""
    args = {"code": CODE, "aborter": aborter, "op": op}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(aborter))
        case.tell(aborter)
        since_ns = case.wait(aborter, "aborting").ns
        done = case.wait(aborter, "aborted")
        assert "error" not in done.fields, f"{done}\n{case.story()}"
        case.prompt("abort() itself", since_ns, done.ns, PROMISE_S)
        for rank in case.others():
            check_abort(case, rank, aborter, since_ns, f"aborted {fabric}")
        check_aftermath(case, case.others())


@pytest.mark.parametrize(("aborter", "frozen"), [(0, 2), (1, 2), (2, 1)])
def test_frozen_peer(nursery: Nursery, aborter: int, frozen: int) -> None:
    """A frozen rank holds up neither abort() nor the others; it hears of it when it goes on."""
    args = {"code": CODE, "aborter": aborter, "op": "all_reduce"}
    with Case(nursery, 4, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(aborter))
        case.freeze(frozen)
        case.tell(aborter)
        since_ns = case.wait(aborter, "aborting").ns
        case.prompt("abort(), peer frozen", since_ns, case.wait(aborter, "aborted").ns, PROMISE_S)
        for rank in case.others(frozen):
            check_abort(case, rank, aborter, since_ns, "aborted, peer frozen")
        thawed_ns = case.thaw(frozen)
        check_abort(case, frozen, aborter, thawed_ns, "aborted, after thaw")
        check_aftermath(case, case.others())


def test_frozen_rank_0(nursery: Nursery) -> None:
    """Rank 0, which would pass it on, is frozen: abort() returns; the others hear later."""
    args = {"code": CODE, "aborter": 1, "op": "all_reduce"}
    with Case(nursery, 4, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(1))
        case.freeze(0)
        case.tell(1)
        since_ns = case.wait(1, "aborting").ns
        case.prompt("abort(), rank 0 frozen", since_ns, case.wait(1, "aborted").ns, PROMISE_S)
        check_abort(case, 1, 1, since_ns, "aborted, rank 0 frozen")
        thawed_ns = case.thaw(0)
        for rank in (0, 2, 3):
            check_abort(case, rank, 1, thawed_ns, "aborted, after thaw")
        check_aftermath(case, case.others())


def test_other_thread(nursery: Nursery) -> None:
    """A thread aborts while the main thread of the same rank waits."""
    code = """
        group = here.init()
        group.barrier()
        if here.rank == 1:
            def later():
                here.ask()
                here.say("aborting")
                group.abort("out of cheese")
            threading.Thread(target=later).start()
        here.say("ready")
        if here.rank == 2:
            here.ask()
        else:
            attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 3, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1)
        case.tell(1)
        since_ns = case.wait(1, "aborting").ns
        for rank in (0, 1):
            check_abort(case, rank, 1, since_ns, "aborted by a thread")
        case.tell(2)
        assert case.wait(2, "again").error["type"] == "GroupAborted"
        case.finish()


def test_idle(nursery: Nursery) -> None:
    """Ranks that call nothing become unhealthy."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 2:
            here.ask()
            here.say("aborting")
            group.abort("out of cheese")
        while group.healthy():
            time.sleep(0.005)
        here.say("unhealthy", last=described(group.last_failure()))
        group.close()
        """
    with Case(nursery, 4, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.tell(2)
        since_ns = case.wait(2, "aborting").ns
        for rank in case.others():
            event = case.wait(rank, "unhealthy")
            assert event["last"]["cause"] == "out of cheese", event
            case.prompt("aborted, idle", since_ns, event.ns, PROMISE_S)
        case.finish()
