"""Stock MLX ring, Gloo and MPI jobs of three ranks: one is killed, one is frozen.

Left alone they hang, or end without saying who was lost. With the watch, in the program or outside
of it, every survivor ends with status 75 and the lost rank's name, in the stated time.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.death.measures import allowance_s
from tests.death.nursery import now_ns
from tests.foreign.job import SILENCE_S, VICTIM, ForeignJob, missing

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="harm is verified in /proc"),
    pytest.mark.timeout(180),
]

LIBRARIES = ("mlx", "gloo", "mpi")
ALONE_S = 5.0
NAMED = f"rank {VICTIM} on "
# A death is known within milliseconds, and without abort hooks the process ends at once.
DEATH_S = 1.0
# The limit is the silence limit; the verdict comes within one beat and a half after it.
FREEZE_S = SILENCE_S + 1.5


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """Each library that is installed."""
    name: str = request.param
    reason = missing(name)
    if reason is not None:
        pytest.skip(reason)
    return name


def test_alone_a_death_names_nobody(library: str, tmp_path: Path) -> None:
    """Without the watch: 5 s after a SIGKILL survivors still wait, or have ended unclearly."""
    with ForeignJob(library, "alone", tmp_path) as job:
        job.harm(signal.SIGKILL)
        for survivor in job.survivors(ALONE_S):
            assert survivor.status != 75, survivor
            assert NAMED not in survivor.text, survivor
            if library == "mpi":
                assert survivor.status is None, survivor


def test_alone_a_freeze_is_waited_for(library: str, tmp_path: Path) -> None:
    """Without the watch: all wait for a frozen rank, and no limit is in sight after 5 s."""
    with ForeignJob(library, "alone", tmp_path) as job:
        job.harm(signal.SIGSTOP)
        assert all(survivor.status is None for survivor in job.survivors(ALONE_S))
        assert job.is_stuck(0.5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_watched_from_inside(library: str, number: signal.Signals, tmp_path: Path) -> None:
    """With standfast.watch(): every survivor ends with 75 and names the lost rank, in time."""
    with ForeignJob(library, "inside", tmp_path) as job:
        harmed_ns = now_ns()
        job.harm(number)
        limit_s = DEATH_S if number is signal.SIGKILL else FREEZE_S
        kind = "died" if number is signal.SIGKILL else "stalled"
        for survivor in job.survivors(limit_s + 10.0):
            assert survivor.status == 75, f"{survivor}\n{job.story()}"
            assert NAMED in survivor.text, survivor
            assert kind in survivor.text, survivor
            assert survivor.seconds < limit_s + allowance_s(harmed_ns), survivor


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_watched_from_outside(library: str, number: signal.Signals, tmp_path: Path) -> None:
    """With `standfast run --watch`: the same, of a program that has no line of ours."""
    if library == "mpi":
        pytest.skip("mpirun starts its ranks itself: they call standfast.watch()")
    with ForeignJob(library, "outside", tmp_path) as job:
        harmed_ns = now_ns()
        job.harm(number)
        report = job.launcher_report()
        took_s = (now_ns() - harmed_ns) / 1e9
        generations = report["generations"]
        assert isinstance(generations, list)
        ranks = generations[0]["ranks"]
        assert generations[0]["first"] == VICTIM, report
        for rank in (0, 2):
            assert ranks[rank]["exit_code"] == 75, report
            assert NAMED in job.text(rank), job.story()
        limit_s = DEATH_S if number is signal.SIGKILL else FREEZE_S
        # SIGTERM, and up to a second later SIGKILL, for ranks that sit in their library; then the
        # launcher sees to it that nothing is left.
        assert took_s < limit_s + 2.5 + allowance_s(harmed_ns), report
