"""What targets.py measures besides operations: importing, forming a group, waiting and waking.

Linux, as it reads /proc.

As a program it is one rank of those: `python programs.py init|wait`, told to go by a line
on stdin.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from standfast import _core
from standfast.bench.jobs import free_ports
from standfast.bench.machine import own_s

Record = dict[str, Any]
IMPORT = """
import resource, time
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before, began = resident(), time.perf_counter()
import standfast
print((time.perf_counter() - began) * 1e3, (resident() - before) / 1e6)
"""
TIMES = 9
PAUSES = 20
PAUSE_S = 0.1
LIMIT_S = 120


def import_cost() -> Record:
    """Return what `import standfast` costs over a bare interpreter: ms and MB."""
    found = []
    for _ in range(TIMES):
        done = subprocess.run(
            [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
        )
        found.append([float(word) for word in done.stdout.split()])
    return {
        "ms": statistics.median(ms for ms, _ in found),
        "mb": statistics.median(mb for _, mb in found),
    }


def init_times() -> Record:
    """Return how long after the word to go the last of 4 and of 64 ranks had its group, in ms."""
    found: Record = {}
    for ranks, times in ((4, 7), (64, 3)):
        each_ms = [max(each["ms"] for each in _ranks("init", ranks, {})) for _ in range(times)]
        found[str(ranks)] = statistics.median(each_ms)
    return found


def waiting_cost() -> Record:
    """Return what a waiting rank uses of a core, in %, and how soon it has what it waits for."""
    limit = _core.measure_limit("wake_up")
    found: Record = {"limit_wake_us": statistics.median(limit) * 1e6}
    for fabric in ("shm", "tcp"):
        found[fabric] = _ranks("wait", 2, {"STANDFAST_FABRIC": fabric})[1]
    return found


def _ranks(what: str, size: int, own: Mapping[str, str]) -> list[Record]:
    """Run this program as `size` ranks that go at once; return what each tells."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("STANDFAST_")}
    common = {
        "STANDFAST_WORLD_SIZE": str(size),
        "STANDFAST_COORDINATOR": f"127.0.0.1:{free_ports(1)[0]}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), what],
            env={**kept, **common, **own, "STANDFAST_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it is there
        word = f"{time.monotonic_ns()}\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(word)
            process.stdin.flush()
        return [json.loads(each.communicate(timeout=LIMIT_S)[0]) for each in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def be_a_rank(what: str) -> Record:
    """Wait for the word, form the group, measure."""
    import standfast

    init = standfast.init  # the core is loaded
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    began_ns = int(sys.stdin.readline())
    with init() as group:
        ms = (time.monotonic_ns() - began_ns) / 1e6
        return {"ms": ms} if what == "init" else _wait(group)


def _wait(group: Any) -> Record:
    """Let rank 1 wait for rank 0, which sleeps before each message: the time of sending."""
    if group.rank == 0:
        for _ in range(PAUSES):
            time.sleep(PAUSE_S)
            group.send(time.monotonic_ns(), 1)
        return {}
    late_us = []
    began, own = time.monotonic(), own_s()
    for _ in range(PAUSES):
        sent_ns = int(group.recv((), "int64", 0))
        late_us.append((time.monotonic_ns() - sent_ns) / 1e3)
    share = (own_s() - own) / (time.monotonic() - began)
    return {"cpu_pct": 100 * share, "wake_us": statistics.median(late_us)}


def main(arguments: Sequence[str]) -> None:
    """Be a rank, and tell."""
    told = be_a_rank(arguments[0])
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
