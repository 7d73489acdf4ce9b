"""Events, status, hooks and log files: what the world outside learns of a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launch.support import (
    LAUNCHER,
    finish,
    kill,
    launcher_environment,
    lives,
    pids_in,
    python,
    run,
    run_code,
    start,
    wait_until,
)

MEMBER = """
import os, sys, time, signal, standfast
rank, generation = os.environ["STANDFAST_RANK"], os.environ["STANDFAST_GENERATION"]
group = standfast.init()
with open(f"{sys.argv[1]}/rank{rank}-gen{generation}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, file.name.removesuffix(".new"))
"""


def member(code: str, tmp_path: Path) -> list[str]:
    """A rank that forms a group, says so in a file, and goes on with this code."""
    return [sys.executable, "-c", MEMBER + code, str(tmp_path)]


def status() -> tuple[int, list[dict[str, Any]]]:
    """Ask `standfast status --json`; return its exit status, and the jobs."""
    done = subprocess.run(
        [*LAUNCHER, "status", "--json"],
        capture_output=True,
        check=False,
        env=launcher_environment(),
        timeout=20,
    )
    return done.returncode, json.loads(done.stdout)


def test_status_tells_of_a_death_that_no_rank_noticed(tmp_path: Path) -> None:
    """Ready only when all ranks have joined; failed within 2 s though nobody communicates."""
    code = "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nwhile True: time.sleep(1)"
    options = ["-n", "3", "--grace-s", "30"]
    launcher = start(options, member(f"group._core\n{code}", tmp_path))
    pids = pids_in(*(tmp_path / f"rank{rank}-gen1" for rank in range(3)))
    wait_until(lambda: status()[1][0]["state"] == "ready")
    assert status()[0] == 0
    kill(pids[1])
    killed_s = time.monotonic()
    (job,) = status()[1]
    while job["state"] == "ready" and time.monotonic() < killed_s + 2.0:
        (job,) = status()[1]
    assert (job["state"], job["generation"]) == ("failed", 1)
    assert job["ranks"][1]["ended"] == "ended by SIGKILL"
    assert status()[0] == 75
    launcher.send_signal(signal.SIGTERM)
    finish(launcher)
    assert status() == (69, [])


def test_a_program_without_a_group_is_never_ready(tmp_path: Path) -> None:
    """It runs, and nothing more is known."""
    launcher = start(["-n", "1"], python(f"touch('{tmp_path}/here', '1'); forever()"))
    pids_in(tmp_path / "here")
    assert [job["state"] for job in status()[1]] == ["started"]
    launcher.send_signal(signal.SIGTERM)
    finish(launcher)


@pytest.mark.parametrize("alive", [False, True], ids=["dead", "another with its number"])
def test_a_stale_record_is_removed(tmp_path: Path, alive: bool) -> None:
    """A record whose owner is gone is no job, and is gone after the look."""
    child = subprocess.Popen(["true"])
    child.wait()
    owner = {"pid": os.getpid() if alive else child.pid, "pid_start": "1"}
    place = tmp_path / "tmp" / f"standfast-{owner['pid']}-0123456789abcdef"
    place.mkdir()
    record = {**owner, "job_id": "old", "state": "ready", "since": 0.0}
    (place / "status.json").write_text(json.dumps(record))
    assert status() == (69, [])
    assert not place.exists()


def test_a_directory_without_a_record(tmp_path: Path) -> None:
    """A launcher may be killed before it has a record: what it left is removed, no other's is."""
    child = subprocess.Popen(["true"])
    child.wait()
    gone = tmp_path / "tmp" / f"standfast-{child.pid}-0123456789abcdef"
    begun = tmp_path / "tmp" / f"standfast-{os.getpid()}-0123456789abcdef"
    foreign = tmp_path / "tmp" / f"standfast-emulator-{child.pid}-01"
    for place in (gone, begun, foreign):
        place.mkdir()
    assert status() == (69, [])
    assert [place.exists() for place in (gone, begun, foreign)] == [False, True, True]
    begun.rmdir()
    foreign.rmdir()


def test_events_of_a_job_that_is_formed_again(tmp_path: Path) -> None:
    """The story in its order, with who, where and why, in lines that each stand for themselves."""
    code = 'if generation == "1" and rank == "2": os.kill(os.getpid(), 9)\ngroup.barrier()'
    options = ["-n", "3", "--restarts", "1", "--events", str(tmp_path / "events")]
    ended = run(options, member(code, tmp_path))
    assert ended.status == 0, ended.err
    told = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    # A rank may die before the last of the others has said that it is ready.
    assert [each["event"] for each in told if each["event"] != "ready" or told.index(each) > 3] == [
        *("started", "peer_lost", "group_failed", "restarting"),
        *("started", "ready", "finished"),
    ]
    lost = next(each for each in told if each["event"] == "peer_lost")
    assert (lost["rank"], lost["generation"]) == (2, 1)
    failed = next(each for each in told if each["event"] == "group_failed")
    assert (failed["rank"], failed["status"]) == (2, 137)
    assert told[-1]["status"] == 0
    assert [each["time"] for each in told] == sorted(each["time"] for each in told)


def test_events_to_a_descriptor() -> None:
    """A number is a descriptor that the launcher inherits, and its ranks do not."""
    read_fd, write_fd = os.pipe()
    code = f"assert not os.path.exists('/proc/self/fd/{write_fd}')"
    done = subprocess.run(
        [*LAUNCHER, "run", "-n", "1", "--events", str(write_fd), "--", *python(code)],
        pass_fds=[write_fd],
        check=False,
        env=launcher_environment(),
    )
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        told = [json.loads(line)["event"] for line in pipe]
    assert done.returncode == 0
    assert told == ["started", "finished"]


def test_events_that_cannot_be_written() -> None:
    """Said before anything starts."""
    ended = run(["-n", "1", "--events", "/nowhere/events"], ["true"])
    assert ended.status == 2
    assert "--events /nowhere/events: No such file or directory (ENOENT)" in ended.err


def test_on_fault(tmp_path: Path) -> None:
    """The command is run once per failed generation, and gets the event."""
    hook = f'cat >> {tmp_path}/told; echo "$STANDFAST_EVENT" >> {tmp_path}/told'
    ended = run_code(["-n", "2", "--restarts", "1", "--on-fault", hook], "sys.exit(4)")
    assert ended.status == 75
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [each["event"] for each in told] == ["group_failed"] * 4
    assert sorted(each["generation"] for each in told) == [1, 1, 2, 2]


def test_log_dir(tmp_path: Path) -> None:
    """Each rank's output byte for byte in files of its own, through all generations."""
    code = """
os.write(1, b"out %d %d" % (RANK, GENERATION))
os.write(2, b"err\\xff\\n")
sys.exit(0 if GENERATION == 2 else 4)
"""
    ended = run_code(["-n", "2", "--restarts", "1", "--log-dir", f"{tmp_path}/logs"], code)
    assert ended.status == 0
    for rank in range(2):
        assert (tmp_path / f"logs/rank-{rank}.out").read_bytes() == b"out %d 1out %d 2" % (
            rank,
            rank,
        )
        assert (tmp_path / f"logs/rank-{rank}.err").read_bytes() == b"err\xff\nerr\xff\n"


@pytest.mark.parametrize(
    ("code", "kind", "how"),
    [
        ("os.kill(os.getpid(), 9)", "PeerDied", "ended by SIGKILL"),
        ("sys.exit(0)", "PeerLeft", "exit 0"),
        ("sys.exit(5)", "PeerDied", "exit 5"),
    ],
)
def test_a_rank_that_ends_before_init(code: str, kind: str, how: str) -> None:
    """The others are told by the launcher, long before their deadline, and without the grace."""
    program = f"""
import os, sys
if os.environ["STANDFAST_RANK"] == "0":
    {code}
import standfast
standfast.init()
"""
    ended = run(["-n", "3", "--grace-s", "35"], [sys.executable, "-c", program])
    assert ended.seconds < 30.0
    assert ended.err.count(f"{kind}: rank 0 ended before it joined the group: {how}") >= 2
    assert "rank 0" in ended.block[0]


def test_a_frozen_rank_is_not_waited_for(tmp_path: Path) -> None:
    """Survivors that end well although a rank is frozen leave the launcher with a named cause."""
    code = """
if RANK == 1:
    touch(sys.argv[1], str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()
wait_for(sys.argv[1])
report("stalled", "PeerStalled", 1, "rank 1 is frozen")
sys.exit(0)
"""
    options = ["-n", "3", "--grace-s", "35", "--kill-after-s", "0.5"]
    ended = run(options, [*python(code), str(tmp_path / "frozen")])
    assert ended.seconds < 30.0
    assert ended.status == 75
    assert "rank 1 stalled" in ended.block[0]
    assert not lives(int((tmp_path / "frozen").read_text()))


def test_no_progress_ends_the_restarts(tmp_path: Path) -> None:
    """A checkpoint that does not change over 3 generations: no more of them, and why."""
    (tmp_path / "checkpoint").write_text("step 1")
    options = ["-n", "1", "--restarts", "50", "--checkpoint", str(tmp_path / "checkpoint")]
    ended = run_code(options, "sys.exit(4)")
    assert ended.status == 4
    assert "the last 3 generations made no progress" in ended.err
    assert ended.err.count("forming generation") == 3


def test_progress_goes_on(tmp_path: Path) -> None:
    """A checkpoint that changes lets all restarts be used."""
    options = ["-n", "1", "--restarts", "4", "--checkpoint", str(tmp_path / "checkpoint")]
    path = tmp_path / "checkpoint"
    ended = run_code(options, f"touch({str(path)!r}, 'x' * GENERATION); sys.exit(4)")
    assert ended.status == 75
    assert ended.err.count("forming generation") == 4
