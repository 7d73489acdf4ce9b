"""How long things took, and how late the machine itself was meanwhile."""

from __future__ import annotations

import collections
import statistics
import threading
import time

from tests.death.nursery import now_ns

SECOND = 1e9


class Measures:
    """Detection times by label, for the summary."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)

    def add(self, label: str, seconds: float) -> None:
        self.seconds[label].append(seconds)

    def table(self) -> list[str]:
        """Return lines: label, count, median, p99, worst."""
        width = max((len(label) for label in self.seconds), default=0)
        lines = [f"{'':{width}}  {'n':>6}  {'median':>9}  {'p99':>9}  {'worst':>9}"]
        for label in sorted(self.seconds):
            found = sorted(self.seconds[label])
            p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
            numbers = [statistics.median(found), p99, found[-1]]
            texts = "  ".join(f"{number * 1e3:6.1f} ms" for number in numbers)
            lines.append(f"{label:{width}}  {len(found):6}  {texts}")
        return lines


MEASURES = Measures()


class Lateness:
    """Measures how late this machine is: a thread that wants to run each 10 ms."""

    STEP_S = 0.01
    KEPT = 6000

    def __init__(self) -> None:
        self.worst = 0.0
        self._seen: collections.deque[tuple[int, float]] = collections.deque(maxlen=self.KEPT)
        threading.Thread(target=self._run, name="lateness", daemon=True).start()

    def _run(self) -> None:
        while True:
            before = now_ns()
            time.sleep(self.STEP_S)
            after = now_ns()
            late = (after - before) / SECOND - self.STEP_S
            self.worst = max(self.worst, late)
            self._seen.append((after, late))

    def worst_since(self, ns: int) -> float:
        """Return the longest that a wake-up was late since then, in seconds."""
        return max((late for at, late in list(self._seen) if at >= ns), default=0.0)


LATENESS = Lateness()
LATENESS_NORMAL_S = 0.1
LATENESS_WEIGHT = 5


def allowance_s(since_ns: int) -> float:
    """Return what a limit may be exceeded by: nothing, unless the machine itself stands still.

    A death takes a handful of wake-ups, one after the other: killer, kernel, two watches, waiter.
    """
    late = LATENESS.worst_since(since_ns)
    return LATENESS_WEIGHT * late if late > LATENESS_NORMAL_S else 0.0
