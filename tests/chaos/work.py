"""The rank of a job in the storm: adds up until it may end, and tells the sum. Run as a program.

Arguments: the directory where "enough" appears, and where locks are; "reforming" if survivors form
the group again in process. What it prints can be checked by whoever knows the number of steps.
"""

from __future__ import annotations

import array
import fcntl
import os
import sys
from pathlib import Path

import standfast

LENGTH = 20_000
"""Elements: more than one frame."""


def main(place: Path, *, reforming: bool) -> None:
    hold_alone(place / f"lock-{os.environ['STANDFAST_RANK']}", place / "two-at-once")
    group = standfast.init()
    while True:
        try:
            work(group, place)
            group.close()
            return
        except standfast.StandfastError:
            if not reforming or group.size <= 2:
                raise
            group = group.reform(min_size=2)


def hold_alone(lock: Path, two: Path) -> None:
    """Tell if another process is this rank at the same time."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        two.touch()


def work(group: standfast.Group, place: Path) -> None:
    """Add up until rank 0 sees that it is enough; the ranks learn it in the same step."""
    total, steps, enough = 0.0, 0, 0.0
    while not enough:
        steps += 1
        mine = array.array("d", [float(steps * (group.rank + 1))]) * LENGTH
        summed = group.all_sum(mine)
        if min(summed) != max(summed):
            raise AssertionError(f"elements differ: {min(summed)} {max(summed)}")
        total += summed[0]
        enough = group.all_sum(float(group.rank == 0 and (place / "enough").exists()))
    # On the screen at once: whoever is killed from now on has told it.
    print(f"result {group.generation} {group.rank} {group.size} {steps} {total:.0f}", flush=True)
    (place / f"done-{group.generation}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), reforming="reforming" in sys.argv[2:])
