"""What the launcher's tests share: small programs as ranks, and a launcher to run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAUNCHER = [sys.executable, "-m", "standfast.command"]
LIMIT_S = 40.0
STARTED: list[subprocess.Popen[bytes]] = []

PRELUDE = """
import json, os, signal, sys, time
RANK = int(os.environ["STANDFAST_RANK"])
SIZE = int(os.environ["STANDFAST_WORLD_SIZE"])
GENERATION = int(os.environ["STANDFAST_GENERATION"])

def report(kind, type, rank, message="told by the test", **fields):
    directory = os.environ["STANDFAST_REPORT_DIR"]
    path = f"{directory}/rank-{RANK}-gen{GENERATION}.json"
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    error = dict(kind=kind, type=type, rank=rank, message=message, detected_ns=now, **fields)
    with open(path + ".new", "w") as file:
        json.dump({"error": error, "raised_ns": now}, file)
    os.replace(path + ".new", path)

def touch(path, text=""):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)

def wait_for(*paths):
    end = time.monotonic() + 30
    while not all(os.path.exists(path) for path in paths):
        if time.monotonic() > end:
            sys.exit(99)
        time.sleep(0.005)

def wait_for_end_of(pid):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.001)

def forever():
    # Not one long sleep: a signal that comes just before it would be served after it only.
    for _ in range(6000):
        time.sleep(0.01)
    sys.exit(98)
"""


@dataclass(frozen=True)
class Ended:
    """A launcher that has ended."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def block(self) -> list[str]:
        """What the launcher itself said."""
        return [line for line in self.err.splitlines() if not line.startswith("[r")]

    def rank_line(self, rank: int) -> str:
        """The block's line about a rank."""
        return next(line for line in self.block if line.startswith(f"  rank {rank} "))


def python(code: str) -> list[str]:
    """A rank's command line that runs this code after the prelude; it starts fast."""
    return [sys.executable, "-I", "-S", "-c", PRELUDE + code]


def launcher_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tests' environment without what would change a launcher's behaviour."""
    dropped = ("STANDFAST_", "TORCHELASTIC_", "NO_COLOR", "FORCE_COLOR")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    source = str(Path(__file__).parents[2] / "src")
    if source in sys.path or source in kept.get("PYTHONPATH", "").split(os.pathsep):
        kept["PYTHONPATH"] = source
    return kept | dict(extra or {})


def start(
    options: Sequence[str],
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start `standfast run OPTIONS -- COMMAND`; a fixture ends it if the test does not."""
    launcher = subprocess.Popen(
        [*LAUNCHER, "run", *options, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=launcher_environment(env),
    )
    STARTED.append(launcher)
    return launcher


def end_started() -> None:
    """End the launchers that a failed test left, and close their pipes."""
    while STARTED:
        launcher = STARTED.pop()
        launcher.kill()
        launcher.wait()
        for pipe in (launcher.stdout, launcher.stderr):
            if pipe is not None:
                pipe.close()


def finish(launcher: subprocess.Popen[bytes], began_s: float | None = None) -> Ended:
    """Collect what a launcher says and how it ends."""
    began_s = time.monotonic() if began_s is None else began_s
    try:
        out, err = launcher.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        out, err = launcher.communicate()
        raise AssertionError(f"the launcher did not end; it said {out!r} {err!r}") from None
    return Ended(
        launcher.returncode,
        (out or b"").decode("utf-8", "backslashreplace"),
        (err or b"").decode("utf-8", "backslashreplace"),
        time.monotonic() - began_s,
    )


def run(
    options: Sequence[str], command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Ended:
    """Run `standfast run OPTIONS -- COMMAND` to its end."""
    began_s = time.monotonic()
    return finish(start(options, command, env=env), began_s)


def run_code(options: Sequence[str], code: str, *, env: Mapping[str, str] | None = None) -> Ended:
    """Run ranks that execute this code."""
    return run(options, python(code), env=env)


def run_json(options: Sequence[str], code: str) -> tuple[Ended, dict[str, Any]]:
    """Run ranks with --json; return the report too."""
    ended = run_code([*options, "--json"], code)
    report: dict[str, Any] = json.loads(ended.out)
    return ended, report


def wait_until(happened: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for something, but not for ever."""
    end_s = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)


def wait_until_still(value: Callable[[], object], still_s: float = 0.5) -> None:
    """Wait until something does not change any more."""
    seen, since_s = value(), time.monotonic()

    def is_still() -> bool:
        nonlocal seen, since_s
        now, now_s = value(), time.monotonic()
        if now != seen:
            seen, since_s = now, now_s
        return now_s - since_s > still_s

    wait_until(is_still)


def pids_in(*paths: Path) -> list[int]:
    """Wait for files into which processes write their ids."""
    wait_until(lambda: all(path.exists() for path in paths))
    return [int(path.read_text()) for path in paths]


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def processes_with(word: str) -> list[str]:
    """Command lines that have this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            found.append(line.decode())
    return found


def kill(pid: int) -> None:
    """Send SIGKILL to a process of a test."""
    os.kill(pid, signal.SIGKILL)
