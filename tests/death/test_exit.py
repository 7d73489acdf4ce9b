"""How a process ends after a failure: exit statuses, texts, and the end of one that is stuck.

Each rank is a Python of its own here, started as users start it.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S
from tests.death.processes import Nursery

RETRY = 75
GRACE_S = 0.3

WAYS = {
    "plain": "group.all_sum(np.ones(4))",
    "with": "with group: group.all_sum(np.ones(4))",
    "async": "group.all_sum_async(np.ones(4)).wait()",
    "await": """
        async def main():
            return await group.all_sum_async(np.ones(4))
        asyncio.run(main())
        """,
}


def _code(body: str) -> str:
    lines = [line.removeprefix("        ") for line in body.strip("\n ").split("\n")]
    text = "\n        ".join(lines)
    return f"""
        group = here.init(**here.args.get("init", {{}}))
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        {text}
        """


@pytest.mark.parametrize("how", WAYS)
def test_uncaught(nursery: Nursery, how: str) -> None:
    """Nobody catches PeerDied: status 75, and a traceback that tells who died and what waited."""
    code = _code(WAYS[how])
    with Case(nursery, 3, "program", {"code": code}, fresh=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        killed_ns = case.kill(1)
        for rank in (0, 2):
            assert case.wait_end(rank) == RETRY, case.story()
            case.prompt("uncaught, until the end", killed_ns, case.ranks[rank].ended_ns, 2.0)
            text = case.text(rank)
            assert "Traceback (most recent call last):" in text, text
            assert "standfast.errors.PeerDied: rank 1 on " in text, text
            assert "died: " in text, text
            assert f"here rank {rank} waited " in text, text
            assert "all_sum #" in text, text
            assert "\nhint: why it ended shows in the output and exit status of rank 1" in text, (
                text
            )
            assert "Exception ignored" not in text, text
            assert "terminate called" not in text, text


STATUSES = {
    "PeerDied": ("os._exit(3)", RETRY),
    "PeerLeft": ("group.close()", RETRY),
    "RemoteFailure": ("raise ValueError('bad batch')", RETRY),
    "GroupAborted": ("group.abort('enough'); os._exit(0)", RETRY),
    "NoProgress": ("here.ask()", RETRY),
    "CollectiveMismatch": ("group.barrier()", 76),
}


@pytest.mark.parametrize("kind", STATUSES)
def test_statuses(nursery: Nursery, kind: str) -> None:
    """Each uncaught error has its own exit status (exits.py)."""
    act, status = STATUSES[kind]
    limit_s = 1.0 if kind == "NoProgress" else 30.0
    code = _code(
        f"if here.rank == 1: {act}\n        group.all_sum(np.ones(4), timeout_s={limit_s})"
    )
    with Case(nursery, 3, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.tell(1)
        for rank in (0, 2):
            assert case.wait_end(rank) == status, case.story()
            assert f"standfast.errors.{kind}: " in case.text(rank), case.story()


@pytest.mark.parametrize("how", ["excepthook=False", "own hook"])
def test_python_decides(nursery: Nursery, how: str) -> None:
    """Without our hook the status is Python's own; a hook that was there before is still called."""
    own = "sys.excepthook = lambda *error: (print('own hook', file=sys.stderr), previous(*error))"
    prefix = f"previous = sys.excepthook\n        {own}" if how == "own hook" else ""
    code = prefix + _code("group.all_sum(np.ones(4))")
    args: dict[str, Any] = {"code": code}
    if how == "excepthook=False":
        args["init"] = {"excepthook": False}
    else:
        args["code"] = "        " + args["code"]
    with Case(nursery, 2, "program", args) as case:
        case.wait_all("ready")
        case.wait_asleep(0)
        case.kill(1)
        assert case.wait_end(0) == (RETRY if how == "own hook" else 1), case.story()
        assert ("own hook" in case.text(0)) == (how == "own hook"), case.story()
        assert "PeerDied" in case.text(0)


def test_caught(nursery: Nursery) -> None:
    """The program catches the error: its own exit status counts; never SIGABRT (R20)."""
    code = _code("""
        try:
            group.all_sum(np.ones(4))
        except standfast.PeerError as error:
            here.say("caught", rank=error.rank)
        sys.exit(17)
        """)
    with Case(nursery, 3, "program", {"code": code}, fresh=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.kill(1)
        for rank in (0, 2):
            assert case.wait(rank, "caught")["rank"] == 1
            assert case.wait_end(rank) == 17, case.story()
            assert "Traceback" not in case.text(rank), case.story()


# --- exit_on_fault --------------------------------------------------------------------------------

STUCK = (
    "while True: ctypes.PyDLL(None).sleep(30)",  # native code that holds the GIL
    "while True: ctypes.CDLL(None).sleep(30)",
    "time.sleep(30)",
    "while True: pass",
)
EXIT_ON_FAULT = {"STANDFAST_EXIT_ON_FAULT": "1", "STANDFAST_EXIT_GRACE_S": str(GRACE_S)}
END_S = GRACE_S + 2.0
"""When the watch ends a program that does not take its error."""


@pytest.mark.parametrize("victim", [0, 4])
def test_stuck(nursery: Nursery, victim: int) -> None:
    """No program comes back for its error: the watch ends each with 75 after the grace."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == here.args["victim"]:
            here.ask()
        exec(here.args["stuck"][here.rank % 4])
        """
    args = {"code": code, "victim": victim, "stuck": STUCK}
    with Case(nursery, 5, "program", args, env=EXIT_ON_FAULT, fresh=victim == 0) as case:
        case.wait_all("ready")
        killed_ns = case.kill(victim)
        for rank in case.others(victim):
            assert case.wait_end(rank) == RETRY, case.story()
            took_ns = case.ranks[rank].ended_ns
            assert took_ns - killed_ns > END_S * 1e9 * 0.99, f"before its time\n{case.story()}"
            case.prompt("stuck, until the end", killed_ns, took_ns, END_S + PROMISE_S)
            text = case.text(rank)
            assert f"standfast: rank {rank}: ends with status 75: rank {victim} on " in text, text
            assert "did not take the error within" in text, text


def test_off_by_default(nursery: Nursery) -> None:
    """Without exit_on_fault a program that looks away is left alone."""
    code = """
        group = here.init(exit_grace_s=0.1)
        group.barrier()
        here.say("ready")
        here.ask()
        """
    with Case(nursery, 2, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.kill(1)
        case.pause(2.3)
        assert case.ranks[0].status is None, case.story()
        case.finish(1)


TAKES = (
    "group.all_sum(np.ones(4))",
    "",
    "group.all_sum_async(np.ones(4)).wait()",
    """
errors = []
def wait():
    try:
        group.all_sum(np.ones(4))
    except standfast.PeerDied as error:
        errors.append(error)
thread = threading.Thread(target=wait)
thread.start()
thread.join()
raise errors[0]
""",
)


def test_taken(nursery: Nursery) -> None:
    """A program that has caught its error goes on for as long as it wants, exit_on_fault or not."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        try:
            exec(here.args["takes"][here.rank])
        except standfast.PeerDied:
            here.say("caught")
        here.ask()
        """
    args = {"code": code, "takes": TAKES}
    with Case(nursery, 4, "program", args, env=EXIT_ON_FAULT) as case:
        case.wait_all("ready")
        case.wait_asleep(0)
        case.kill(1)
        for rank in (0, 2, 3):
            case.wait(rank, "caught")
        case.pause(END_S + 0.2)
        for rank in (0, 2, 3):
            assert case.ranks[rank].status is None, case.story()
        case.finish(1)


def test_closed_in_time(nursery: Nursery) -> None:
    """A program that closes its group within the grace time is not ended, either."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        here.ask()
        group.close()
        here.say("closed")
        here.ask()
        """
    with Case(nursery, 2, "program", {"code": code}, env=EXIT_ON_FAULT) as case:
        case.wait_all("ready")
        case.kill(1)
        case.tell(0)
        case.wait(0, "closed")
        case.pause(END_S + 0.2)
        assert case.ranks[0].status is None, case.story()
        case.finish(1)


def test_whole_group(nursery: Nursery) -> None:
    """SIGKILL of rank 0: all others end with 75 within 3 s, stuck or not (R19)."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 2:
            while True: ctypes.PyDLL(None).sleep(30)
        while True:
            group.all_sum(np.ones(1000))
            if here.rank == 0:
                here.ask()
        """
    with Case(nursery, 4, "program", {"code": code}, env=EXIT_ON_FAULT, fresh=True) as case:
        case.wait_all("ready")
        killed_ns = case.kill(0)
        for rank in (1, 2, 3):
            assert case.wait_end(rank) == RETRY, case.story()
            case.prompt("whole group, until the end", killed_ns, case.ranks[rank].ended_ns, 3.0)
        assert case.ranks[0].status == -signal.SIGKILL
