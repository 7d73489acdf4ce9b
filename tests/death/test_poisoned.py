"""After a failure: the group is over, other groups are not, and everything can be closed."""

from __future__ import annotations

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_death, check_same
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp", "verbs")


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_later_call(nursery: Nursery, fabric: str) -> None:
    """Every operation, plain and async, raises the first cause at once; nothing else changes."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        attempt("barrier", group.barrier)
        x = np.ones(6)
        calls = {
            "all_sum": lambda: group.all_sum(x),
            "all_max": lambda: group.all_max(x),
            "all_gather": lambda: group.all_gather(x),
            "sum_scatter": lambda: group.sum_scatter(x),
            "broadcast": lambda: group.broadcast(x),
            "all_to_all": lambda: group.all_to_all(x),
            "gather": lambda: group.gather(x),
            "gather bytes": lambda: group.gather(b"x"),
            "scatter": lambda: group.scatter(x),
            "send": lambda: group.send(x, 2 - here.rank),
            "recv": lambda: group.recv(6, "float64", 2 - here.rank),
            "recv bytes": lambda: group.recv(None, bytes, 2 - here.rank),
            "barrier": lambda: group.barrier(timeout_s=5),
            "agree": lambda: group.agree(True),
            "split": lambda: group.split(0),
            "all_sum_async": lambda: group.all_sum_async(x).result(),
            "send_async": lambda: group.send_async(x, 2 - here.rank).wait(),
            "abort": lambda: group.barrier() if group.abort("late") is None else None,
        }
        for name, call in calls.items():
            attempt(name, call, "again")
        assert not group.healthy()
        here.say("done", first=described(group.last_failure()))
        here.ask()
        group.close()
        attempt("closed", group.barrier, "after close")
        assert described(group.last_failure())["rank"] == 1
        group.close()
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        killed_ns = case.kill(1)
        for rank in (0, 2):
            first = check_death(case, rank, 1, killed_ns, None)
            done = case.wait(rank, "done")
            assert done["first"]["rank"] == 1, done
            again = [event for event in case.ranks[rank].events if event.name == "again"]
            assert len(again) == 18, case.story()
            for event in again:
                check_same(case, rank, first, event)
        case.finish(1)
        for rank in (0, 2):
            assert "error" in case.wait(rank, "after close").fields


SPLIT = """
    world = here.init()
    color = here.args["colors"][here.rank]
    team = world.split(color)
    world.barrier()
    here.say("ready")
    if here.rank == here.args["victim"]:
        here.ask()
    attempt("world", world.barrier)
    if color == here.args["colors"][here.args["victim"]]:
        attempt("team", team.barrier, "team")
    else:
        for turn in range(20):
            found = team.all_sum(np.full(1000, 1.0 + team.rank))
            assert (found == team.size * (team.size + 1) / 2).all()
        assert team.healthy()
        here.say("worked", size=team.size)
        team.close()
    here.ask()
    world.close()
    """


@pytest.mark.parametrize(
    ("colors", "victim"), [([0, 0, 1, 1], 3), ([0, 0, 1, 1], 0), ([0, 1, 0, 1], 1)]
)
@pytest.mark.parametrize("fabric", FABRICS)
def test_other_groups(nursery: Nursery, fabric: str, colors: list[int], victim: int) -> None:
    """A death ends all groups that the dead rank was in, and no other."""
    args = {"code": SPLIT, "colors": colors, "victim": victim}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(victim))
        killed_ns = case.kill(victim)
        team = [rank for rank in range(4) if colors[rank] == colors[victim]]
        for rank in case.others(victim):
            check_death(case, rank, victim, killed_ns, f"split, world {fabric}")
            if rank in team:
                event = case.wait(rank, "team")
                assert event.error["type"] == "PeerDied", f"{event}\n{case.story()}"
                assert event.error["rank"] == team.index(victim), event
                case.prompt(f"split, team {fabric}", killed_ns, event.ns, PROMISE_S)
            else:
                assert case.wait(rank, "worked")["size"] == 2
        case.finish(victim)


ENDS = {
    "close": "group.close()",
    "close twice": "group.close(); group.close()",
    "with": "with group: pass",
    "nothing": "",
    "del": "del group; import gc; gc.collect()",
    "sys.exit": "sys.exit(0)",
    "close in a thread": "t = threading.Thread(target=group.close); t.start(); t.join()",
}


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("how", ENDS)
def test_ends(nursery: Nursery, how: str, raised: bool) -> None:
    """However the program goes to its end after a failure, raised or not: within 2 s, status 0."""
    code = f"""
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        if here.args["raised"]:
            attempt("barrier", group.barrier)
        else:
            while group.healthy():
                time.sleep(0.001)
        here.ask()
        here.say("ending")
        {ENDS[how]}
        """
    with Case(nursery, 3, "program", {"code": code, "raised": raised}) as case:
        case.wait_all("ready")
        case.kill(1)
        for rank in (0, 2):
            case.tell(rank)
        for rank in (0, 2):
            assert case.wait_end(rank) == 0, case.story()
            began_ns = case.wait(rank, "ending").ns
            case.prompt("ends after a failure", began_ns, case.ranks[rank].ended_ns, 2.0)
            assert "Exception ignored" not in case.text(rank), case.story()
            assert "Traceback" not in case.text(rank), case.story()


@pytest.mark.parametrize("asked", [0, 3])
@pytest.mark.parametrize("fabric", FABRICS)
def test_handles(nursery: Nursery, fabric: str, asked: int) -> None:
    """Failed handles raise the same error as often as asked; unread ones disturb nothing (R21)."""
    code = """
        group = here.init()
        group.barrier()
        if here.rank == 1:
            here.say("ready")
            here.ask()
        handles = [group.all_sum_async(np.ones(1000)) for _ in range(5)]
        handles.append(group.send_async(np.ones(10), 2 - here.rank))
        here.say("ready")
        while not all(handle.done() for handle in handles):
            time.sleep(0.001)
        here.say("ended")
        for _ in range(here.args["asked"]):
            for handle in handles:
                attempt("wait", handle.wait, "again")
                attempt("result", handle.result, "again")
        here.ask()
        """
    args = {"code": code, "asked": asked}
    with Case(nursery, 3, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        killed_ns = case.kill(1)
        for rank in (0, 2):
            event = case.wait(rank, "ended")
            case.prompt("handles are done", killed_ns, event.ns, PROMISE_S)
        case.finish(1)
        for rank in (0, 2):
            again = [event for event in case.ranks[rank].events if event.name == "again"]
            assert len(again) == asked * 12, case.story()
            assert all(event.error["type"] == "PeerDied" for event in again), case.story()
            assert len({event.error["text"] for event in again}) == (1 if asked else 0), (
                case.story()
            )
            assert "Exception ignored" not in case.text(rank), case.story()
            assert "Traceback" not in case.text(rank), case.story()


def test_unread_handle_is_told_by_close(nursery: Nursery) -> None:
    """close() raises what an unread handle would have raised, each time; the group is closed."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
        handle = group.all_sum_async(np.ones(1000))
        attempt("close", group.close)
        attempt("close", group.close, "again")
        here.ask()
        """
    with Case(nursery, 2, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(0)
        killed_ns = case.kill(1)
        event = case.error(0)
        assert event.error["type"] == "PeerDied", event
        case.prompt("close() with an unread handle", killed_ns, event.ns, PROMISE_S)
        check_same(case, 0, event.error, case.wait(0, "again"))
        case.finish(1)


@pytest.mark.parametrize("fabric", FABRICS)
def test_nothing_is_left_open(nursery: Nursery, fabric: str) -> None:
    """After a failure and close() the process has the descriptors and threads of before."""
    code = """
        import gc
        def tasks():
            try:
                return len(os.listdir("/proc/self/task"))
            except FileNotFoundError:
                return 0
        before, tasks_before = descriptors(), tasks()
        group = here.init()
        group.barrier()
        group.all_sum_async(np.ones(1000)).result()
        group.send_async(np.ones(4), (here.rank + 1) % 3)
        group.recv(4, "float64", (here.rank - 1) % 3)
        here.say("ready")
        if here.rank == 1:
            here.ask()
        attempt("barrier", group.barrier)
        group.close()
        del group
        gc.collect()
        if here.rank == 0:
            listener = f"{here.init_args['listen_fd']}:"
            before = {name for name in before if not name.startswith(listener)}
        left = sorted(descriptors() - before)
        here.say("closed", left=left, threads=tasks() - tasks_before)
        here.ask()
        """
    with Case(nursery, 3, "program", {"code": code}, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.kill(1)
        for rank in (0, 2):
            closed = case.wait(rank, "closed")
            # The emulated library moves messages in a thread of its own, as a device does.
            of_library = 1 if fabric == "verbs" else 0
            assert closed["threads"] <= of_library, f"{closed}\n{case.story()}"
            left = [name for name in closed["left"] if "listen" not in name]
            if rank == 0:  # the coordinator's listener is the launcher's, and stays
                left = [name for name in left if not name.startswith("socket")]
            assert len(left) <= (1 if rank == 0 else 0), f"{closed}\n{case.story()}"
        case.finish(1)


@pytest.mark.parametrize("fabric", FABRICS)
def test_form_again(nursery: Nursery, fabric: str) -> None:
    """Survivors of a death form a new, smaller group in the same processes, again and again."""
    code = """
        import socket
        ranks = [0, 1, 2, 3, 4]
        listener = socket.socket(fileno=here.init_args["listen_fd"]) if here.rank == 0 else None
        for generation in (1, 2, 3):
            me = ranks.index(here.rank)
            group = here.init(rank=me, size=len(ranks), generation=generation)
            assert group.all_sum(np.ones(10))[0] == len(ranks)
            here.say(f"ready {generation}")
            if here.rank == ranks[-1]:
                here.ask()
            try:
                while True:
                    group.all_sum(np.ones(1000))
            except standfast.PeerDied as error:
                assert error.rank == len(ranks) - 1
                assert error.generation == generation
                here.say(f"died {generation}")
            group.close()
            ranks.pop()
        here.say("done")
        """
    with Case(nursery, 5, "program", {"code": code}, init={"fabric": fabric}) as case:
        for generation, victim in ((1, 4), (2, 3), (3, 2)):
            living = range(victim + 1)
            for rank in living:
                case.wait(rank, f"ready {generation}")
            killed_ns = case.kill(victim)
            for rank in range(victim):
                event = case.wait(rank, f"died {generation}")
                case.prompt(f"generation {generation}", killed_ns, event.ns, PROMISE_S)
        for rank in (0, 1):
            case.wait(rank, "done")
        case.finish(2, 3, 4)
