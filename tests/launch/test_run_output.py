"""The ranks' output: every line whole, prefixed, in order, and none lost."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.launch.support import (
    LAUNCHER,
    finish,
    launcher_environment,
    lives,
    pids_in,
    python,
    run,
    run_code,
    start,
    wait_until,
    wait_until_still,
)

MB = 1 << 20


def test_streams_stay_apart() -> None:
    """Ranks' stdout comes on stdout and their stderr on stderr, each line with its rank."""
    ended = run_code(["-n", "2"], 'print("to out"); print("to err", file=sys.stderr)')
    assert sorted(ended.out.splitlines()) == ["[r0] to out", "[r1] to out"]
    assert sorted(ended.err.splitlines()) == ["[r0] to err", "[r1] to err"]


def test_partial_and_binary_lines() -> None:
    """A last line without newline is completed, also after SIGKILL; bytes pass as they are."""
    code = r"""
os.write(1, b"bin\x00\xff\r\nno newline")
if RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    launcher = start(["-n", "2"], python(code))
    out, _ = launcher.communicate(timeout=30)
    assert sorted(out.splitlines(keepends=True)) == [
        b"[r0] bin\x00\xff\r\n",
        b"[r0] no newline\n",
        b"[r1] bin\x00\xff\r\n",
        b"[r1] no newline\n",
    ]


def read_slowly(launcher: subprocess.Popen[bytes], pause_s: float) -> Iterator[bytes]:
    """Read the launcher's stdout as a slow terminal would."""
    assert launcher.stdout is not None
    while data := os.read(launcher.stdout.fileno(), 65536):
        yield data
        time.sleep(pause_s)


def test_20_mb_through_a_slow_pipe() -> None:
    """Nothing is lost, doubled, mixed or reordered when the reader is slower than the ranks."""
    code = """
import random
source = random.Random(RANK)
for number in range(60000):
    sys.stdout.write(f"{number} {'abcdefghij'[RANK] * source.randrange(320)}\\n")
"""
    launcher = start(["-n", "2"], python(code))
    text = b"".join(read_slowly(launcher, 0.002)).decode()
    assert launcher.wait(timeout=30) == 0
    assert len(text) > 19 * 1000 * 1000
    numbers = Counter[str]()
    for line in text.splitlines():
        rank, number, *rest = line.split(" ")
        assert int(number) == numbers[rank]
        assert set("".join(rest)) <= {"ab"[int(rank[2])]}
        numbers[rank] += 1
    assert numbers == {"[r0]": 60000, "[r1]": 60000}


def written(pid: int) -> str:
    """How many bytes a process has written so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(line for line in lines if line.startswith("wchar"))


def test_back_pressure_keeps_memory_bounded(tmp_path: Path) -> None:
    """While nobody reads, ranks wait; the launcher does not collect their output in memory."""
    code = """
touch(sys.argv[1] + str(RANK), str(os.getpid()))
for _ in range(300000):
    os.write(1, b"x" * 99 + b"\\n")
"""
    launcher = start(["-n", "2"], [*python(code), str(tmp_path / "rank")])
    for rank in pids_in(tmp_path / "rank0", tmp_path / "rank1"):
        wait_until_still(partial(written, rank))
    status = Path(f"/proc/{launcher.pid}/status").read_text()
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    out, _ = launcher.communicate(timeout=30)
    assert len(out) == 600000 * 105
    assert int(peak.split()[1]) < 60_000  # kB


def test_long_lines_are_not_mixed() -> None:
    """Lines of megabytes pass whole though all ranks write them at once, to stdout and stderr."""
    code = f"""
for number in range(3):
    os.write(1 + RANK % 2, b"abc"[RANK:RANK + 1] * {MB} + b"\\n")
"""
    launcher = start(["-n", "3"], python(code), stderr=subprocess.STDOUT)
    out, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 0
    expected = [b"[r%d] " % rank + b"abc"[rank : rank + 1] * MB for rank in range(3)] * 3
    assert Counter(out.splitlines()) == Counter(expected)


def test_a_long_line_that_stands_still_does_not_stop_the_others() -> None:
    """A rank in the middle of an endless line holds the others up for half a second, no more."""
    code = f"""
flag = os.environ["STANDFAST_REPORT_DIR"] + "/flag"
if RANK == 0:
    os.write(1, b"x" * {MB // 4})
    touch(flag)
    wait_for(flag + "2")
    os.write(1, b"y\\n")
else:
    wait_for(flag)
    os.write(1, b"z" * {MB // 4} + b"\\n")
    touch(flag + "2")
"""
    ended = run_code(["-n", "2"], code)
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert len(lines) == 3
    assert {line[:6] for line in lines} == {"[r0] x", "[r1] z", "[r0] y"} or len(lines[-1]) > 9
    assert sum(line.count("x") for line in lines) == MB // 4
    assert sum(line.count("z") for line in lines) == MB // 4


def test_a_child_that_goes_on_writing_is_bounded(tmp_path: Path) -> None:
    """What a daemon of a rank writes after the rank's end is passed on for a moment only."""
    code = """
if os.fork() == 0:
    os.setsid()
    touch(sys.argv[1], str(os.getpid()))
    signal.alarm(20)
    while True:
        os.write(1, b"daemon\\n")
print("rank's last line")
"""
    launcher = start(["-n", "1"], [*python(code), str(tmp_path / "daemon")])
    ended = finish(launcher)
    daemon = int((tmp_path / "daemon").read_text())
    assert ended.status == 0
    assert ended.seconds < 15
    assert ended.out.count("[r0] rank's last line\n") == 1
    # It left its rank's group, so nobody kills it; but it may not write for ever.
    wait_until(lambda: not lives(daemon))


def test_a_reader_that_goes_away() -> None:
    """When the reader of stdout is gone, as after `| head -1`, the job is stopped with 141."""
    code = "while True: print('line', flush=True); time.sleep(0.01)"
    launcher = start(["-n", "2"], python(code))
    assert launcher.stdout is not None
    launcher.stdout.readline()
    launcher.stdout.close()
    launcher.stdout = None
    ended = finish(launcher)
    assert ended.status == 141
    assert "stdout: write: Broken pipe (EPIPE)" in ended.block[0]


def test_a_full_disk(tmp_path: Path) -> None:
    """When stdout can't be written, the block says why."""
    with open("/dev/full", "wb") as full:
        code = "print(1, flush=True); forever()"
        launcher = start(["-n", "2"], python(code), stdout=full.fileno())
        _, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 141
    assert b"No space left on device (ENOSPC)" in err


def test_files_as_output(tmp_path: Path) -> None:
    """Output into one file for both streams is complete and unmixed."""
    path = tmp_path / "log"
    code = "for n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)"
    with path.open("wb") as log:
        launcher = start(["-n", "2"], python(code), stdout=log.fileno(), stderr=log.fileno())
        assert launcher.wait(timeout=30) == 0
    expected = Counter(f"[r{rank}] {n}" for rank in range(2) for n in range(2000))
    assert Counter(path.read_text().splitlines()) == expected


def test_closed_descriptors() -> None:
    """A caller that closed stdin and stdout gets no rank's pipe under these numbers."""
    command = " ".join(["exec", *LAUNCHER, "run", "-n", "2", "--", "echo", "hello", "<&-", ">&-"])
    done = subprocess.run(
        ["sh", "-c", command], check=False, stderr=subprocess.PIPE, env=launcher_environment()
    )
    assert (done.returncode, done.stderr) == (0, b"")


def on_terminal(env: dict[str, str]) -> str:
    """Run two ranks with stdout and stderr on a terminal; return what appears there."""
    ours, its = pty.openpty()
    code = 'print("out"); print("err", file=sys.stderr)'
    terminal = {"TERM": "xterm", **env}
    launcher = start(["-n", "1"], python(code), stdout=its, stderr=its, env=terminal)
    os.close(its)
    seen = b""
    try:
        while data := os.read(ours, 4096):
            seen += data
    except OSError:  # EIO: the terminal's last user is gone
        pass
    os.close(ours)
    assert launcher.wait(timeout=30) == 0
    return seen.decode()


def test_colours_on_a_terminal_only() -> None:
    """Prefixes are coloured on a terminal, but not with NO_COLOR; elsewhere with FORCE_COLOR."""
    coloured = on_terminal({})
    assert "\x1b[36m[r0] \x1b[0mout\r\n" in coloured
    assert "\x1b[1;36m[r0] \x1b[0merr\r\n" in coloured
    assert "\x1b" not in on_terminal({"NO_COLOR": "1"})
    assert "\x1b" in run(["-n", "1"], ["echo", "x"], env={"FORCE_COLOR": "1"}).out
    assert run(["-n", "1"], ["echo", "x"]).out == "[r0] x\n"


def test_the_terminal_stays_as_it_was() -> None:
    """The launcher never makes the shell's own descriptors non-blocking."""
    ours, its = pty.openpty()
    launcher = start(["-n", "1"], ["true"], stdout=its, stderr=its)
    assert launcher.wait(timeout=30) == 0
    assert os.get_blocking(its)
    os.close(ours)
    os.close(its)


@pytest.mark.parametrize("buffered", [None, "0"])
def test_python_ranks_are_unbuffered_unless_the_user_says_otherwise(buffered: str | None) -> None:
    """PYTHONUNBUFFERED is 1 unless it is set."""
    env = {} if buffered is None else {"PYTHONUNBUFFERED": buffered}
    environ = launcher_environment(env)
    if buffered is None:
        environ.pop("PYTHONUNBUFFERED", None)
    show = "import json, os; print(json.dumps(os.environ['PYTHONUNBUFFERED']))"
    done = subprocess.run(
        [*LAUNCHER, "run", "-n", "1", "--", sys.executable, "-c", show],
        capture_output=True,
        check=False,
        text=True,
        env=environ,
    )
    assert json.loads(done.stdout.removeprefix("[r0] ")) == (buffered or "1")
