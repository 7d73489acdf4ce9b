"""Measures how long survivors take to raise after a SIGKILL: `python tests/death/measure.py 200`.

Each kill is one of four ranks, in the next operation, fabric and topology; who it is and whether it
stays away, waits or is at work changes from kill to kill. The table has a line per operation, and
one for all survivors of all kills. Meant for a machine that does nothing else: it tells how late
that was.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.death.measures import LATENESS, MEASURES
from tests.death.operations import OPS
from tests.death.processes import Nursery
from tests.death.repeat import KINDS
from tests.death.test_kill import FABRICS, SIZE, TOPOLOGIES

MEDIAN_MS = 5.0
WORST_MS = 50.0


def kill(kills: int) -> None:
    """Kill so often; each detection time is in MEASURES afterwards."""
    nursery = Nursery()
    places = itertools.cycle(itertools.product(FABRICS, TOPOLOGIES, OPS))
    try:
        for number in range(kills):
            fabric, topology, op = next(places)
            # Both change within an operation, too, which comes again after len(OPS) kills.
            turn = number + number // len(OPS)
            KINDS[turn % len(KINDS)](nursery, op, fabric, topology, turn // len(KINDS) % SIZE)
    finally:
        nursery.close()


def merged() -> list[float]:
    """Make the table's lines one per operation; return all times in ms."""
    everything = list(MEASURES.seconds.items())
    MEASURES.seconds.clear()
    for label, seconds in everything:
        MEASURES.seconds[" ".join(label.split()[:-2])].extend(seconds)
    return [second * 1e3 for _, seconds in everything for second in seconds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=200, help="how many")
    kills = parser.parse_args().kills
    kill(kills)
    times = merged()
    print("\n".join(MEASURES.table()))
    median, worst = statistics.median(times), max(times)
    print(f"{kills} kills, {len(times)} survivors: median {median:.2f} ms, worst {worst:.1f} ms")
    print(f"this machine was up to {LATENESS.worst * 1e3:.1f} ms late")
    good = median < MEDIAN_MS and worst < WORST_MS
    print(f"{'as' if good else 'NOT as'} aimed at: median {MEDIAN_MS} ms, worst {WORST_MS} ms")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
