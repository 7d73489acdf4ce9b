"""Ranks that form their group again by themselves, with `group.reform()`, under the launcher."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.launch.support import Ended, run

SURVIVE = """
import os, signal, sys, time
import standfast
group = standfast.init()
try:
    while True:
        group.barrier()
        if group.rank == 2 and '"ready"' in open(sys.argv[2]).read():
            os.kill(os.getpid(), signal.SIGKILL)
except standfast.PeerDied:
    group = group.reform(min_size=2)
for _ in range(100):  # for longer than the grace, and SIGTERM after it
    group.barrier()
    time.sleep(0.02)
print(f"rank {group.rank} of {group.size}", flush=True)
group.close()
sys.exit(int(sys.argv[1]))
"""


def run_survivors(events: Path, status: str) -> Ended:
    """Run four ranks, of which one is killed when the group is ready, and the others go on."""
    options = ["-n", "4", "--grace-s", "0.5", "--events", str(events)]
    return run(options, [sys.executable, "-c", SURVIVE, status, str(events)])


def test_survivors_go_on(tmp_path: Path) -> None:
    """They are not stopped for the rank that was lost, and their end is the job's."""
    ended = run_survivors(tmp_path / "events", "0")
    assert ended.status == 0, ended.err
    assert sorted(line.split("] ")[1] for line in ended.out.splitlines()) == [
        f"rank {rank} of 3" for rank in range(3)
    ]
    assert "standfast: ranks 0, 1, 3 form their group again without 2" in ended.block
    told = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [each["event"] for each in told] == [
        *("started", "ready", "peer_lost", "ready", "finished"),
    ]
    assert (told[2]["rank"], told[3]["size"], told[3]["group_generation"]) == (2, 3, 2)


def test_their_end_is_the_jobs(tmp_path: Path) -> None:
    """What they end with counts, not what the lost rank ended with."""
    ended = run_survivors(tmp_path / "events", "7")
    assert ended.status == 7, ended.err
    assert "rank 2" not in ended.block[-2]
