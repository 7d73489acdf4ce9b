"""How busy the cores are with other work: noisy measurements are told apart and repeated.

Linux counts ticks of all cores in /proc/stat; elsewhere nothing so cheap is known, and measurements
count as quiet (macOS: nobody has tried this file there).
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

QUIET = 0.06  # share of all cores
LOOK_S = 1.0
STAT = Path("/proc/stat")


def busy_s() -> float | None:
    """Return the CPU seconds all cores have worked since boot, or None where that is unknown."""
    ticks = _ticks()
    return None if ticks is None else ticks[1] / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """Return the CPU seconds this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _ticks() -> tuple[int, int] | None:
    """Return ticks of all cores since boot, and of those the busy ones."""
    try:
        line = STAT.read_text().split("\n", 1)[0]
    except OSError:
        return None
    values = [int(word) for word in line.split()[1:9]]  # later ones are in these already
    return sum(values), sum(values) - values[3] - values[4]


def wait_until_quiet(patience_s: float) -> float:
    """Wait until the cores are left alone, or patience ends; return the busy share of them."""
    end = time.monotonic() + patience_s
    while True:
        before = _ticks()
        if before is None or patience_s <= 0:
            return 0.0
        time.sleep(LOOK_S)
        after = _ticks()
        assert after is not None
        busy = (after[1] - before[1]) / max(1, after[0] - before[0])
        if busy < QUIET or time.monotonic() > end:
            return busy
