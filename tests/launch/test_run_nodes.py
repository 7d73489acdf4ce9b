"""A launcher on each node, together one job: on this machine, over loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.support import (
    Ended,
    finish,
    kill,
    lives,
    pids_in,
    python,
    start,
    wait_until,
)

TELL = """
touch(sys.argv[1] + f"rank{RANK}-gen{GENERATION}", str(os.getpid()))
"""
KEY = "k" * 32
GONE_S = 15.0
"""A lease of 3.5 s and a kill, on a busy machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Nodes:
    """Launchers of one job, each on a node of its own."""

    def __init__(self, count: int, tmp_path: Path) -> None:
        self.count = count
        self.port = free_port()
        self.place = tmp_path
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        node: int,
        code: str,
        *options: str,
        env: dict[str, str] | None = None,
        ranks: int = 2,
    ) -> subprocess.Popen[bytes]:
        """Start the launcher of a node."""
        words = ["-n", str(ranks), "--nnodes", str(self.count), "--node-rank", str(node)]
        words += ["--coordinator", f"127.0.0.1:{self.port}", *options]
        command = [*python(code), f"{self.place}/"]
        self.launchers[node] = start(words, command, env=env)
        return self.launchers[node]

    def start_all(self, code: str, *options: str) -> None:
        """Start all, node 0 last: the others wait for it."""
        for node in reversed(range(self.count)):
            self.start(node, code, *options)

    def finish(self) -> list[Ended]:
        """Collect how each ended, by node."""
        return [finish(self.launchers[node]) for node in range(self.count)]

    def no_directory_is_left(self) -> None:
        """Wait until the guardian of a launcher that was killed has cleaned up."""
        wait_until(lambda: not list((self.place / "tmp").iterdir()), GONE_S)

    def pids(self, generation: int = 1) -> list[int]:
        """Wait for all ranks of a generation to say who they are."""
        names = [f"rank{rank}-gen{generation}" for rank in range(2 * self.count)]
        return pids_in(*(self.place / name for name in names))


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Two nodes with two ranks each."""
    return Nodes(2, tmp_path)


def test_together_one_job(nodes: Nodes) -> None:
    """Ranks are numbered by node, node 0 has all output, and all launchers end with its status."""
    code = """
print(RANK, SIZE, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["NODE_RANK"])
sys.exit(3 if RANK == 3 else 0)
"""
    nodes.start_all(code, "--grace-s", "0.2")
    first, second = nodes.finish()
    assert sorted(first.out.splitlines()) == [
        "[r0 node-0] 0 4 0 2 0",
        "[r1 node-0] 1 4 1 2 0",
        "[r2 node-1] 2 4 0 2 1",
        "[r3 node-1] 3 4 1 2 1",
    ]
    assert (first.status, second.status, second.out) == (3, 3, "")
    assert "standfast: node-1 is " in first.err
    assert "rank 3 on node-1 failed with exit 3" in first.err
    assert "the job ended with 3; node 0's launcher has said why" in second.err


def test_they_form_a_group(nodes: Nodes) -> None:
    """Ranks of all nodes meet, with a key that both launchers have proved to each other."""
    program = "import standfast; g = standfast.init(); print(g.all_sum(float(g.rank)))"
    for node in (1, 0):
        words = ["-n", "2", "--nnodes", "2", "--node-rank", str(node)]
        words += ["--coordinator", f"127.0.0.1:{nodes.port}"]
        command = [sys.executable, "-c", program]
        nodes.launchers[node] = start(words, command, env={"STANDFAST_KEY": KEY})
    first, second = nodes.finish()
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert sorted(line.split("] ")[1] for line in first.out.splitlines()) == ["6.0"] * 4


def test_a_node_runs_its_own_program(nodes: Nodes) -> None:
    """Node 0 has no say in what the others run, where, and with which environment."""
    code = 'print("ours", os.environ["MARK"], os.environ.get("STANDFAST_NAME"))'
    other = 'print("mine", os.environ["MARK"], os.environ.get("STANDFAST_NAME"))'
    nodes.start(1, other, env={"MARK": "one"})
    nodes.start(0, code, env={"MARK": "zero", "STANDFAST_NAME": "of node 0"})
    first, _ = nodes.finish()
    assert sorted(line.split("] ")[1] for line in first.out.splitlines()) == [
        *["mine one None"] * 2,
        *["ours zero of node 0"] * 2,
    ]


def test_a_death_ends_and_forms_again_all_nodes(nodes: Nodes) -> None:
    """A rank of node 1 is killed: all ranks end, and are formed again under the next number."""
    code = TELL + "sys.exit(0) if GENERATION == 2 else forever()"
    nodes.start_all(code, "--restarts", "1", "--grace-s", "0.2")
    pids = nodes.pids()
    kill(pids[2])
    again = nodes.pids(2)
    assert not any(map(lives, pids))
    assert not set(pids) & set(again)
    first, second = nodes.finish()
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "rank 2 on node-1 was ended by SIGKILL" in first.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_node_0_is_lost(nodes: Nodes, number: signal.Signals) -> None:
    """Killed or silent: the other nodes' ranks die, and their launchers say whom they lost."""
    nodes.start_all(TELL + "forever()")
    pids = nodes.pids()
    nodes.launchers[0].send_signal(number)
    try:
        wait_until(lambda: not any(map(lives, pids[2:])), GONE_S)
        second = finish(nodes.launchers[1])
    finally:
        nodes.launchers[0].kill()
    wait_until(lambda: not any(map(lives, pids)), GONE_S)
    assert second.status == 75
    assert "node 1 of 2 on" in second.err
    assert f"node 0's launcher at 127.0.0.1:{nodes.port} is lost" in second.err
    assert "hint: start the job again on all nodes" in second.err
    finish(nodes.launchers[0])
    nodes.no_directory_is_left()


def test_another_node_is_lost(nodes: Nodes) -> None:
    """Its ranks die with its launcher; node 0 names it, and ends with the status of a loss."""
    nodes.start_all(TELL + "forever()", "--grace-s", "0.2")
    pids = nodes.pids()
    kill(nodes.launchers[1].pid)
    wait_until(lambda: not any(map(lives, pids)), GONE_S)
    first, second = nodes.finish()
    assert (first.status, second.status) == (137, -signal.SIGKILL)
    assert "lost with host node-1" in first.err
    nodes.no_directory_is_left()


def test_a_node_comes_back(nodes: Nodes) -> None:
    """A node's launcher is started again: it takes its place, and the next generation has all."""
    code = TELL + "sys.exit(0) if GENERATION == 2 else forever()"
    options = ["--restarts", "1", "--grace-s", "0.2", "--wait-refill-s", "30"]
    nodes.start_all(code, *options)
    pids = nodes.pids()
    old = nodes.launchers[1]
    kill(old.pid)
    nodes.start(1, code, *options)
    nodes.pids(2)
    first, second = nodes.finish()
    finish(old)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert not any(map(lives, pids))
    nodes.no_directory_is_left()


def test_a_node_is_told_to_end(nodes: Nodes) -> None:
    """SIGTERM to a node's launcher reaches its ranks, which have the grace; the others hear it."""
    code = (
        """
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
"""
        + TELL
        + "forever()"
    )
    nodes.start_all(code, "--grace-s", "3")
    pids = nodes.pids()
    nodes.launchers[1].send_signal(signal.SIGTERM)
    second = finish(nodes.launchers[1])
    assert second.status == 128 + signal.SIGTERM
    assert "SIGTERM: this node's ranks are gone" in second.err
    assert not any(map(lives, pids[2:]))
    first = finish(nodes.launchers[0])
    assert first.status == 5
    assert "on node-1 failed with exit 5" in first.err


def test_ctrl_c_on_node_0(nodes: Nodes) -> None:
    """It ends the ranks of all nodes, and all launchers with 130."""
    nodes.start_all(TELL + "forever()")
    pids = nodes.pids()
    nodes.launchers[0].send_signal(signal.SIGINT)
    first, second = nodes.finish()
    assert not any(map(lives, pids))
    assert (first.status, second.status) == (130, 130)


def cannot_join(
    nodes: Nodes, *, env: dict[str, str] | None = None, ranks: int = 2
) -> tuple[Ended, Ended]:
    """Start node 0, and a node 1 that does not fit; return how node 1 ended, and node 0."""
    nodes.start(0, "forever()", "--wait-nodes-s", "60")
    try:
        ended = finish(nodes.start(1, "forever()", env=env, ranks=ranks))
    finally:
        nodes.launchers[0].send_signal(signal.SIGTERM)
    return ended, finish(nodes.launchers[0])


def test_another_number_of_ranks(nodes: Nodes) -> None:
    """A node that has another -n is refused with both numbers."""
    ended, first = cannot_join(nodes, ranks=3)
    assert (ended.status, first.status) == (78, 143)
    assert "has -n 3, node 0 on" in ended.err
    assert first.err.count("has -n 3, node 0 on") == 1
    assert "standfast: refused a launcher: node 1 on" in first.err


def test_another_key(nodes: Nodes) -> None:
    """A launcher with a key does not serve one without."""
    ended, first = cannot_join(nodes, env={"STANDFAST_KEY": KEY})
    assert (ended.status, first.status) == (78, 143)
    assert "node 1's launcher has a key and node 0's launcher has none" in ended.err


def test_an_earlier_start(tmp_path: Path) -> None:
    """A launcher that an earlier start of the job has left is told so, and starts nothing."""
    nodes = Nodes(2, tmp_path)
    nodes.start(0, "forever()", env={"STANDFAST_GENERATION": "2"})
    ended = finish(nodes.start(1, "forever()", env={"STANDFAST_GENERATION": "1"}))
    nodes.launchers[0].send_signal(signal.SIGTERM)
    finish(nodes.launchers[0])
    assert ended.status == 69
    assert "belongs to start 1 of the job; this is start 2" in ended.err


def test_nobody_comes(nodes: Nodes) -> None:
    """Each side waits as long as it was told, names the other, and ends with 69."""
    ended = finish(nodes.start(0, "forever()", "--wait-nodes-s", "0.5"))
    assert ended.status == 69
    assert "there is room for 2 of at least 4 ranks: no launcher of node-1 has come" in ended.err
    ended = finish(nodes.start(1, "forever()", "--wait-nodes-s", "2"))
    assert ended.status == 69
    assert "node 1 on" in ended.err
    assert f"cannot join node 0's launcher at 127.0.0.1:{nodes.port}" in ended.err
    assert "ECONNREFUSED" in ended.err


def test_a_taken_port(nodes: Nodes) -> None:
    """Node 0 names the address that it cannot listen on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", nodes.port))
        taken.listen()
        ended = finish(nodes.start(0, "forever()"))
    assert ended.status == 69
    assert f"cannot listen on 127.0.0.1:{nodes.port}: EADDRINUSE" in ended.err


def test_a_scheduler_says_it(nodes: Nodes) -> None:
    """Under LeaderWorkerSet -n is all that is needed; ranks do not see that they are nodes."""
    code = """
print(RANK, SIZE, "STANDFAST_LAUNCHER" in os.environ)
"""
    for node in (1, 0):
        environ = {
            "LWS_WORKER_INDEX": str(node),
            "LWS_GROUP_SIZE": "2",
            "LWS_LEADER_ADDRESS": "127.0.0.1",
            "STANDFAST_PORT": str(nodes.port),
            "STANDFAST_LAUNCHER": "lws",
        }
        nodes.launchers[node] = start(["-n", "1"], python(code), env=environ)
    first, second = nodes.finish()
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert sorted(first.out.splitlines()) == ["[r0 node-0] 0 2 False", "[r1 node-1] 1 2 False"]


def test_a_watched_program_on_each_node(nodes: Nodes) -> None:
    """With --watch each rank has a warden on its node, and they find each other."""
    code = TELL + "forever() if RANK else time.sleep(0.5) or sys.exit(4)"
    nodes.start_all(code, "--watch", "--grace-s", "5", "--kill-after-s", "1")
    first, second = nodes.finish()
    assert (first.status, second.status) == (4, 4), first.err
    assert "rank 0" in first.err
    assert os.path.exists(nodes.place / "rank3-gen1")
