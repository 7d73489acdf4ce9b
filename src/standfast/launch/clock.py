"""The launcher's clock: the one that ranks stamp their reports with."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return CLOCK_MONOTONIC nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
