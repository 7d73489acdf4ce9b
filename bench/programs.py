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

from standfast.bench.jobs import free_ports
from standfast.bench.machine import own_s
from standfast.testing.emulator import Emulator
from standfast.testing.topology import mesh

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
PAUSES = 100
PAUSE_S = 0.02
PIPE = "WAKING_PIPE"  # in the environment: its two descriptors
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
    """Return what a waiting rank uses of a core, in %, and how soon it has what it waits for.

    Beside that, how soon a process is awake that sleeps on a bare pipe, between the same processes,
    in turn: after some milliseconds of rest a core takes longer than in a ping-pong.
    """
    found = {fabric: _waits({"STANDFAST_FABRIC": fabric}) for fabric in ("shm", "tcp")}
    with Emulator(mesh(2)) as macs:
        found["verbs"] = _waits({"STANDFAST_FABRIC": "verbs"}, macs)
    return found


def _waits(own: Mapping[str, str], macs: Emulator | None = None) -> Record:
    """Return for one fabric: % of a core, and the medians of both sorts of waking in us."""
    pipe = os.pipe()
    try:
        sender, waiter = _ranks(
            "wait", 2, {**own, PIPE: f"{pipe[0]} {pipe[1]}"}, inherited=pipe, macs=macs
        )
    finally:
        for end in pipe:
            os.close(end)
    found: Record = {"cpu_pct": waiter["cpu_pct"]}
    for name in ("wake", "bare"):
        pairs = zip(sender[f"{name}_ns"], waiter[f"{name}_ns"], strict=True)
        found[f"{name}_us"] = statistics.median(there - here for here, there in pairs) / 1e3
    return found


def _ranks(
    what: str,
    size: int,
    own: Mapping[str, str],
    *,
    inherited: Sequence[int] = (),
    macs: Emulator | None = None,
) -> list[Record]:
    """Run this program as `size` ranks that go at once; return what each tells.

    inherited: descriptors that they get. macs: an emulated Mac for each of them.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("STANDFAST_")}
    common = {
        "STANDFAST_WORLD_SIZE": str(size),
        "STANDFAST_COORDINATOR": f"127.0.0.1:{free_ports(1)[0]}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), what],
            env={
                **(macs.environment(macs.topology.hosts[rank], kept) if macs else kept),
                **common,
                **own,
                "STANDFAST_RANK": str(rank),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
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
    """Let rank 1 wait for rank 0, which rests before each message; tell when each goes and comes.

    They go in turn through the group, as an array, and through the pipe.
    """
    import numpy as np

    message = np.zeros(1, np.int64)
    read_end, write_end = map(int, os.environ[PIPE].split())
    wake_ns, bare_ns = [], []
    if group.rank == 0:
        for _ in range(PAUSES):
            time.sleep(PAUSE_S)
            wake_ns.append(time.monotonic_ns())
            group.send(message, 1)
            time.sleep(PAUSE_S)
            bare_ns.append(time.monotonic_ns())
            os.write(write_end, b"message!")
        return {"wake_ns": wake_ns, "bare_ns": bare_ns}
    used_s = 0.0
    for _ in range(PAUSES):
        began_s = own_s()
        group.recv(message.shape, message.dtype, 0, out=message)
        wake_ns.append(time.monotonic_ns())
        used_s += own_s() - began_s
        os.read(read_end, message.nbytes)
        bare_ns.append(time.monotonic_ns())
    cpu_pct = 100 * used_s / (PAUSES * PAUSE_S)
    return {"wake_ns": wake_ns, "bare_ns": bare_ns, "cpu_pct": cpu_pct}


def main(arguments: Sequence[str]) -> None:
    """Be a rank, and tell."""
    told = be_a_rank(arguments[0])
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
