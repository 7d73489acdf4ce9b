"""The program of one rank of guard_cost.py: times all_sum as a caller sees it, prints nanoseconds.

Arguments: the bytes of the array, and how many seconds to measure for, roughly.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import standfast


def main() -> None:
    """Run blocks of calls, as many on each rank; rank 0 prints the first decile of their averages.

    Other work only adds to a time, and a run of a few milliseconds may have both ranks on one core.
    """
    size, seconds = int(sys.argv[1]), float(sys.argv[2])
    given = np.ones(max(1, size // 4), np.float32)
    taken = np.empty_like(given)
    calls = min(500, max(3, (8 << 20) // (size + 4096)))
    blocks = max(5, int(seconds / (calls * (5e-7 + size / 3e9))))
    spans = []
    with standfast.init() as group:
        for _ in range(blocks):
            begun = time.perf_counter_ns()
            for _ in range(calls):
                group.all_sum(given, out=taken)
            spans.append((time.perf_counter_ns() - begun) / calls)
        if group.rank == 0:
            print(f"ns {sorted(spans)[blocks // 10]:.1f}", flush=True)


if __name__ == "__main__":
    main()
