"""A short storm, its plan, and its judge. `make chaos` has the long one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.plan import (
    BLOWS_MAX,
    Blow,
    Kind,
    Moment,
    Victim,
    allowed_statuses,
    chosen,
    job_of,
    may_stay,
)
from tests.chaos.world import enter_command
from tests.network.conftest import skip_or_fail

STORM = Path(__file__).parent / "storm.py"
ROOT = STORM.parents[2]
KILLS = int(os.environ.get("STANDFAST_TEST_KILLS", "24"))
STORM_S = 390.0

JUDGE = """
import os, socket, subprocess, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.chaos import world
world.furnish()
with tempfile.TemporaryDirectory() as place:
    left = {act}
    print([each.split()[0] for each in world.traces_after(0.2, Path(place))])
"""
ACTS = {
    "process": "subprocess.Popen(['sleep', '60'])",
    "port": "socket.create_server(('127.0.0.1', 0))",
    "segment": "open('/dev/shm/sf-1-0', 'w')",
    "file": "os.mkdir(os.path.join(place, 'standfast-1-0'))",
}


def run_as_root(words: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program that makes a world; skip where none can be made."""
    if sys.platform != "linux" or os.geteuid() != 0:
        skip_or_fail(PermissionError(f"this is {sys.platform}, user {os.geteuid()}"))
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s)


@pytest.mark.timeout(STORM_S + 10)
def test_a_short_storm() -> None:
    """Whatever is killed, whenever: a documented end, right results or none, and nothing left."""
    done = run_as_root([sys.executable, str(STORM), "--kills", str(KILLS)], STORM_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) blows in (\d+) jobs, 0 jobs with complaints", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= KILLS


@pytest.mark.parametrize("what", ["nothing", *ACTS])
def test_what_is_left_is_seen(what: str) -> None:
    """A process, a port, a segment, a directory: each is noticed, and nothing else is."""
    code = JUDGE.format(act=ACTS.get(what, "None"))
    done = run_as_root(enter_command([sys.executable, "-c", code, str(ROOT)]), 60.0)
    assert done.stdout.strip() == str([] if what == "nothing" else [what]), done.stderr


def test_the_plan_is_its_seed() -> None:
    """The same seed and number give the same job; all kinds and moments come up."""
    jobs = [job_of(7, number, BLOWS_MAX) for number in range(60)]
    assert jobs == [job_of(7, number, BLOWS_MAX) for number in range(60)]
    assert jobs != [job_of(8, number, BLOWS_MAX) for number in range(60)]
    blows = [blow for job in jobs for blow in job.blows]
    assert {job.kind for job in jobs} == set(Kind)
    assert {blow.moment for blow in blows} == set(Moment)
    assert {blow.victim for blow in blows} == set(Victim)


@pytest.mark.parametrize(
    ("wanted", "hit"),
    [
        (Victim.FIRST, (Victim.FIRST, 10)),
        (Victim.RANK, (Victim.RANK, 12)),
        (Victim.LAUNCHER, (Victim.LAUNCHER, 1)),
        (Victim.AGENT, (Victim.RANK, 12)),
    ],
)
def test_whom_a_blow_hits(wanted: Victim, hit: tuple[Victim, int]) -> None:
    """The victim that is wanted, or a rank where there is none."""
    blow = Blow(Moment.RUN, 0.0, wanted, signal.SIGKILL, 0.0, lot=0.99)
    living = {Victim.LAUNCHER: [1], Victim.RANK: [10, 11, 12]}
    assert chosen(blow, living) == hit
    assert chosen(blow, {}) is None


def test_which_ends_are_allowed() -> None:
    """A job whose launcher was not hit has to end well."""
    assert allowed_statuses({(Victim.RANK, signal.SIGKILL)}) == {0}
    assert -signal.SIGKILL in allowed_statuses({(Victim.LAUNCHER, signal.SIGKILL)})
    assert 143 in allowed_statuses({(Victim.LAUNCHER, signal.SIGTERM)})


@pytest.mark.parametrize("unguarded", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_which_directory_may_stay(unguarded: bool, empty: bool) -> None:
    """That of somebody who was killed, where its guardian was killed, too, or not there yet."""
    assert may_stay(killed=True, unguarded=unguarded, empty=empty) == (unguarded or empty)
    assert not may_stay(killed=False, unguarded=unguarded, empty=empty)
