"""`standfast run --watch`: programs without a line of ours, watched from outside."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.support import (
    finish,
    kill,
    lives,
    pids_in,
    processes_with,
    python,
    run,
    run_code,
    run_json,
    start,
    wait_until,
)

SHORT = {"STANDFAST_SILENCE_S": "1"}
WATCH = ["-n", "3", "--watch", "--kill-after-s", "1"]
VICTIM = """
touch(sys.argv[1] + f"/{RANK}", str(os.getpid()))
if RANK == 1:
    wait_for(*[sys.argv[1] + f"/{rank}" for rank in range(SIZE)])
    %s
forever()
"""


def victim(tmp_path: Path, deed: str) -> list[str]:
    """Ranks that wait for ever, but for rank 1, which does something when all are there."""
    return [*python(VICTIM % deed), str(tmp_path)]


def test_all_goes_well() -> None:
    """Ranks that end with 0 at different times are no fault; nothing is said."""
    ended = run_code(WATCH, "time.sleep(0.2 * RANK); print('done')")
    assert (ended.status, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == ["[r0] done", "[r1] done", "[r2] done"]


def test_a_killed_program_ends_the_others(tmp_path: Path) -> None:
    """Each survivor gets SIGTERM, ends with 75 and names the rank; the cause keeps its status."""
    ended = run(WATCH, victim(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert ended.status == 137, ended.err
    assert "cause     was ended by SIGKILL" in ended.rank_line(1)
    for rank in (0, 2):
        assert f"[r{rank}] standfast: rank 1 on " in ended.err
        assert "victim" in ended.rank_line(rank)
        assert "exit 75" in ended.rank_line(rank)
    assert not [pid for pid in pids_in(*tmp_path.glob("[0-2]")) if lives(pid)]


def test_rank_0_may_be_done_first(tmp_path: Path) -> None:
    """Its warden stays for the others, who are watched to their end."""
    code = "if RANK == 0: sys.exit(0)\ntime.sleep(1.5 if RANK == 1 else 0)\n"
    code += "if RANK == 1: os.kill(os.getpid(), signal.SIGKILL)\nforever()"
    ended = run_code([*WATCH, "--grace-s", "35"], code)
    assert ended.status == 137, ended.err
    assert "finished" in ended.rank_line(0)
    assert "[r2] standfast: rank 1 on " in ended.err
    assert "exit 75" in ended.rank_line(2)
    assert ended.seconds < 30.0


@pytest.mark.parametrize(
    ("deed", "status", "words"),
    [
        ("sys.exit(3)", 3, "ended with exit status 3"),
        ("sys.exit(75)", 75, "ended with exit status 75"),
        ("os.abort()", 134, "ended with SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "died"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "died"),
    ],
)
def test_a_bad_end_is_told(tmp_path: Path, deed: str, status: int, words: str) -> None:
    """However a program fails, the others hear of it, and the launcher ends as it did."""
    ended = run(WATCH, victim(tmp_path, deed))
    assert ended.status == status, ended.err
    said = [line for line in ended.err.splitlines() if line.startswith("[r2] standfast: rank 1 on")]
    assert len(said) == 1, ended.err
    assert words in said[0]


def test_a_frozen_program_is_given_up(tmp_path: Path) -> None:
    """A program that was stopped is hinted at, and given up as its silence would be."""
    command = victim(tmp_path, "os.kill(os.getpid(), signal.SIGSTOP)")
    launcher = start(WATCH, command, env=SHORT)
    pids_in(*[tmp_path / str(rank) for rank in range(3)])
    began_s = time.monotonic()
    ended = finish(launcher)
    assert time.monotonic() - began_s < 15.0, "that was the usual limit of 20 s"
    assert ended.status == 75, ended.err
    assert "cause" in ended.rank_line(1)
    for rank in (0, 2):
        assert f"[r{rank}] standfast: rank 1 on " in ended.err
        assert "stalled" in ended.err
        assert "exit 75" in ended.rank_line(rank)


def test_a_short_stop_is_no_fault(tmp_path: Path) -> None:
    """A program that goes on within the limit has harmed nobody."""
    code = VICTIM.replace("forever()", "wait_for(sys.argv[1] + '/go')") % "pass"
    launcher = start(WATCH, [*python(code), str(tmp_path)], env={"STANDFAST_SILENCE_S": "5"})
    pids = pids_in(*[tmp_path / str(rank) for rank in range(3)])
    os.kill(pids[1], signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pids[1]}/stat").read_text().split()[2] == "T")
    time.sleep(1.5)
    os.kill(pids[1], signal.SIGCONT)
    (tmp_path / "go").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err


def test_a_stubborn_program_is_killed(tmp_path: Path) -> None:
    """Who ignores SIGTERM gets SIGKILL after --kill-after-s; a child it has started goes, too."""
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if RANK == 0:
    child = os.fork()
    if child == 0:
        touch(sys.argv[1] + "/child", str(os.getpid()))
        forever()
    wait_for(sys.argv[1] + "/child")
"""
    text = code + VICTIM % "os.kill(os.getpid(), signal.SIGKILL)"
    ended = run(WATCH, [*python(text), str(tmp_path)])
    assert ended.status == 137, ended.err
    assert "exit 75" in ended.rank_line(0)
    assert "exit 75" in ended.rank_line(2)
    assert not lives(int((tmp_path / "child").read_text()))
    assert ended.seconds < 15.0


def test_a_program_may_save_its_work(tmp_path: Path) -> None:
    """SIGTERM leaves a program its time up to --kill-after-s; the status is 75 all the same."""
    code = """
def save(*_):
    touch(sys.argv[1] + f"/saved-{RANK}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""
    text = code + VICTIM % "os.kill(os.getpid(), signal.SIGKILL)"
    ended = run(WATCH, [*python(text), str(tmp_path)])
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-2"]
    assert "exit 75" in ended.rank_line(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_users_signal_is_no_fault(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C reaches each program once; nobody is accused, the launcher ends as always."""
    code = f"""
count = 0
def note(*_):
    global count
    count += 1
signal.signal({int(number)}, note)
touch(sys.argv[1] + f"/{{RANK}}", str(os.getpid()))
while not count:
    time.sleep(0.01)
time.sleep(0.3)
print("signals:", count)
"""
    launcher = start(["-n", "3", "--watch"], [*python(code), str(tmp_path)])
    pids_in(*[tmp_path / str(rank) for rank in range(3)])
    launcher.send_signal(number)
    ended = finish(launcher)
    assert ended.status == 128 + number, ended.err
    assert sorted(ended.out.splitlines()) == [f"[r{rank}] signals: 1" for rank in range(3)]
    assert "rank 0 on" not in ended.err


def test_a_warden_that_is_killed_takes_its_program_along(tmp_path: Path) -> None:
    """No program goes on unwatched; to the others its rank has died."""
    launcher = start(WATCH, victim(tmp_path, "pass"))
    pids = pids_in(*[tmp_path / str(rank) for rank in range(3)])
    kill(_parent(pids[1]))
    ended = finish(launcher)
    assert ended.status == 137, ended.err
    assert "[r0] standfast: rank 1 on " in ended.err
    assert not [pid for pid in pids if lives(pid)]


def test_nothing_outlives_the_launcher(tmp_path: Path) -> None:
    """SIGKILL of the launcher ends wardens and programs."""
    launcher = start(WATCH, [*victim(tmp_path, "pass"), "standfast-test-marker"])
    pids = pids_in(*[tmp_path / str(rank) for rank in range(3)])
    wardens = [_parent(pid) for pid in pids]
    kill(launcher.pid)
    launcher.wait()
    wait_until(lambda: not any(lives(pid) for pid in (*pids, *wardens)), 5.0)
    assert not processes_with("standfast-test-marker")
    wait_until(lambda: not list(Path(os.environ["TMPDIR"]).iterdir()), 5.0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_restarts(tmp_path: Path) -> None:
    """A lost rank is a reason to try again; each generation has its own watch."""
    code = """
if RANK == 1 and GENERATION == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if GENERATION == 1:
    forever()
"""
    ended = run_code([*WATCH, "--restarts", "1"], code)
    assert ended.status == 0, ended.err
    assert "forming generation 2" in ended.err


def test_a_program_with_a_group_of_its_own(tmp_path: Path) -> None:
    """A program that does use standfast meets its own ranks, with the usual variables."""
    code = """
import os, standfast
assert not [name for name in os.environ if "_WATCH_" in name]
with standfast.init() as group, standfast.watch() as watch:
    print(int(group.all_sum(group.rank)), watch.size)
"""
    import sys

    ended = run(WATCH, [sys.executable, "-c", code])
    assert ended.status == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[r{rank}] 3 3" for rank in range(3)]


def test_descriptors_and_signals_are_as_without(tmp_path: Path) -> None:
    """The program has what a rank has: its streams, the listener at rank 0, SIGPIPE at default."""
    code = """
listening = "STANDFAST_LISTEN_FD" in os.environ
assert listening == (RANK == 0)
expected = {"0", "1", "2", "3"} | ({os.environ["STANDFAST_LISTEN_FD"]} if listening else set())
assert set(os.listdir("/proc/self/fd")) <= expected, os.listdir("/proc/self/fd")
assert sys.stdin.read() == ""
"""
    ended = run_code(WATCH, code)
    assert ended.status == 0, ended.err
    ignored = ["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"]
    watched, plain = (run(options, ignored).out for options in (WATCH, ["-n", "3"]))
    assert sorted(watched.splitlines()) == sorted(plain.splitlines())


def test_json_tells_the_same() -> None:
    """The report of --json has causes and victims as the block has."""
    _, report = run_json(WATCH, "sys.exit(3) if RANK == 1 else forever()")
    ranks = report["generations"][0]["ranks"]
    assert [each["tag"] for each in ranks] == ["victim", "cause", "victim"]
    assert [each["exit_code"] for each in ranks] == [75, 3, 75]
    assert ranks[0]["error"]["type"] == "RemoteFailure"


@pytest.mark.parametrize(
    ("options", "env", "status", "words"),
    [
        (["-n", "1", "--watch"], {}, 2, "--watch needs at least 2 ranks"),
        ([*WATCH, "--grace-s", "0"], {}, 2, "--grace-s 0 ends all ranks"),
        (WATCH, {"STANDFAST_SILENCE_S": "0.1"}, 78, "STANDFAST_SILENCE_S='0.1'"),
    ],
)
def test_nonsense_is_refused(
    options: list[str], env: dict[str, str], status: int, words: str
) -> None:
    """What cannot work is said before anything is started."""
    ended = run(options, ["true"], env=env)
    assert ended.status == status
    assert words in ended.err


def test_no_such_program() -> None:
    """The launcher itself says so, as without --watch; a broken script is said by each warden."""
    ended = run(WATCH, ["./no-such-program"])
    assert ended.status == 127
    assert "no such file" in ended.err


def test_a_program_that_the_kernel_refuses(tmp_path: Path) -> None:
    """It ends as a shell would end, with the reason."""
    script = tmp_path / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    ended = run(WATCH, [str(script)])
    assert ended.status == 127
    assert "the interpreter in its first line (#!) does not exist" in ended.err
