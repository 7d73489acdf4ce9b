"""How busy this machine is: measuring waits for quiet, noisy results are told apart."""

from __future__ import annotations

import time
from pathlib import Path

QUIET = 0.06  # share of all cores


def ticks() -> tuple[int, int]:
    """Return all clock ticks of all cores since boot, and the busy ones among them."""
    values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(values), sum(values) - values[3] - values[4]


def wait_until_quiet(patience_s: float) -> float:
    """Wait until the machine is quiet, or the patience is at an end; return its busy share."""
    end = time.monotonic() + patience_s
    while True:
        all_before, busy_before = ticks()
        time.sleep(1.5)
        all_after, busy_after = ticks()
        busy = (busy_after - busy_before) / max(1, all_after - all_before)
        if busy < QUIET or time.monotonic() > end:
            return busy
