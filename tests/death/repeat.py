"""Repeats the SIGKILL tests and prints how long survivors took: `make death-repeat REPEAT=200`.

Each repetition kills one rank of four in every operation, fabric and topology; who it is, and
whether it stays away, waits or is at work, changes from one repetition to the next, so that all
positions are seen in any 12 of them. Interrupt it at any time: the table comes all the same.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.death.measures import LATENESS, MEASURES
from tests.death.operations import OPS
from tests.death.processes import Nursery
from tests.death.test_kill import FABRICS, SIZE, TOPOLOGIES, kill_away, kill_busy, kill_waiting

KINDS = (kill_away, kill_waiting, kill_busy)
SHOWN = 5
"""How many failures are shown in full."""


def turn(number: int, place: int) -> tuple[int, int]:
    """Return which rank is killed, and how, in a repetition; both differ between operations."""
    step = number + place
    return step % SIZE, step // SIZE % len(KINDS)


def repeat(count: int, seed: int) -> list[str]:
    """Run the repetitions; return what failed."""
    nursery = Nursery()
    failures: list[str] = []
    places = list(enumerate(itertools.product(OPS, FABRICS, TOPOLOGIES)))
    try:
        for number in range(count):
            random.Random(seed + number).shuffle(places)
            for place, (op, fabric, topology) in places:
                victim, kind = turn(number, place)
                try:
                    KINDS[kind](nursery, op, fabric, topology, victim)
                except Exception as error:  # noqa: BLE001 - counted and shown; the rest goes on
                    name = f"{KINDS[kind].__name__} {op} {fabric} {topology} rank {victim}"
                    failures.append(f"repetition {number}, {name}: {error}")
                    if len(failures) <= SHOWN:
                        print(failures[-1], flush=True)
            print(f"repetition {number + 1} of {count}: {len(failures)} failures", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        nursery.close()
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=200, help="number of repetitions")
    parser.add_argument("--seed", type=int, default=None, help="of the order of cases")
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    began = time.monotonic()
    failures = repeat(arguments.count, seed)
    merge_topologies()
    print("\n".join(MEASURES.table()))
    took_s, worst_ms = time.monotonic() - began, LATENESS.worst * 1e3
    print(f"{took_s:.0f} s, seed {seed}; this machine was up to {worst_ms:.0f} ms late")
    print(f"{len(failures)} failures" if failures else "no failure")
    return 1 if failures else 0


def merge_topologies() -> None:
    """Add a line for each fabric and topology over all operations, and one for everything."""
    for label, seconds in list(MEASURES.seconds.items()):
        fabric, topology = label.split()[-2:]
        for total in (f"~ all {fabric} {topology}", "~ all"):
            MEASURES.seconds[total].extend(seconds)


if __name__ == "__main__":
    sys.exit(main())
