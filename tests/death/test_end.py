"""The bounded end: exit_on_fault ends a program that never comes back, and nobody else.

`exit_grace_s` + 2 s after the verdict, with status 75, whatever the program's threads do.
"""

from __future__ import annotations

import signal
import sys

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S
from tests.death.nursery import now_ns
from tests.death.processes import Nursery

RETRY = 75
GRACE_S = 0.3
END_S = GRACE_S + 2.0
ENDS = {"STANDFAST_EXIT_ON_FAULT": "1", "STANDFAST_EXIT_GRACE_S": str(GRACE_S)}
AT_ONCE = {"STANDFAST_EXIT_ON_FAULT": "1", "STANDFAST_EXIT_GRACE_S": "0"}


def check_ended(case: Case, rank: int, since_ns: int, label: str) -> None:
    """Assert that the watch has ended the rank: not before its grace, and soon after it."""
    assert case.wait_end(rank) == RETRY, f"rank {rank}\n{case.story()}"
    ended_ns = case.ranks[rank].ended_ns
    assert ended_ns - since_ns > END_S * 1e9 * 0.99, f"rank {rank}: too early\n{case.story()}"
    case.prompt(label, since_ns, ended_ns, END_S + PROMISE_S / 2)


# Each rank is stuck in its own way, and its stderr is read by nobody.
STUCK = """
    import pathlib
    group = here.init()
    group.barrier()
    if here.rank == 0:
        read, write = os.pipe()
        os.dup2(write, 2)
        os.set_blocking(2, False)
        try:
            while True:
                os.write(2, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(2, True)
    if here.rank == 5:
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(read)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    here.say("ready")
    def hook():
        here.say("hook")
        time.sleep(60)
    def spin():
        ctypes.PyDLL(None).sleep(60)
    if here.rank == 2:
        group.add_abort_hook(hook)
        while True:
            time.sleep(1)
    elif here.rank == 3:
        thread = threading.Thread(target=lambda: time.sleep(60))
        thread.start()
        thread.join()
    elif here.rank == 4:
        threading.Thread(target=spin).start()
        time.sleep(60)
    elif here.rank == 6:
        # Asking is not taking: the program has not dealt with anything.
        while group.healthy():
            time.sleep(0.01)
        here.say("asked", last=type(group.last_failure()).__name__)
        time.sleep(60)
    else:
        ctypes.PyDLL(None).sleep(60)
    """


def test_stuck(nursery: Nursery) -> None:
    """A hook that blocks, a held GIL, a thread in join, a full and a broken stderr, a mere look."""
    with Case(nursery, 7, "program", {"code": STUCK}, env=ENDS) as case:
        case.wait_all("ready")
        case.pause(0.1)
        killed_ns = case.kill(1)
        case.wait(2, "hook", 1.0)
        assert case.wait(6, "asked", 1.0)["last"] == "PeerDied"
        for rank in case.others(1):
            check_ended(case, rank, killed_ns, "stuck, each in its way")
        for rank in (2, 3, 4, 6):
            text = case.text(rank)
            assert f"standfast: rank {rank}: ends with status 75: rank 1 on " in text, text


def test_frozen_peer(nursery: Nursery) -> None:
    """The end also comes where the fault is silence, and the rank that woke up ends as well."""
    code = """
        group = here.init(silence_s=1.0, progress_s=1.0)
        group.barrier()
        here.say("ready")
        time.sleep(60)
        """
    with Case(nursery, 3, "program", {"code": code}, env=AT_ONCE) as case:
        case.wait_all("ready")
        frozen_ns = case.freeze(1)
        for rank in (0, 2):
            assert case.wait_end(rank) == RETRY, case.story()
            case.prompt("frozen peer, until the end", frozen_ns, case.ranks[rank].ended_ns, 6.0)
            assert "rank 1 on " in case.text(rank), case.story()
        case.thaw(1)
        assert case.wait_end(1) == RETRY, case.story()


# --- an orderly stop ------------------------------------------------------------------------------


def test_leaving_is_no_fault(nursery: Nursery) -> None:
    """All close, each when it is done, and go on for a while: nobody is ended."""
    code = """
        group = here.init()
        group.barrier()
        time.sleep(0.2 * here.rank)
        group.close()
        here.say("closed")
        time.sleep(2.5 - 0.2 * here.rank)
        """
    with Case(nursery, 4, "program", {"code": code}, env=AT_ONCE) as case:
        for rank in range(4):
            assert case.wait_end(rank) == 0, case.story()
            assert case.text(rank) == "", case.story()


STOPPED = """
    group = here.init()
    group.barrier()
    if here.args["handler"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    here.say("ready")
    if here.args["waits"]:
        while True:
            do(group, "all_reduce", 0)
    time.sleep(60)
    """


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("handler", [True, False])
def test_sigterm_to_all(nursery: Nursery, handler: bool, waits: bool) -> None:
    """A requested stop, during which the peers leave, too: 0 or by the signal, never 75."""
    args = {"code": STOPPED, "handler": handler, "waits": waits}
    with Case(nursery, 4, "program", args, env=AT_ONCE) as case:
        case.wait_all("ready")
        case.signal_all(signal.SIGTERM)
        wanted = 0 if handler else -signal.SIGTERM
        for rank in range(4):
            assert case.wait_end(rank, 5.0) == wanted, case.story()
            assert "75" not in case.text(rank), case.story()


@pytest.mark.skipif(sys.platform != "linux", reason="a default stack size by pthread's extension")
def test_no_watch_no_group(nursery: Nursery) -> None:
    """Where the watch cannot start, there is no group: init() raises, on the others as well."""
    code = """
        if here.rank == 1:
            attributes = ctypes.create_string_buffer(64)
            libc = ctypes.CDLL(None)
            libc.pthread_attr_init(attributes)
            libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46))
            assert libc.pthread_setattr_default_np(attributes) == 0
        here.say("ready")
        attempt("init", lambda: here.init(init_timeout_s=3.0).barrier())
        here.ask()
        """
    with Case(nursery, 3, "program", {"code": code}, env=ENDS, quick_end=True) as case:
        error = case.error(1).error
        assert error["type"] != "PeerDied", error
        for rank in (0, 2):
            case.error(rank)
        case.finish()


# --- the watch itself -----------------------------------------------------------------------------

CLOSED = """
    group = here.init(heartbeat_s=0.2, hint_s=0.5, silence_s=5.0)
    group.barrier()
    links = dict(group._formation.control)
    here.say("ready")
    if here.rank == here.args["victim"]:
        here.ask()
        here.say("closing")
        os.close(links[here.args["peer"]])
        if here.args["reused"]:
            pipe = os.pipe()  # the number is another file's from here on
        while group.healthy():
            time.sleep(0.01)
    attempt("barrier", group.barrier)
    aftermath(here, group)
    """


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize(("victim", "peer"), [(0, 2), (2, 0)])
def test_descriptor_closed(nursery: Nursery, victim: int, peer: int, reused: bool) -> None:
    """The program closes a descriptor of the core's: that is the end of the link, on all ranks."""
    args = {"code": CLOSED, "victim": victim, "peer": peer, "reused": reused}
    with Case(nursery, 3, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(1)
        case.tell(victim)
        since_ns = case.wait(victim, "closing").ns
        for rank in range(3):
            event = case.error(rank)
            assert event.error["type"] == "PeerDied", f"{event}\n{case.story()}"
            assert event.error["rank"] in (0, 2), f"{event}\n{case.story()}"
            case.prompt("descriptor closed", since_ns, event.ns, 2.0)
        assert "closed under the watch" in case.error(victim).error["cause"], case.story()


BROKEN_POLL = """
    group = here.init(heartbeat_s=0.2, hint_s=0.5, silence_s=5.0)
    group.barrier()
    here.say("ready")
    if here.rank == 1:
        here.ask()
        here.say("closing")
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if "eventpoll" in target:
                os.close(int(name))
        while group.healthy():
            time.sleep(0.01)
    attempt("barrier", group.barrier)
    here.ask()
    aftermath(here, group)
    """


@pytest.mark.skipif(sys.platform != "linux", reason="finds the poller's descriptor in /proc")
def test_poll_fails(nursery: Nursery) -> None:
    """What the watch polls is closed under it: an error everywhere, and no processor is burnt."""
    with Case(nursery, 3, "program", {"code": BROKEN_POLL}, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.tell(1)
        since_ns = case.wait(1, "closing").ns
        for rank in range(3):
            event = case.error(rank)
            assert event.error["type"] == "InternalError", f"{event}\n{case.story()}"
            assert event.error["rank"] == 1, f"{event}\n{case.story()}"
            assert "its watch failed: epoll_wait: EBADF" in event.error["cause"], event
            case.prompt("a failing poll", since_ns, event.ns, 2.0)
        before_s = case.cpu_s(1)
        case.pause(1.0)
        assert case.cpu_s(1) - before_s < 0.2, "it spins"
        for rank in range(3):
            case.tell(rank)
        case.finish()


WAYS = {
    "sync": "group.barrier()",
    "handle": "group.barrier_async().wait()",
    "await": "asyncio.run(awaited())",
}
THROWN = """
    from standfast import _core
    group = here.init(heartbeat_s=0.2, hint_s=0.5, silence_s=5.0)
    group.barrier()
    here.say("ready")
    async def awaited():
        await group.barrier_async()
    def act():
        {act}
    def throw():
        here.say("throwing")
        _core.throw_in(here.args["thread"])
    if here.rank == 1 and here.args["thread"] == "watch":
        threading.Timer(0.2, throw).start()
    elif here.rank == 1:
        here.ask()
        throw()
    elif here.rank == 2:
        here.ask()
    attempt("act", act)
    attempt("again", act, "again")
    attempt("close", group.close, "closed")
    here.say("ending")
    """


# A plain call runs in its caller's thread, not in a worker.
@pytest.mark.parametrize(
    ("thread", "how"),
    [*(("watch", how) for how in WAYS), ("worker", "handle"), ("worker", "await")],
)
def test_a_thread_throws(nursery: Nursery, thread: str, how: str) -> None:
    """A bug in a thread of ours is an InternalError for the callers, here and elsewhere (R20-R26).

    close() and the interpreter's end take less than 2 s, and nothing aborts.
    """
    args = {"code": THROWN.format(act=WAYS[how]), "thread": thread}
    with Case(nursery, 3, "program", args, env=ENDS) as case:
        case.wait_all("ready")
        if thread == "worker":
            case.wait_asleep(0)
            case.tell(1)
        since_ns = case.wait(1, "throwing").ns
        for rank in range(3):
            if rank == 2:
                case.tell(2)
            event = case.error(rank)
            assert event.error["type"] == "InternalError", f"{event}\n{case.story()}"
            assert "a test made this thread fail" in event.error["cause"], event
            case.prompt(f"{thread} throws", since_ns, event.ns, 2.0)
            closed = case.wait(rank, "closed")
            assert closed["took_s"] < case.allowed_s(2.0), f"{closed}\n{case.story()}"
            assert case.wait_end(rank) == 0, case.story()
            ending_ns = case.wait(rank, "ending").ns
            case.prompt("the interpreter's end", ending_ns, case.ranks[rank].ended_ns, 2.0)


def test_a_watch_that_threw_still_ends(nursery: Nursery) -> None:
    """The bounded end does not hang on a watch that failed."""
    code = """
        from standfast import _core
        group = here.init()
        group.barrier()
        here.say("ready")
        here.ask()
        if here.rank == 1:
            _core.throw_in("watch")
        ctypes.PyDLL(None).sleep(60)
        """
    with Case(nursery, 2, "program", {"code": code}, env=ENDS) as case:
        case.wait_all("ready")
        since_ns = now_ns()
        for rank in range(2):
            case.tell(rank)
        for rank in range(2):
            assert case.wait_end(rank) == RETRY, case.story()
            ended_ns = case.ranks[rank].ended_ns
            case.prompt("a failed watch, until the end", since_ns, ended_ns, END_S + 2.0)


def test_no_sigpipe(nursery: Nursery) -> None:
    """With the signal as C programs have it, writing to peers that are gone ends nobody."""
    code = """
        group = here.init(topology="mesh")
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        group.barrier()
        here.say("ready")
        def work():
            while True:
                group.all_to_all(np.ones(4 * LARGE))
        attempt("work", work)
        group.abort("after the end")
        group.close()
        here.say("closed")
        """
    for _ in range(3):
        case = Case(nursery, 4, "program", {"code": code}, init={"fabric": "tcp"})
        with case:
            case.wait_all("ready")
            case.kill(2, 3)
            for rank in (0, 1):
                assert case.error(rank).error["type"] == "PeerDied", case.story()
                case.wait(rank, "closed")
                assert case.wait_end(rank) == 0, case.story()


def test_order_of_two_threads(nursery: Nursery) -> None:
    """Two threads of each rank use one group: their operations run in the order of their calls."""
    code = """
        group = here.init()
        turn = threading.Condition()
        number, wrong, ended = 0, [], []
        def work(mine):
            global number
            for step in range(100):
                with turn:
                    turn.wait_for(lambda: number % 2 == mine)
                    place = number
                    handle = group.all_sum_async(np.full(8, float(place)))
                    number += 1
                    turn.notify_all()
                if handle.result()[0] != place * here.size:
                    wrong.append(place)
                ended.append(place)
        threads = [threading.Thread(target=work, args=(mine,)) for mine in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        late = []
        def wait(name, pause_s):
            time.sleep(pause_s)
            group.all_sum(np.full(8, 1.0 if name == "a" else 2.0))
            late.append(name)
        if here.rank == 1:
            time.sleep(0.4)
            wait("a", 0)
            wait("b", 0)
        else:
            first = threading.Thread(target=wait, args=("a", 0))
            second = threading.Thread(target=wait, args=("b", 0.1))
            first.start(), second.start(), first.join(), second.join()
        here.say("worked", wrong=wrong, count=len(ended), late=late)
        group.close()
        """
    with Case(nursery, 3, "program", {"code": code}) as case:
        for rank in range(3):
            worked = case.wait(rank, "worked")
            assert (worked["wrong"], worked["count"]) == ([], 200), f"{worked}\n{case.story()}"
            assert worked["late"] == ["a", "b"], f"{worked}\n{case.story()}"
        case.finish()
