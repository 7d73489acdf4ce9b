"""Deaths at other moments: idle, in close, several at once, with a child that lives on."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath, check_death
from tests.death.nursery import now_ns
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp")
HEALTH_S = 2.0


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("fabric", FABRICS)
def test_idle(nursery: Nursery, fabric: str, victim: int) -> None:
    """Nobody calls anything: healthy() turns False on all survivors within 2 s (R12)."""
    with Case(nursery, 4, "idle", init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready")
        killed_ns = case.kill(victim)
        for rank in case.others(victim):
            event = case.wait(rank, "unhealthy")
            case.prompt(f"idle, healthy() {fabric}", killed_ns, event.ns, HEALTH_S)
            assert event["last"]["type"] == "PeerDied", event
            assert event["last"]["rank"] == victim, event
            check_death(case, rank, victim, killed_ns, None, began=False)
        check_aftermath(case, case.others(victim))


# --- in close -------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_us", [0, 100, 300, 1000, 3000])
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("fabric", FABRICS)
def test_in_close(nursery: Nursery, fabric: str, victim: int, delay_us: int) -> None:
    """All close, and one is killed in the middle of that: the others' close() returns, in order."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        here.ask()
        if here.rank == here.args["victim"]:
            def end():
                time.sleep(here.args["delay_us"] / 1e6)
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=end).start()
        attempt("close", group.close, "closed")
        """
    args = {"code": code, "victim": victim, "delay_us": delay_us}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        for rank in case.others():
            case.tell(rank)
        for rank in case.others(victim):
            closed = case.wait(rank, "closed")
            assert "error" not in closed.fields, f"{closed}\n{case.story()}"
            assert closed["took_s"] < case.allowed_s(HEALTH_S), f"{closed}\n{case.story()}"
        case.finish(victim)


CLOSING = """
    group = here.init(close_linger_s=10.0)
    group.barrier()
    here.say("ready")
    here.ask()
    here.say("closing")
    attempt("close", group.close, "closed")
    """


def test_while_rank_0_closes(nursery: Nursery) -> None:
    """Rank 0 stays for one that is not done yet: the death of that one ends it."""
    with Case(nursery, 3, "program", {"code": CLOSING}) as case:
        case.wait_all("ready")
        case.tell(1)
        case.wait(1, "closed")
        case.tell(0)
        case.wait(0, "closing")
        case.wait_asleep(0)
        killed_ns = case.kill(2)
        closed = case.wait(0, "closed")
        assert "error" not in closed.fields, f"{closed}\n{case.story()}"
        assert closed.ns > killed_ns, "rank 0 did not stay"
        case.prompt("rank 0 in close", killed_ns, closed.ns, PROMISE_S)
        case.finish(2)


def test_close_without_rank_0(nursery: Nursery) -> None:
    """Rank 0 is frozen and hears no goodbye: the others' close() returns all the same."""
    with Case(nursery, 3, "program", {"code": CLOSING}) as case:
        case.wait_all("ready")
        case.freeze(0)
        for rank in (1, 2):
            case.tell(rank)
            closed = case.wait(rank, "closed")
            assert "error" not in closed.fields, f"{closed}\n{case.story()}"
            case.prompt("close, rank 0 frozen", case.wait(rank, "closing").ns, closed.ns, PROMISE_S)
        case.thaw(0)
        case.finish()


@pytest.mark.parametrize("victim", [0, 2])
def test_closing_rank_dies(nursery: Nursery, victim: int) -> None:
    """A rank closes while others wait for it, and is killed in that: it left, or it died."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == here.args["victim"]:
            threading.Thread(target=lambda: (time.sleep(0.0005), os.kill(os.getpid(), 9))).start()
            group.close()
        else:
            attempt("barrier", group.barrier)
            aftermath(here, group)
        """
    with Case(nursery, 4, "program", {"code": code, "victim": victim}) as case:
        begun_ns = now_ns()
        for rank in case.others(victim):
            event = case.error(rank)
            assert event.error["type"] in ("PeerDied", "PeerLeft"), f"{event}\n{case.story()}"
            assert event.error["rank"] == victim, f"{event}\n{case.story()}"
            case.prompt("killed in close", begun_ns, event.ns, PROMISE_S + 1.0)
        check_aftermath(case, case.others(victim))


# --- several --------------------------------------------------------------------------------------


@pytest.mark.parametrize("victims", list(itertools.combinations(range(4), 2)))
@pytest.mark.parametrize("fabric", FABRICS)
def test_two_at_once(nursery: Nursery, fabric: str, victims: tuple[int, int]) -> None:
    """Two die within a millisecond: all survivors name the same one."""
    args = {"op": "all_reduce large", "peer": victims[0], "idle": victims}
    case = Case(nursery, 4, "blocked", args, init={"fabric": fabric}, quick_end=True)
    with case:
        case.wait_all("ready")
        survivors = case.others(*victims)
        case.wait_asleep(*survivors)
        killed_ns = case.kill(*victims)
        named = case.error(survivors[0]).error["rank"]
        assert named in victims, f"{named}\n{case.story()}"
        for rank in survivors:
            check_death(case, rank, named, killed_ns, f"two at once {fabric}")
        check_aftermath(case, survivors)


@pytest.mark.parametrize("survivor", range(4))
@pytest.mark.parametrize("fabric", FABRICS)
def test_all_but_one(nursery: Nursery, fabric: str, survivor: int) -> None:
    """The last one names one of the dead."""
    victims = [rank for rank in range(4) if rank != survivor]
    args = {"op": "all_reduce", "peer": victims[0], "idle": victims}
    with Case(nursery, 4, "blocked", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(survivor)
        killed_ns = case.kill(*victims)
        named = case.error(survivor).error["rank"]
        assert named in victims, case.story()
        check_death(case, survivor, named, killed_ns, f"all but one {fabric}")
        check_aftermath(case, [survivor])


@pytest.mark.parametrize("fabric", FABRICS)
def test_rank_0_goes_at_once(nursery: Nursery, fabric: str) -> None:
    """Rank 0, which tells all others, ends as soon as it hears: they still hear who died first."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        try:
            group.barrier()
        except standfast.PeerDied as error:
            if here.rank == 0:
                os._exit(3)
            here.say("raised", error=described(error))
        here.ask()
        """
    for _ in range(10):
        case = Case(nursery, 4, "program", {"code": code}, init={"fabric": fabric}, quick_end=True)
        with case:
            case.wait_all("ready")
            case.wait_asleep(0, 2, 3)
            killed_ns = case.kill(1)
            for rank in (2, 3):
                check_death(case, rank, 1, killed_ns, f"rank 0 goes at once {fabric}")
            case.finish(1, statuses={0: 3})


@pytest.mark.parametrize("fabric", FABRICS)
def test_rank_0_is_frozen(nursery: Nursery, fabric: str) -> None:
    """Who waits for the dead rank itself needs no rank 0 to hear; others hear when it goes on."""
    args = {"op": "recv", "peer": 2, "idle": [2]}
    with Case(nursery, 4, "blocked", args, init={"fabric": fabric}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(2))
        case.freeze(0)
        killed_ns = case.kill(2)
        for rank in (1, 3):
            check_death(case, rank, 2, killed_ns, f"rank 0 frozen {fabric}")
        thawed_ns = case.thaw(0)
        event = case.error(0)
        check_death(case, 0, 2, killed_ns, None)
        case.prompt(f"rank 0 after its thaw {fabric}", thawed_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others(2))


def test_two_generations(nursery: Nursery) -> None:
    """A death, the group is formed again, another death: each names the one of its generation."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 3:
            here.ask()
        attempt("barrier", group.barrier)
        group.close()
        more = {}
        if here.rank == 0:
            sock = socket.create_server(("127.0.0.1", 0))
            here.say("listening", address=f"127.0.0.1:{sock.getsockname()[1]}")
            more["listen_fd"] = sock.detach()
        address = here.ask()
        group = here.init(size=3, coordinator=address, generation=2, **more)
        group.barrier()
        here.say("ready again")
        if here.rank == 2:
            here.ask()
        attempt("barrier", group.barrier, "raised again")
        aftermath(here, group)
        """
    with Case(nursery, 4, "program", {"code": code}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1, 2)
        killed_ns = case.kill(3)
        for rank in (0, 1, 2):
            error = check_death(case, rank, 3, killed_ns, "first generation")
            assert error["generation"] == 1, error
        address = case.wait(0, "listening")["address"]
        for rank in (0, 1, 2):
            case.tell(rank, address)
        case.wait_all("ready again", but=[3])
        case.wait_asleep(0, 1)
        killed_ns = case.kill(2)
        for rank in (0, 1):
            event = case.wait(rank, "raised again")
            error = event.error
            assert (error["type"], error["rank"]) == ("PeerDied", 2), f"{error}\n{case.story()}"
            assert error["generation"] == 2, error
            case.prompt("second generation", killed_ns, event.ns, PROMISE_S)
        case.finish(2, 3)


LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="cannot choose a pid")
@pytest.mark.parametrize("victim", [0, 2])
def test_pid_reused(nursery: Nursery, victim: int) -> None:
    """A rank dies before anybody watches its process, and another process gets its number.

    That one's life says nothing of the rank, nor does its end.
    """
    code = """
        from standfast import _core
        real = _core.Group
        def late(**config):
            here.say("formed")
            here.ask()
            return real(**config)
        _core.Group = late
        attempt("init", lambda: here.init().barrier())
        here.ask()
        """
    with Case(nursery, 3, "program", {"code": code}, quick_end=True) as case:
        case.wait_all("formed")
        killed_ns = case.kill(victim)
        with impostor(case.ranks[victim].pid):
            for rank in case.others(victim):
                case.tell(rank)
            for rank in case.others(victim):
                check_death(case, rank, victim, killed_ns, "pid reused")
        case.pause(0.05)
        case.finish(victim)


@contextlib.contextmanager
def impostor(pid: int) -> Iterator[None]:
    """Let another process have this number."""
    for _ in range(50):
        LAST_PID.write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "60"])
        try:
            if process.pid == pid:
                yield
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"pid {pid} could not be had")


# --- a child that lives on ------------------------------------------------------------------------

CHILDREN = {
    "os.fork": """
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        """,
    "fork without handlers": """
        # The system call itself: no atfork handler runs, the child keeps every descriptor.
        number = 57 if os.uname().machine == "x86_64" else 220  # fork, or clone with SIGCHLD
        if ctypes.CDLL(None).syscall(number, 17, 0, 0, 0, 0) == 0:
            ctypes.CDLL(None).sleep(60)
            os._exit(0)
        """,
    "multiprocessing": """
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)).start()
        """,
    "subprocess": """
        import subprocess
        subprocess.Popen(["sleep", "60"], close_fds=False)
        """,
}


if sys.platform != "linux":
    del CHILDREN["fork without handlers"]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("how", CHILDREN)
def test_child_lives_on(nursery: Nursery, how: str, fabric: str, victim: int) -> None:
    """A forked child holds the dead rank's sockets open: that hides nothing."""
    code = f"""
        import multiprocessing
        group = here.init()
        group.barrier()
        if here.rank == here.args["victim"]:
            {_indented(CHILDREN[how], 12)}
            group.barrier()
            here.say("ready")
            here.ask()
        group.barrier()
        here.say("ready")
        attempt("all_sum", lambda: group.all_sum(np.ones(100)))
        aftermath(here, group)
        """
    args = {"code": code, "victim": victim}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}, forks=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(victim))
        killed_ns = case.kill(victim)
        for rank in case.others(victim):
            check_death(case, rank, victim, killed_ns, f"child lives on, {how} {fabric}")
        check_aftermath(case, case.others(victim))


def _indented(text: str, by: int) -> str:
    lines = [line[8:] for line in text.strip("\n").split("\n")]
    return ("\n" + " " * by).join(lines).strip()


@pytest.mark.parametrize("end", ["group.close(); os._exit(0)", "sys.exit(0)", "raise ValueError"])
@pytest.mark.parametrize("fabric", FABRICS)
def test_in_the_child(nursery: Nursery, fabric: str, end: str) -> None:
    """A child that touches its parent's group gets GroupClosed; the parent's group goes on.

    However the child ends, the parent's peers hear nothing of it.
    """
    code = f"""
        group = here.init()
        group.barrier()
        read, write = os.pipe()
        if os.fork() == 0:
            told = []
            abort = lambda: group.abort("no")
            for call in (group.barrier, lambda: group.all_sum(np.ones(4)), abort):
                try:
                    told.append(repr(call()))
                except BaseException as error:
                    told.append(type(error).__name__)
            told.append(str(group.healthy()))
            os.write(write, " ".join(told).encode())
            {end}
        os.wait()
        here.say("child", told=os.read(read, 1000).decode())
        for _ in range(3):
            assert group.all_sum(np.ones(4))[0] == group.size
        here.say("worked")
        group.close()
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}, forks=True) as case:
        for rank in case.others():
            told = case.wait(rank, "child")["told"].split()
            assert told[:2] == ["GroupClosed", "GroupClosed"], told
            assert told[-1] == "False", told
            case.wait(rank, "worked")
        case.finish()
