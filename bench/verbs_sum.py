"""all_sum over emulated RDMA: ours beside the independent JACCL rank of the tests, in one run.

    make dev && PYTHONPATH=src .venv/bin/python bench/verbs_sum.py [--mib 16] [--calls 15] [--ring]

Two ranks on two emulated Macs; both libraries have a group in the same two processes and take
turns, so that other work on the machine meets both. The independent rank is Python and NumPy
(tests/emulator/jaccl_rank.py); its sends, receives and additions are native calls, as ours are.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import standfast
from standfast.testing.emulator import Emulator
from standfast.testing.topology import mesh
from tests.emulator import jaccl_rank

WARM_UP = 3


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def timed_s(call: Callable[[], Any], barrier: Callable[[], None]) -> float:
    """Return how long a call takes, begun by all ranks at once."""
    barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def be_a_rank(mib: int, calls: int, coordinator: str) -> None:
    """Time both libraries; rank 0 prints medians and quartiles."""
    rank = int(os.environ["JACCL_RANK"])
    theirs, _channel = jaccl_rank.join(os.environ, large=True, depth=2)
    x = np.arange(mib << 18, dtype=np.int32) + rank
    wanted = 2 * np.arange(mib << 18, dtype=np.int32) + 1
    with standfast.init(
        rank=rank,
        size=2,
        coordinator=coordinator,
        fabric="verbs",
        topology="ring" if "JACCL_RING" in os.environ else "mesh",
        devices=os.environ["JACCL_IBV_DEVICES"],
    ) as ours:
        out = np.empty_like(x)
        runs: dict[str, tuple[Callable[[], Any], list[float]]] = {
            "standfast": (lambda: ours.all_sum(x, out=out), []),
            "independent rank": (lambda: theirs.all_reduce(x, np.add), []),
        }
        for call, _ in runs.values():
            if not np.array_equal(call(), wanted):
                raise SystemExit("the sum over all ranks is wrong")
        for turn in range(WARM_UP + calls):
            for call, times in runs.values():
                took_s = timed_s(call, ours.barrier)
                if turn >= WARM_UP:
                    times.append(took_s)
    if rank == 0:
        for name, (_, times) in runs.items():
            low, middle, high = (1e3 * each for each in statistics.quantiles(times))
            print(f"{name}: {middle:.1f} ms ({low:.1f} to {high:.1f}), best {1e3 * min(times):.1f}")


def main() -> int:
    """Start two ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--ring", action="store_true")
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.coordinator:
        be_a_rank(asked.mib, asked.calls, asked.coordinator)
        return 0
    more = ["--coordinator", f"127.0.0.1:{free_port()}"]
    with Emulator(mesh(2)) as fabric:
        started = []
        side_channel = f"127.0.0.1:{free_port()}"
        for rank, host in enumerate(fabric.topology.hosts):
            environment = fabric.environment(host, os.environ)
            environment |= fabric.jaccl_environment(rank, side_channel)
            environment |= {"STANDFAST_RDMA_LIBRARY": "librdma.dylib"}
            environment |= {"JACCL_RING": "1"} if asked.ring else {}
            command = [sys.executable, __file__, *sys.argv[1:], *more]
            started.append(subprocess.Popen(command, env=environment))
        return max(abs(each.wait(300)) for each in started)


if __name__ == "__main__":
    sys.exit(main())
