"""The program of one measured rank: times each cell of the job and writes rankN.json.

Started by launch.py, which describes the job in BENCH_JOB. Rank 0's times count; the other ranks
run the same calls. Calls follow each other without a pause, as in a training step that waits for
nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import adapters
import numpy as np

CALLS_MAX, CALLS_MIN = 3000, 8


def cpu_of_this_process_s() -> float:
    """Return the CPU seconds that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of_machine_s() -> float:
    """Return the CPU seconds that all processes of this machine have used."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def check(adapter: adapters.Adapter) -> None:
    """Refuse to time a library that adds up wrongly, or a job that has fallen apart into ones."""
    expected = adapter.size * (adapter.size + 1) / 2
    if not (adapter.total(np.full(1000, adapter.rank + 1, np.float32)) == expected).all():
        raise SystemExit("the sum over all ranks is wrong")


def agreed_calls(adapter: adapters.Adapter, call: adapters.Operation, budget_s: float) -> int:
    """Return how many calls fill the budget; rank 0 decides, so that all make the same number."""
    begin = time.perf_counter()
    for _ in range(5):
        call()
    each_s = (time.perf_counter() - begin) / 5
    calls = min(CALLS_MAX, max(CALLS_MIN, int(budget_s / max(each_s, 1e-7))))
    return int(adapter.total(np.array([calls * (adapter.rank == 0)], np.float32))[0])


def measure(adapter: adapters.Adapter, call: adapters.Operation, calls: int) -> dict[str, float]:
    """Time each of calls back-to-back calls; times in microseconds."""
    for _ in range(max(2, calls // 20)):
        call()
    times = np.empty(calls)
    own, machine, wall = cpu_of_this_process_s(), cpu_of_machine_s(), time.perf_counter()
    for i in range(calls):
        begin = time.perf_counter()
        call()
        times[i] = time.perf_counter() - begin
    times *= 1e6
    return {
        "calls": calls,
        "wall_s": time.perf_counter() - wall,
        "own_cpu_s": cpu_of_this_process_s() - own,
        "machine_cpu_s": cpu_of_machine_s() - machine,
        "min_us": float(times.min()),
        "median_us": float(np.median(times)),
        "mean_us": float(times.mean()),
        "p99_us": float(np.percentile(times, 99)),
    }


def run_cell(adapter: adapters.Adapter, name: str, nbytes: int, budget_s: float) -> dict[str, Any]:
    """Measure one operation at one size, or say why that was not possible."""
    cell: dict[str, Any] = {"op": name, "bytes": nbytes}
    try:
        call = adapter.operation(name, nbytes)
        if call is None:
            return cell | {"error": "not offered"}
        for _ in range(3):
            call()
    except Exception as error:  # noqa: BLE001  what the library raises is the cell's result
        return cell | {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    cell |= measure(adapter, call, agreed_calls(adapter, call, budget_s))
    if name == "pingpong":
        for key in ("min_us", "median_us", "mean_us", "p99_us"):
            cell[key] /= 2  # a message's way in one direction
    return cell


def main() -> None:
    """Join, check, measure every cell, write."""
    job = json.loads(os.environ["BENCH_JOB"])
    adapter = adapters.make(job["adapter"], job["size"])
    adapter.join()
    check(adapter)
    results = []
    for name, nbytes in job["cells"]:
        results.append(run_cell(adapter, name, nbytes, job["budget_s"]))
        adapter.total(np.ones(8, np.float32))
    Path(job["folder"], f"rank{adapter.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
