"""Kills at random moments, of anything but the launcher: it stays, and nothing else does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.launch.support import finish, lives, processes_with, python, run, start, wait_until

REPEATS = int(os.environ.get("STANDFAST_TEST_REPEATS", "4"))
GENERATIONS = 3
# A lock per rank: whoever finds it taken runs beside another process of the same rank.
ALONE = """
import fcntl, os, sys
lock = os.open(f"{sys.argv[1]}/lock-{os.environ['STANDFAST_RANK']}", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{sys.argv[1]}/two-at-once", "w").close()
"""
WORK = """
import standfast, time
with standfast.init() as group:
    number = 0
    while group.generation < 3 or number < 50:
        group.barrier()
        time.sleep(0.01)
        number += 1
"""


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def maker_of(segment: str) -> int:
    """Return whose segment this is, or 0: "sf-<pid>-<key>"."""
    words = segment.split("-")
    return int(words[1]) if words[0] == "sf" and len(words) == 3 else 0


def kill_at_random(
    launcher: subprocess.Popen[bytes], events: Path, chance: random.Random
) -> tuple[int, set[int]]:
    """Kill a rank of each generation, some time after its start; return how many, and all pids."""
    kills, seen = 0, set[int]()
    for generation in range(1, GENERATIONS + 1):
        pids: list[int] = []

        def began() -> bool:
            found = [
                each
                for each in events_of(events)
                if (each["event"], each["generation"]) == ("started", generation)  # noqa: B023
            ]
            pids[:] = [rank["pid"] for each in found for rank in each["ranks"]]  # noqa: B023
            return bool(found) or launcher.poll() is not None

        wait_until(began)
        if not pids:
            break
        seen.update(pids)
        time.sleep(chance.uniform(0.0, 1.5))
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
            kills += 1
        except ProcessLookupError:
            pass  # it was faster
    return kills, seen


def test_random_kills(tmp_path: Path) -> None:
    """Whenever a rank is killed: one process per rank, and none, no memory, no file at the end."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    everyone = set[int]()
    for number in range(REPEATS):
        events = tmp_path / f"events-{number}"
        options = ["-n", "3", "--restarts", str(GENERATIONS - 1), "--events", str(events)]
        launcher = start(options, [sys.executable, "-c", ALONE + WORK, str(tmp_path)])
        kills, pids = kill_at_random(launcher, events, chance)
        ended = finish(launcher)
        everyone |= pids
        # The last generation may have been killed, too, or have been faster.
        assert ended.status in (0, 75), ended.err
        assert kills >= GENERATIONS - 1
        assert not any(map(lives, pids))
        assert events_of(events)[-1]["event"] == "finished"
    assert not (tmp_path / "two-at-once").exists()
    assert processes_with(str(tmp_path)) == []
    assert not [name for name in os.listdir("/dev/shm") if maker_of(name) in everyone]


def test_all_ranks_killed_in_each_generation(tmp_path: Path) -> None:
    """Whoever kills everything, again and again, loses no job while there are restarts."""
    code = "os.kill(os.getpid(), signal.SIGKILL) if GENERATION < 4 else print('here')"
    ended = run(["-n", "3", "--restarts", "3"], python(code))
    assert ended.status == 0
    assert ended.out.count("here") == 3
