"""`standfast run` as a whole: environment of the ranks, exit statuses, and the block at the end."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.launch.support import lives, python, run, run_code, run_json

REPEATS = int(os.environ.get("STANDFAST_TEST_REPEATS", "8"))
VICTIM = """
wait_for(sys.argv[1])
with open(sys.argv[1]) as file:
    wait_for_end_of(int(file.read()))
report("died", "PeerDied", 2, "rank 2 ended without a goodbye")
print(f"rank {RANK} saves its work", file=sys.stderr)
sys.exit(75)
"""
CULPRIT = """
if RANK == 2:
    print("culprit's last words", file=sys.stderr, flush=True)
    touch(sys.argv[1], str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_returned_0() -> None:
    """A job that goes well ends with 0 and the launcher says nothing."""
    ended = run(["-n", "3"], ["true"])
    assert (ended.status, ended.out, ended.err) == (0, "", "")


def test_environment_of_ranks(tmp_path: Path) -> None:
    """Ranks find the documented variables; rank 0 alone gets the listener, which works at once."""
    code = """
import socket
host, port = os.environ["STANDFAST_COORDINATOR"].split(":")
if RANK == 0:
    listener = socket.socket(fileno=int(os.environ["STANDFAST_LISTEN_FD"]))
    assert listener.getsockname() == (host, int(port))
    for _ in range(2):
        listener.accept()[0].sendall(b"x")
else:
    assert "STANDFAST_LISTEN_FD" not in os.environ
    assert socket.create_connection((host, int(port))).recv(1) == b"x"
    assert set(os.listdir("/proc/self/fd")) <= set("01234")
assert os.environ["MASTER_PORT"] != port
assert os.getsid(0) == os.getpgrp() == os.getpid()
assert os.stat(os.environ["STANDFAST_REPORT_DIR"]).st_mode & 0o777 == 0o700
assert sys.stdin.read() == ""
names = ["STANDFAST_KEY", "STANDFAST_JOB_ID", "STANDFAST_REPORT_DIR", "STANDFAST_COORDINATOR"]
print(json.dumps([os.environ[name] for name in names]))
"""
    ended = run_code(["-n", "3"], code)
    assert ended.status == 0, ended.err
    lines = [line.split("] ", 1)[1] for line in ended.out.splitlines()]
    assert len(lines) == 3
    assert len(set(lines)) == 1
    key, job_id, report_dir, _ = json.loads(lines[0])
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert job_id.startswith("standfast-")
    assert not Path(report_dir).exists()


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit(255)", 255),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("os.abort()", 134),
        ("raise ValueError('no')", 1),
        ("sys.exit(78)", 78),
    ],
)
def test_status_is_that_of_the_rank_that_failed(end: str, status: int) -> None:
    """The first failing rank's own status is the launcher's, 128+n for a signal."""
    ended = run_code(["-n", "2"], f"if RANK == 1:\n    {end}")
    assert ended.status == status
    assert "rank 1" in ended.block[0]


def test_3_is_3_each_time() -> None:
    """Launches whose ranks end with 3 give 3 each time."""
    assert [run(["-n", "2"], ["sh", "-c", "exit 3"]).status for _ in range(REPEATS)] == (
        [3] * REPEATS
    )


def test_block_names_the_killed_rank(tmp_path: Path) -> None:
    """After SIGKILL of rank 2 the block names it, and tells the survivors' errors and times."""
    ended = run(["-n", "4"], [*python(CULPRIT + VICTIM), str(tmp_path / "culprit")])
    assert ended.status == 137
    assert re.fullmatch(
        r"standfast: the group failed: rank 2 was ended by SIGKILL "
        r"\(generation 1, \d+\.\d\d s after its start\)",
        ended.block[0],
    )
    assert "cause" in ended.rank_line(2)
    assert any(line.endswith("| culprit's last words") for line in ended.block)
    for rank in (0, 1, 3):
        pattern = r"  rank \d  victim    error after \d+\.\d ms, exit 75 after \d+\.\d ms"
        assert re.fullmatch(pattern, ended.rank_line(rank))
    told = [line for line in ended.block if "PeerDied: rank 2 ended without a goodbye" in line]
    assert len(told) == 3
    assert ended.block[-1].startswith("standfast: exit status 137")


def test_victims_that_end_first(tmp_path: Path) -> None:
    """The culprit is named though its victims ended, and were reaped, before it."""
    code = """
path = sys.argv[1]
if RANK == 1:
    wait_for(path + "0", path + "2")
    with open(path + "0") as zero, open(path + "2") as two:
        wait_for_end_of(int(zero.read()))
        wait_for_end_of(int(two.read()))
    os.kill(os.getpid(), signal.SIGKILL)
if RANK == 2:
    report("died", "PeerDied", 1)
touch(path + str(RANK), str(os.getpid()))
sys.exit(75)
"""
    ended = run(["-n", "3"], [*python(code), str(tmp_path / "pid")])
    assert ended.status == 137
    assert "rank 1 was ended by SIGKILL" in ended.block[0]
    assert "victim" in ended.rank_line(0)
    assert "victim" in ended.rank_line(2)


def test_a_rank_that_left() -> None:
    """A rank that returned 0 while others still needed it is named, and the job has failed."""
    code = """
if RANK == 0:
    touch(os.environ["STANDFAST_REPORT_DIR"] + "/left")
    sys.exit(0)
wait_for(os.environ["STANDFAST_REPORT_DIR"] + "/left")
report("left", "PeerLeft", 0)
sys.exit(75)
"""
    ended = run_code(["-n", "2"], code)
    assert ended.status == 75
    assert "rank 0 left with exit 0 while others still needed it" in ended.block[0]


def test_survivors_without_standfast_are_stopped() -> None:
    """Survivors that would wait for ever get the grace, then SIGTERM; that is told."""
    code = "if RANK == 0: sys.exit(4)\nforever()"
    ended = run_code(["-n", "3", "--grace-s", "0.2"], code)
    assert ended.status == 4
    assert "SIGTERM from the launcher, ended by SIGTERM" in ended.rank_line(1)
    assert "stopped" in ended.rank_line(2)


def test_survivors_that_ignore_sigterm_are_killed() -> None:
    """SIGTERM, then SIGKILL, then certainty: also for a rank that ignores SIGTERM, or is frozen."""
    code = """
ready = os.environ["STANDFAST_REPORT_DIR"] + "/ready"
if RANK == 0:
    wait_for(ready + "1", ready + "2")
    sys.exit(4)
if RANK == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
touch(ready + str(RANK))
if RANK == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
forever()
"""
    ended = run_code(["-n", "3", "--grace-s", "0.1", "--kill-after-s", "0.3"], code)
    assert ended.status == 4
    assert "ended by SIGKILL" in ended.rank_line(1)
    assert "ended by SIGTERM" in ended.rank_line(2)


def test_time_limit() -> None:
    """At --timeout-s all ranks are stopped, the block says so, and the status is 124."""
    ended = run_code(["-n", "2", "--timeout-s", "0.5", "--restarts", "2"], "forever()")
    assert ended.status == 124
    assert ended.seconds < 20
    assert "stopped at the job's time limit" in ended.block[0]
    assert "stopped" in ended.rank_line(0)


def test_json() -> None:
    """--json prints one object on stdout; the ranks' output and the block go to stderr."""
    code = 'print("out")\nif RANK == 1: report("died", "PeerDied", 0); sys.exit(75)\nsys.exit(5)'
    ended, report = run_json(["-n", "2"], code)
    assert ended.status == report["status"] == 5
    assert ended.err.count("] out\n") == 2
    (generation,) = report["generations"]
    assert generation["first"] == 0
    assert [each["tag"] for each in generation["ranks"]] == ["cause", "victim"]
    assert [each["exit_code"] for each in generation["ranks"]] == [5, 75]
    assert generation["ranks"][1]["error"]["type"] == "PeerDied"
    assert report["reason"] == "failed"


def test_json_of_a_job_that_went_well() -> None:
    """The object is there, and says so."""
    ended, report = run_json(["-n", "2"], "")
    assert (ended.status, ended.err) == (0, "")
    assert (report["status"], report["reason"], report["headline"]) == (0, "finished", None)


def test_all_ranks_killed(tmp_path: Path) -> None:
    """When all ranks are killed at once, the launcher says so and ends within 2 s."""
    code = "touch(sys.argv[1] + str(RANK)); os.kill(os.getpid(), signal.SIGKILL)"
    ended = run(["-n", "4"], [*python(code), str(tmp_path / "pid")])
    assert ended.status == 137
    assert sum("cause" in line for line in ended.block) == 4


def test_what_a_rank_leaves_in_its_group_is_killed(tmp_path: Path) -> None:
    """A child that a rank leaves behind in its process group does not outlive the job."""
    code = """
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
touch(sys.argv[1] + str(RANK), str(child))
"""
    ended = run(["-n", "2"], [*python(code), str(tmp_path / "child")])
    assert ended.status == 0
    for rank in range(2):
        child = int((tmp_path / f"child{rank}").read_text())
        assert not lives(child)
