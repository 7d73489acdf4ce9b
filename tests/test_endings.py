"""The table of docs/design/endings.md, by real runs: who ends how, and with which status.

What needs a network of its own (a link, a host) is in tests/network; the table there says where.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from standfast import exits
from tests.started.job import SIZE, StartedJob

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
# The launcher's SIGTERM wakes it. It ends by that, or by what its peers decided about it meanwhile.
FROZEN = (143, exits.RETRY)
LIMITS = {"STANDFAST_SILENCE_S": "1"}


class Row(NamedTuple):
    """Who gets which signal; what the others raise, and what rank and launcher end with."""

    victim: int
    number: signal.Signals
    error: str
    rank_statuses: tuple[int, ...]
    launcher_status: int


ROWS = [
    Row(0, signal.SIGKILL, "PeerDied", (137,), 137),
    Row(2, signal.SIGKILL, "PeerDied", (137,), 137),
    Row(0, signal.SIGTERM, "PeerLeft", (143,), 143),
    Row(2, signal.SIGTERM, "PeerLeft", (143,), 143),
    Row(0, signal.SIGSTOP, "PeerStalled", FROZEN, exits.RETRY),
    Row(2, signal.SIGSTOP, "PeerStalled", FROZEN, exits.RETRY),
]


def launched(folder: Path) -> StartedJob:
    words = ["-n", str(SIZE), "--json", "--grace-s", "3", "--kill-after-s", "1", "--"]
    launcher = [sys.executable, "-m", "standfast", "run", *words]
    return StartedJob(
        folder, python=sys.executable, launcher=launcher, shell=False, environment=LIMITS
    )


def report_of(job: StartedJob) -> list[dict[str, Any]]:
    """Return what the launcher says of each rank of its one generation."""
    line = next(line for line in job.log.read_text().splitlines() if line.startswith("{"))
    (generation,) = json.loads(line)["generations"]
    ranks: list[dict[str, Any]] = generation["ranks"]
    return ranks


def status_of(rank: dict[str, Any]) -> int:
    """Return an exit status as a shell would show it."""
    number = rank["signal"]
    if number is None:
        return int(rank["exit_code"])
    return exits.SIGNAL_BASE + (number if isinstance(number, int) else signal.Signals[number])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"rank {row.victim} {row.number.name}")
def test_a_rank_is_lost(row: Row, tmp_path: Path) -> None:
    """All others raise the stated error about it and end with 75; the launcher tells its cause."""
    with launched(tmp_path) as job:
        pids = job.formed(1)
        os.kill(pids[row.victim], row.number)
        assert job.wait() == row.launcher_status, job.story()
        for rank, ended in enumerate(report_of(job)):
            if rank == row.victim:
                assert status_of(ended) in row.rank_statuses, job.story()
                continue
            assert status_of(ended) == exits.RETRY, job.story()
            end = json.loads((job.records / f"1-{rank}.end").read_text())
            assert (end["type"], end["rank"]) == (row.error, row.victim), end
        job.gone(pids.values())


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_the_launcher_is_lost(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """No rank outlives it by 5 s; told to end, it tells its ranks and ends with 128+n."""
    with launched(tmp_path) as job:
        pids = job.formed(1)
        os.kill(job.launcher.pid, number)
        assert job.wait() == status, job.story()
        job.gone(pids.values())
