"""The program of one rank of guard_cost.py: times all_sum as a caller sees it, prints nanoseconds.

Arguments: the bytes of the array, and how many seconds to measure for, roughly.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

import standfast


def main() -> None:
    """Run blocks of calls, as many on each rank; rank 0 prints the median of their averages."""
    size, seconds = int(sys.argv[1]), float(sys.argv[2])
    given = np.ones(max(1, size // 4), np.float32)
    taken = np.empty_like(given)
    calls = min(500, max(3, (8 << 20) // (size + 4096)))
    spans = []
    with standfast.init() as group:
        for _ in range(max(5, int(seconds * 200))):
            begun = time.perf_counter_ns()
            for _ in range(calls):
                group.all_sum(given, out=taken)
            spans.append((time.perf_counter_ns() - begun) / calls)
        if group.rank == 0:
            print(f"ns {statistics.median(spans):.1f}", flush=True)


if __name__ == "__main__":
    main()
