"""Random kills of anything that belongs to a job, at random moments: `make chaos KILLS=1000`.

Runs jobs, one after another, in a world of its own, until so many blows have struck; prints what
was struck, and what was wrong. The same seed plans the same blows, though not to the microsecond.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.chaos import world
from tests.chaos.drive import Outcome, Run
from tests.chaos.plan import job_of

SHOWN = 5
"""How many complaints about a job are shown."""


def storm(seed: int, kills: int, first: int, limit_s: float, folder: Path) -> list[Outcome]:
    """Run jobs until so many blows have struck, or the time is up."""
    outcomes: list[Outcome] = []
    end_s = time.monotonic() + limit_s
    left = kills
    while left > 0 and time.monotonic() < end_s:
        job = job_of(seed, first + len(outcomes), left)
        place = folder / f"job-{job.number}"
        outcome = Run(job, place).through()
        outcomes.append(outcome)
        left -= len(outcome.struck)
        shutil.rmtree(place)
        tell(outcome)
    return outcomes


def tell(outcome: Outcome) -> None:
    """Print what was wrong with a job, if anything was."""
    if outcome.complaints:
        texts = "\n  ".join(outcome.complaints[:SHOWN])
        print(f"--- {outcome.job}\n  {texts}\n{outcome.story}", flush=True)


def report(outcomes: list[Outcome]) -> int:
    """Print the figures; return the exit status."""
    struck = [each for outcome in outcomes for each in outcome.struck]
    counted = {
        "moments": collections.Counter(str(moment) for moment, _, _ in struck),
        "victims": collections.Counter(str(victim) for _, victim, _ in struck),
        "signals": collections.Counter(number.name for _, _, number in struck),
    }
    for title, counts in counted.items():
        print(f"{title}:", ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    statuses = collections.Counter(outcome.status for outcome in outcomes)
    print("launchers ended with:", ", ".join(f"{k}: {n}" for k, n in sorted(statuses.items())))
    if outcomes:
        ends = sorted(outcome.ended_s for outcome in outcomes)
        median = statistics.median(ends)
        print(f"from the last blow to the end: median {median:.1f} s, worst {ends[-1]:.1f} s")
    wrong = [outcome for outcome in outcomes if outcome.complaints]
    print(f"{len(struck)} blows in {len(outcomes)} jobs, {len(wrong)} jobs with complaints")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first job")
    parser.add_argument("--limit-s", type=float, default=86400, help="start no job after this")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        words = [sys.executable, __file__, "--inside", "--kills", str(given.kills)]
        words += ["--seed", str(given.seed), "--first", str(given.first)]
        words += ["--limit-s", str(given.limit_s)]
        command = world.enter_command(words)
        os.execvp(command[0], command)  # so that whoever ends this ends the world
    # Process 1 of a world is deaf to what it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    world.furnish()
    print(f"seed {given.seed}, from job {given.first}", flush=True)
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        outcomes = storm(given.seed, given.kills, given.first, given.limit_s, Path(folder))
    return report(outcomes)


if __name__ == "__main__":
    sys.exit(main())
