"""One measured rank, of any library: times each cell, checks it, and rank 0 tells the results.

As a program, `python -m standfast.bench.rank JOB`, it is started by jobs.py or by a library's own
launcher; a line of stdout that begins with MARK is for jobs.py. In other libraries' processes this
module, adapters, data and plan are all that is loaded of standfast.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from standfast.bench import data, machine
from standfast.bench.adapters import ADAPTERS, Adapter, Call, Work
from standfast.bench.plan import Cell, from_dict, to_dict

MARK = "standfast-bench:"
CALLS_MIN, CALLS_MAX = 8, 50_000
PROBES = 7
WARM_UP_SHARE = 20
Result = dict[str, Any]
Tell = Callable[[Result], None]


@dataclass(frozen=True)
class How:
    """How to measure a cell.

    calls: timed calls, or None: as many as fit into budget_s. warm_up: calls before those, or None:
    a twentieth of them. check: count wrong elements. again: how often a cell is repeated in which
    other work took more than noise_max_pct of one core.
    """

    calls: int | None = None
    warm_up: int | None = None
    budget_s: float = 0.3
    check: bool = True
    again: int = 3
    noise_max_pct: float = 15.0


def measure_all(adapter: Adapter, cells: Sequence[Cell], how: How, tell: Tell) -> None:
    """Measure cells one after the other; rank 0 tells each result when it has it."""
    for cell in cells:
        result = measure_cell(adapter, cell, how)
        adapter.total(np.ones(1, np.float32))  # nobody is still in the last cell
        if adapter.rank == 0:
            tell(
                to_dict(cell) | {"ranks": adapter.size, "count": cell.count(adapter.size)} | result
            )


def measure_cell(adapter: Adapter, cell: Cell, how: How) -> Result:
    """Measure one operation, or say why that was not possible.

    Raises:
        Exception: what our own library raises. Another library's error is this cell's result.
    """
    try:
        work = adapter.prepare(cell)
        if work is None:
            return {"error": "not offered"}
        if cell.in_place and cell.operation.reduces:
            data.still(work.source, cell)
        elif len(work.source):
            data.fill(work.source, data.row(cell, adapter.rank, adapter.size))
        work.load()
        if not adapter.is_ours:
            work.call()
    except Exception as error:
        if adapter.is_ours:
            raise
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    calls = how.calls or _agreed_calls(adapter, work.call, how.budget_s)
    best: Result = {}
    for _ in range(1 + how.again):
        times, noise = _timed(adapter, work, calls, how.warm_up)
        result = _summary(times / work.calls_per_time, calls) | noise
        if not best or _noise(result) < _noise(best):
            best = result
        if not _agreed(adapter, _noise(best) > how.noise_max_pct):
            break
    return best | ({"wrong": _checked(adapter, work, cell)} if how.check else {"wrong": None})


def _noise(result: Result) -> float:
    return float(result["foreign_pct"] or 0.0)


def _agreed(adapter: Adapter, opinion: bool) -> bool:
    """Return rank 0's opinion, on all ranks."""
    return bool(adapter.total(np.array([opinion * (adapter.rank == 0)], np.float32))[0])


def _agreed_calls(adapter: Adapter, call: Call, budget_s: float) -> int:
    """Return how many calls fill the budget; rank 0 decides, so that all make the same number.

    By the median of some calls, and then of a twentieth of as many as that lets expect: the first
    ones fault pages in, wait for ranks that come late, and find them not yet spread over the cores.
    """
    calls = PROBES
    for _ in range(2):
        found = _calls_within(adapter, call, budget_s, probes=calls)
        calls = max(PROBES, found // WARM_UP_SHARE)
    return found


def _calls_within(adapter: Adapter, call: Call, budget_s: float, *, probes: int) -> int:
    """Return how many calls as rank 0's median of some fill the budget, on all ranks."""
    times = []
    for _ in range(probes):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    each_s = statistics.median(times)
    calls = min(CALLS_MAX, max(CALLS_MIN, int(budget_s / max(each_s, 1e-7))))
    return round(float(adapter.total(np.array([calls * (adapter.rank == 0)], np.float32))[0]))


def _timed(
    adapter: Adapter, work: Work, calls: int, warm_up: int | None
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Result]:
    """Time each of `calls` calls in a row, in microseconds, and what else the cores did."""
    call, clock = work.call, time.perf_counter
    for _ in range(max(2, calls // WARM_UP_SHARE) if warm_up is None else warm_up):
        call()
    times = np.empty(calls)
    busy, own, began = machine.busy_s(), machine.own_s(), clock()
    for i in range(calls):
        begin = clock()
        call()
        times[i] = clock() - begin
    wall_s, own_s, busy_after = clock() - began, machine.own_s() - own, machine.busy_s()
    own_all_s = float(adapter.total(np.array([own_s], np.float32))[0])
    if busy is None or busy_after is None:
        return times * 1e6, {"own_pct": None, "foreign_pct": None}
    foreign_s = max(0.0, busy_after - busy - own_all_s)
    return times * 1e6, {
        "own_pct": 100 * own_all_s / wall_s,
        "foreign_pct": 100 * foreign_s / wall_s,
    }


def _summary(times: np.ndarray[Any, np.dtype[np.float64]], calls: int) -> Result:
    return {
        "calls": calls,
        "min_us": float(times.min()),
        "median_us": float(np.median(times)),
        "mean_us": float(times.mean()),
        "p99_us": float(np.percentile(times, 99)),
    }


def _checked(adapter: Adapter, work: Work, cell: Cell) -> int | None:
    """Run the operation once more on fresh data; return the wrong elements of all ranks.

    The number is exact up to 2**24: it travels as float32.
    """
    if not cell.operation.sized:
        return None
    if len(work.source):
        data.fill(work.source, data.row(cell, adapter.rank, adapter.size))
    work.load()
    work.call()
    found = data.count_wrong(work.result(), cell, adapter.rank, adapter.size)
    return math.ceil(float(adapter.total(np.array([found], np.float32))[0]))


def say(result: Mapping[str, Any]) -> None:
    """Write a result as a line for jobs.py."""
    sys.stdout.write(f"{MARK}{json.dumps(result)}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Be a rank of the job that the argument describes."""
    job = json.loads(arguments[0])
    rank = int(arguments[1]) if len(arguments) > 1 else 0
    adapter = ADAPTERS[job["adapter"]](rank, job["ranks"], job["init"])
    adapter.join()
    if adapter.size != job["ranks"]:
        raise SystemExit(f"{adapter.size} ranks have joined, not {job['ranks']}")
    measure_all(adapter, [from_dict(each) for each in job["cells"]], How(**job["how"]), say)
    adapter.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
