"""A rank that leaves in order: PeerLeft for those who still need it, and nothing for all others."""

from __future__ import annotations

import itertools
import signal

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath, check_death
from tests.death.operations import OPS
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp")

LEAVING = {
    "close": "group.close(); here.ask()",
    "return": "",
    "sys.exit(0)": "sys.exit(0)",
    "with": "with group: pass",
    "sys.exit in with": "with group: sys.exit(0)",
    "quit": "raise SystemExit",
}


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("how", LEAVING)
def test_others_wait(nursery: Nursery, how: str, fabric: str, leaver: int) -> None:
    """However a rank leaves while others wait for it: they raise PeerLeft naming it, at once."""
    key = list(OPS)[list(LEAVING).index(how) * 3 % len(OPS)]
    code = f"""
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == here.args["leaver"]:
            here.ask()
            here.say("leaving")
            {LEAVING[how]}
        else:
            attempt("wait", lambda: step(here, group, here.args["op"], here.args["leaver"]))
            aftermath(here, group)
        """
    args = {"code": code, "leaver": leaver, "op": key}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(leaver))
        case.tell(leaver)
        left_ns = case.wait(leaver, "leaving").ns
        for rank in case.others(leaver):
            event = case.error(rank)
            error = event.error
            assert error["type"] == "PeerLeft", f"{error}\n{case.story()}"
            assert error["rank"] == leaver, f"{error}\n{case.story()}"
            assert error["cause"] == "closed its group", error
            case.prompt(f"left {fabric}", left_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others(leaver))


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("key", OPS)
def test_every_operation(nursery: Nursery, key: str, leaver: int) -> None:
    """Whatever the others wait in: PeerLeft, on all of them, while all of them live on."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == here.args["leaver"]:
            here.ask()
            here.say("leaving")
            group.close()
            here.ask()
        else:
            attempt("wait", lambda: step(here, group, here.args["op"], here.args["leaver"]))
            aftermath(here, group)
        """
    args = {"code": code, "leaver": leaver, "op": key}
    init = {"topology": "ring" if list(OPS).index(key) % 2 else "mesh"}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(leaver))
        case.tell(leaver)
        left_ns = case.wait(leaver, "leaving").ns
        for rank in case.others(leaver):
            event = case.error(rank)
            assert event.error["type"] == "PeerLeft", f"{event}\n{case.story()}"
            assert event.error["rank"] == leaver, f"{event}\n{case.story()}"
            case.prompt("left, every operation", left_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others(leaver))


@pytest.mark.parametrize("topology", ["mesh", "ring"])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("key", ["barrier", "all_reduce", "recv", "broadcast"])
def test_wait_begins_later(
    nursery: Nursery, key: str, leaver: int, fabric: str, topology: str
) -> None:
    """A rank left long ago, its close() has returned; who needs it now hears so, and all do."""
    code = """
        group = here.init(close_linger_s=0.1)
        group.barrier()
        if here.rank == here.args["leaver"]:
            attempt("close", group.close, "closed")
            here.ask()
        else:
            here.say("ready")
            here.ask()
            here.say("again and ready")
            attempt("wait", lambda: step(here, group, here.args["op"], here.args["leaver"]))
            aftermath(here, group)
        """
    args = {"code": code, "leaver": leaver, "op": key}
    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "program", args, init=init, quick_end=True, deadline_s=8.0) as case:
        case.wait_all("ready", but=[leaver])
        case.wait(leaver, "closed")
        for rank in case.others(leaver):
            case.tell(rank)
        began_ns = max(event.ns for event in case.wait_all("again and ready", [leaver]).values())
        for rank in case.others(leaver):
            event = case.error(rank)
            assert event.error["type"] == "PeerLeft", f"{event}\n{case.story()}"
            assert event.error["rank"] == leaver, f"{event}\n{case.story()}"
            case.prompt("left long ago", began_ns, max(began_ns, event.ns), PROMISE_S)
        check_aftermath(case, case.others(leaver))


CRASHES = {
    "_exit(0)": ("os._exit(0)", 0),
    "_exit(7)": ("os._exit(7)", 7),
    "abort": ("os.abort()", -signal.SIGABRT),
    "segfault": ("ctypes.string_at(0)", -signal.SIGSEGV),
    "SIGTERM to one that has no time": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        -signal.SIGKILL,
    ),
}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("how", CRASHES)
def test_end_without_goodbye(nursery: Nursery, how: str, fabric: str) -> None:
    """A process that ends by itself but says no goodbye has died, with whatever status."""
    code = f"""
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
            here.say("leaving")
            {CRASHES[how][0]}
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.tell(1)
        ended_ns = case.wait(1, "leaving").ns
        for rank in (0, 2):
            check_death(case, rank, 1, ended_ns, f"crash {fabric}")
        assert case.wait_end(1) == CRASHES[how][1]
        check_aftermath(case, [0, 2])


# --- no false alarm -------------------------------------------------------------------------------

LAST_WORK = """
    group = here.init()
    for turn in range(3):
        do(group, here.args["op"], turn, min(OPS[here.args["op"]].elements, LARGE))
    here.say("ready")
    here.ask()
    {ending}
    """
ENDINGS = ["group.close()", "sys.exit(0)", "with group: pass", ""]


ORDERS = list(itertools.permutations(range(4)))


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_ending(nursery: Nursery, order: tuple[int, ...]) -> None:
    """All ranks end in order, in any order, at once or one by one: nobody says anything."""
    number = ORDERS.index(order)
    fabric = FABRICS[number // 3 % 2]
    pause_s = (0.0, 0.003, 0.03)[number % 3]
    codes = [LAST_WORK.format(ending=ENDINGS[(number + rank) % len(ENDINGS)]) for rank in range(4)]
    key = list(OPS)[number % len(OPS)]

    def args(rank: int) -> dict[str, str]:
        return {"code": codes[rank], "op": key}

    with Case(nursery, 4, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        for rank in order:
            case.tell(rank)
            if pause_s:
                case.pause(pause_s)
        check_silence(case)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("first", [0, 2])
def test_long_after(nursery: Nursery, first: int, fabric: str) -> None:
    """One rank ends long before the others, rank 0 too: those stay healthy, and end in order."""
    code = """
        group = here.init(close_linger_s=0.3)
        group.barrier()
        here.say("ready")
        here.ask()
        assert group.healthy(), group.last_failure()
        group.close()
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.tell(first)
        case.wait_end(first)
        case.pause(0.8)
        check_silence(case)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("key", OPS)
def test_end_right_after(nursery: Nursery, key: str, fabric: str) -> None:
    """Each rank ends as soon as its own part of the last operation is done, others still in it."""
    code = """
        group = here.init()
        for turn in (1, 0):
            do(group, here.args["op"], turn, min(OPS[here.args["op"]].elements, LARGE))
        if here.rank % 2:
            group.close()
        """
    args = {"code": code, "op": key}
    topology = ("mesh", "ring")[(list(OPS).index(key) + FABRICS.index(fabric)) % 2]
    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "program", args, init=init) as case:
        check_silence(case)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("leaver", [0, 2])
def test_messages_go_on(nursery: Nursery, leaver: int, fabric: str) -> None:
    """A rank left long ago: messages between the others go on, and a death among them is seen."""
    code = """
        group = here.init(close_linger_s=0.1)
        group.barrier()
        if here.rank == here.args["leaver"]:
            group.close()
            here.say("closed")
            here.ask()
            sys.exit(0)
        here.say("ready")
        here.ask()
        other = 1 if here.rank != 1 else 2 - here.args["leaver"]
        def exchange():
            for turn in range(100):
                if here.rank == 1:
                    group.send(np.full(1000, turn), other)
                    group.recv(1000, "int64", other)
                else:
                    assert (group.recv(1000, "int64", other) == turn).all()
                    group.send(np.full(1000, turn), other)
            assert group.healthy(), group.last_failure()
            here.say("exchanged")
            if here.rank != 1:
                here.ask()
            group.recv(1000, "int64", other)
        attempt("exchange", exchange)
        here.ask()
        """
    args = {"code": code, "leaver": leaver}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready", but=[leaver])
        case.wait(leaver, "closed")
        case.pause(0.2)
        for rank in case.others(leaver):
            case.tell(rank)
        case.wait_all("exchanged", but=[leaver])
        victim = 2 - leaver
        case.wait_asleep(1)
        killed_ns = case.kill(victim)
        check_death(case, 1, victim, killed_ns, f"one left long ago {fabric}")
        case.finish(victim)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("count", [8, 64 * 1024, 2 * 1024 * 1024])
@pytest.mark.parametrize("sender", [0, 1])
def test_sent_before_leaving(nursery: Nursery, sender: int, count: int, fabric: str) -> None:
    """What was sent before the goodbye still arrives, however late; then comes PeerLeft."""
    code = """
        group = here.init(close_linger_s=0.1)
        count, sender = here.args["count"], here.args["sender"]
        group.barrier()
        if here.rank == sender:
            here.say("ready")
            group.send(np.arange(count, dtype=np.float64), 1 - sender, tag=1)
            group.close()
            here.say("closed")
        else:
            here.say("ready")
            here.ask()
            found = group.recv(count, np.float64, sender, tag=1)
            assert (found == np.arange(count)).all()
            here.say("received")
            attempt("recv", lambda: group.recv(count, np.float64, sender, tag=1))
            aftermath(here, group)
        """
    args = {"code": code, "count": count, "sender": sender}
    with Case(nursery, 2, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        if count < 1 << 20:  # larger ones are sent only as they are received
            case.wait(sender, "closed")
            case.wait_end(sender)
        case.tell(1 - sender)
        case.wait(1 - sender, "received")
        error = case.error(1 - sender).error
        assert error["type"] == "PeerLeft", f"{error}\n{case.story()}"
        assert error["rank"] == sender, f"{error}\n{case.story()}"
        check_aftermath(case, [1 - sender])


def check_silence(case: Case) -> None:
    """All ranks end with status 0, and none has written a word."""
    case.finish()
    for rank in case.others():
        assert case.text(rank) == "", f"rank {rank} complains\n{case.story()}"
