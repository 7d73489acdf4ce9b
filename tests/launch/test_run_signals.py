"""Ctrl-C, SIGTERM and SIGKILL of the launcher: no process stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from standfast.launch.listing import living_jobs
from tests.launch.support import (
    finish,
    kill,
    lives,
    pids_in,
    processes_with,
    python,
    run,
    start,
    wait_until,
)

FAMILY = """
signal.signal(signal.SIGINT, signal.SIG_DFL)
child = os.fork()
if child == 0:
    os.execvp("sleep", ["sleep", "60"])
touch(f"{sys.argv[1]}/child{RANK}", str(child))
"""
STUBBORN = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
READY = 'touch(f"{sys.argv[1]}/rank{RANK}", str(os.getpid()))\nforever()'


def start_ranks(
    tmp_path: Path, code: str, *options: str, ranks: int = 2
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start ranks that wait; return the launcher and all their processes."""
    launcher = start(["-n", str(ranks), *options], [*python(code + READY), str(tmp_path)])
    names = ["rank"] + (["child"] if "child" in code else [])
    files = [tmp_path / f"{name}{rank}" for name in names for rank in range(ranks)]
    return launcher, pids_in(*files)


def children_of(pid: int) -> list[int]:
    """The processes that a launcher has."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ctrl_c(tmp_path: Path) -> None:
    """One Ctrl-C ends all ranks and their children; the status is 130."""
    launcher, pids = start_ranks(tmp_path, FAMILY)
    helpers = children_of(launcher.pid)
    launcher.send_signal(signal.SIGINT)
    ended = finish(launcher)
    assert ended.status == 130
    assert "interrupted by SIGINT" in ended.err
    assert "stopped" in ended.rank_line(1)
    assert not any(lives(pid) for pid in [*pids, *helpers])


def test_ctrl_c_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    """Ranks may handle Ctrl-C and end by themselves within the grace; the status stays 130."""
    code = """
def stop(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
"""
    launcher, _ = start_ranks(tmp_path, code, "--restarts", "3")
    launcher.send_signal(signal.SIGINT)
    ended = finish(launcher)
    assert ended.status == 130
    assert ended.out == "[r0] saved\n[r1] saved\n" or ended.out == "[r1] saved\n[r0] saved\n"
    assert "exit 0" in ended.rank_line(0)


def test_ctrl_c_twice_kills_at_once(tmp_path: Path) -> None:
    """A second Ctrl-C kills what ignores the first, long before the grace is over."""
    code = STUBBORN + FAMILY.replace("SIG_DFL", "SIG_IGN")
    launcher, pids = start_ranks(tmp_path, code, "--grace-s", "35")
    launcher.send_signal(signal.SIGINT)
    assert launcher.stderr is not None
    assert b"a second one kills at once" in launcher.stderr.readline()
    time.sleep(0.1)  # a second Ctrl-C within 50 ms counts as the first
    began_s = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    ended = finish(launcher, began_s)
    assert ended.status == 130
    assert ended.seconds < 30
    assert "ended by SIGKILL" in ended.rank_line(0)
    assert not any(lives(pid) for pid in pids)


def test_one_ctrl_c_that_comes_twice_is_one(tmp_path: Path) -> None:
    """A wrapper that repeats the terminal's Ctrl-C at once does not turn it into a kill."""
    code = """
def stop(*_):
    time.sleep(0.3)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, stop)
"""
    launcher, _ = start_ranks(tmp_path, code, ranks=1)
    os.kill(launcher.pid, signal.SIGSTOP)  # so that it sees both at once; two SIGINT would be one
    launcher.send_signal(signal.SIGINT)
    launcher.send_signal(signal.SIGTERM)
    os.kill(launcher.pid, signal.SIGCONT)
    assert finish(launcher).out == "[r0] saved\n"


def test_ctrl_c_escalates(tmp_path: Path) -> None:
    """After one Ctrl-C, ranks that ignore it get SIGTERM after the grace, then SIGKILL."""
    limits = ("--grace-s", "0.2", "--kill-after-s", "0.2")
    launcher, pids = start_ranks(tmp_path, STUBBORN, *limits)
    launcher.send_signal(signal.SIGINT)
    ended = finish(launcher)
    assert ended.status == 130
    assert "SIGINT from the launcher, ended by SIGKILL" in ended.rank_line(0)
    assert not any(lives(pid) for pid in pids)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_sighup(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """SIGTERM to the launcher, or the loss of its terminal, ends all ranks with SIGTERM."""
    launcher, pids = start_ranks(tmp_path, FAMILY)
    launcher.send_signal(number)
    ended = finish(launcher)
    assert ended.status == status
    assert "ended by SIGTERM" in ended.rank_line(1)
    assert not any(lives(pid) for pid in pids)


def test_ctrl_c_while_nobody_reads(tmp_path: Path) -> None:
    """A reader that stands still can't keep an interrupted job from ending."""
    code = """
touch(sys.argv[1] + "/rank0", str(os.getpid()))
while True:
    os.write(1, b"x" * 4095 + b"\\n")
"""
    limits = ["-n", "1", "--grace-s", "0.2", "--kill-after-s", "0.2"]
    launcher = start(limits, [*python(code), str(tmp_path)])
    (pid,) = pids_in(tmp_path / "rank0")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=15) == 130
    launcher.communicate()
    assert not lives(pid)


@pytest.mark.parametrize("code", [FAMILY, STUBBORN + FAMILY], ids=["plain", "stubborn"])
def test_sigkill_of_the_launcher(tmp_path: Path, code: str) -> None:
    """After SIGKILL of the launcher neither ranks nor their children live 5 s later."""
    launcher, pids = start_ranks(tmp_path, code)
    helpers = children_of(launcher.pid)
    began_s = time.monotonic()
    kill(launcher.pid)
    wait_until(lambda: not any(lives(pid) for pid in [*pids, *helpers]), 5.0)
    assert time.monotonic() - began_s < 5
    launcher.communicate()
    wait_until(lambda: not any((tmp_path / "tmp").iterdir()), 5.0)


def test_sigkill_of_launcher_and_guardian(tmp_path: Path) -> None:
    """Even when both are killed at once, no rank outlives them."""
    launcher, pids = start_ranks(tmp_path, "")
    (guardian,) = set(children_of(launcher.pid)) - set(pids)
    os.kill(launcher.pid, signal.SIGSTOP)
    kill(guardian)
    kill(launcher.pid)
    wait_until(lambda: not any(lives(pid) for pid in pids), 5.0)
    launcher.communicate()
    for each in (tmp_path / "tmp").iterdir():
        shutil.rmtree(each)  # nobody is left to remove it


def test_a_killed_guardian_is_replaced(tmp_path: Path) -> None:
    """The guardian's death alone harms nobody, and the next one protects the same ranks."""
    launcher, pids = start_ranks(tmp_path, FAMILY)
    ranks = pids[:2]
    (guardian,) = set(children_of(launcher.pid)) - set(ranks)
    kill(guardian)
    wait_until(lambda: bool(set(children_of(launcher.pid)) - {*ranks, guardian}))
    assert all(lives(pid) for pid in pids)
    kill(launcher.pid)
    wait_until(lambda: not any(lives(pid) for pid in pids), 5.0)
    launcher.communicate()
    wait_until(lambda: not any((tmp_path / "tmp").iterdir()), 5.0)


def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    """Whenever it comes, the status is 130, or the signal itself before there was a job to end.

    The interpreter's own start has a traceback and 1; that is not ours to change.
    """
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    for number in range(6):
        launcher = start(["-n", "2"], [*python("forever()"), mark])
        time.sleep(0.03 + 0.04 * number)
        for _ in range(3):
            launcher.send_signal(signal.SIGINT)
            time.sleep(0.06)
        ended = finish(launcher)
        assert ended.status in (130, -signal.SIGINT) or ended.err.endswith("KeyboardInterrupt\n")
    assert processes_with(mark) == []


def test_sigkill_of_the_launcher_at_any_moment(tmp_path: Path) -> None:
    """Whenever during start-up the launcher is killed, nothing of the job is left.

    If it had no guardian yet, an empty directory stays until somebody looks at the status.
    """
    place = tmp_path / "tmp"
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    for number in range(6):
        launcher = start(["-n", "4"], [*python("forever()"), mark])
        time.sleep(0.04 + 0.04 * number)
        kill(launcher.pid)
        launcher.communicate()
    wait_until(lambda: not processes_with(mark), 5.0)
    wait_until(lambda: not any(place.glob("*/*")), 5.0)
    assert living_jobs({"TMPDIR": str(place)}) == []
    assert list(place.iterdir()) == []


def test_ignored_sigint_stays_ignored(tmp_path: Path) -> None:
    """A job in the background of a script, started with SIGINT ignored, is not ended by it."""
    done = tmp_path / "done"
    code = f"touch({str(tmp_path / 'up')!r}); wait_for({str(done)!r})"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        launcher = start(["-n", "1"], python(code))
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until((tmp_path / "up").exists)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.2)
    done.touch()
    assert finish(launcher).status == 0


def test_a_failure_before_ctrl_c_stays_the_cause(tmp_path: Path) -> None:
    """Ctrl-C during the grace ends the wait; the cause is still the rank that failed."""
    code = f"if RANK == 0: wait_for({str(tmp_path / 'rank1')!r}); sys.exit(6)\n"
    options = ["-n", "2", "--restarts", "5"]
    launcher = start([*options, "--grace-s", "35"], [*python(code + READY), str(tmp_path)])
    assert launcher.stderr is not None
    assert b"rank 0 failed (exit 6)" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGINT)
    ended = finish(launcher)
    assert ended.status == 6
    assert ended.seconds < 30
    assert "stopped" in ended.rank_line(1)
    assert "forming" not in ended.err


def test_nothing_is_left_after_a_normal_end() -> None:
    """The launcher waits for its guardian before it ends."""
    ended = run(["-n", "1"], ["sh", "-c", "echo $PPID"])
    assert ended.status == 0
    parent = int(ended.out.removeprefix("[r0] "))
    assert not any(f"\0{parent}\0" in line for line in processes_with("guard.py"))
