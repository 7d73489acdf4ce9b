"""The sentinel of a rank whose neighbours cannot tell all lives as long as its rank's group."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from standfast import joining
from tests.death.harness import Case
from tests.death.judge import check_death
from tests.death.processes import Nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the beacon is Linux's")

NAME = b"standfast-sentinel"

# args: alone (ranks on a host of their own), program (instead of the sentinel's).
ALONE = """
    from standfast import joining
    from standfast.rendezvous import hello

    if here.rank in here.args["alone"]:
        hello.host_id = lambda: f"host-{here.rank}"
    if "program" in here.args:
        joining._sentinel = lambda chosen: here.args["program"]
    group = here.init()
    group.barrier()
    here.say("ready")
    while here.ask() == "close":
        attempt("close", group.close, "closed")
    """


def sentinels(pid: int) -> list[int]:
    """Return the sentinels among a process's children."""
    return [child for child in _children(pid) if _command(child).startswith(NAME)]


def _children(pid: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [child for child in pids if _parent(child) == pid]


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def holds_only(pid: int, links: int) -> bool:
    """Tell whether a process has so many sockets open, and nothing else."""
    folder = Path(f"/proc/{pid}/fd")
    kinds = [os.readlink(path).partition(":")[0] for path in folder.iterdir()]
    return kinds == ["socket"] * links


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; it may still wait to be reaped."""
    return not _command(pid)


def test_who_has_one(nursery: Nursery) -> None:
    """A lone rank, and rank 0 for its links to other hosts; it holds those links and no more."""
    with Case(nursery, 4, "program", {"code": ALONE, "alone": [2, 3]}) as case:
        case.wait_all("ready")
        found = {rank: sentinels(case.ranks[rank].pid) for rank in case.ranks}
        assert [len(found[rank]) for rank in range(4)] == [1, 0, 1, 1]
        for rank, links in ((0, 2), (2, 1), (3, 1)):
            (pid,) = found[rank]
            case.until("it has closed all else", partial(holds_only, pid, links), 5.0)
            assert os.getsid(pid) == pid
        case.finish()


def test_one_host_needs_none(nursery: Nursery) -> None:
    """Where all ranks are neighbours, no process is started."""
    with Case(nursery, 2, "program", {"code": ALONE, "alone": []}) as case:
        case.wait_all("ready")
        assert [_children(case.ranks[rank].pid) for rank in range(2)] == [[], []]
        case.finish()


def test_it_goes_with_the_group(nursery: Nursery) -> None:
    """close() ends and reaps it, and takes no longer for it; who stays keeps its own."""
    with Case(nursery, 3, "program", {"code": ALONE, "alone": [0, 1, 2]}) as case:
        case.wait_all("ready")
        assert [len(sentinels(case.ranks[rank].pid)) for rank in range(3)] == [1, 1, 1]
        case.tell(1, "close")
        closed = case.wait(1, "closed")
        assert "error" not in closed.fields
        # Rank 0 ends the link in answer to the goodbye. Its sentinel must not keep it open.
        assert closed["took_s"] < case.allowed_s(0.5), closed
        assert _children(case.ranks[1].pid) == []
        assert [len(sentinels(case.ranks[rank].pid)) for rank in (0, 2)] == [1, 1]
        case.finish()


def test_it_ends_with_its_rank(nursery: Nursery) -> None:
    """However the rank ends, its sentinel is gone at once, and takes no link along."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        with Case(nursery, 2, "program", {"code": ALONE, "alone": [0, 1]}) as case:
            case.wait_all("ready")
            (pid,) = sentinels(case.ranks[1].pid)
            case.signal(1, number)
            case.wait_end(1)
            case.until("the sentinel is gone", partial(is_gone, pid), 5.0)
            case.finish(1)


def test_a_child_of_the_rank_does_not_keep_it(nursery: Nursery) -> None:
    """A rank's forked child lives on: the sentinel tells of the rank's death, and is gone."""
    code = """
        from standfast.rendezvous import hello

        hello.host_id = lambda: f"host-{here.rank}"
        group = here.init()
        group.barrier()
        if here.rank == 1 and os.fork() == 0:
            here.line.close()
            time.sleep(60)
            os._exit(0)
        here.say("ready")
        if here.rank == 1:
            here.ask()
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 3, "program", {"code": code}, forks=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        killed_ns = case.kill(1)
        for rank in (0, 2):
            check_death(case, rank, 1, killed_ns, "lone rank with a child")
        case.finish(1)


def test_one_that_cannot_start_is_told(nursery: Nursery) -> None:
    """The group is formed without it, with a warning that says why."""
    args = {"code": ALONE, "alone": [2], "program": "/nonexistent"}
    with Case(nursery, 3, "program", args) as case:
        case.wait_all("ready")
        assert _children(case.ranks[2].pid) == []
        assert "rank 2 has no sentinel" in case.text(2)
        assert "posix_spawn(/nonexistent): ENOENT" in case.text(2)
        assert case.text(1) == ""
        case.finish()


def test_the_program_is_there() -> None:
    """The package has the sentinel beside the native module, and it may be run."""
    from standfast.settings import Settings

    program = joining._sentinel(Settings())
    assert os.access(program, os.X_OK)
    assert joining._sentinel(Settings(sentinel=False)) == ""
