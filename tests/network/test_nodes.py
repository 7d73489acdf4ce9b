"""A launcher on each of two hosts with networks of their own, and the cable between them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.support import LAUNCHER, launcher_environment, lives
from tests.network.conftest import skip_or_fail
from tests.network.faults import Faults
from tests.network.hosts import CONTROL, Hosts, address_of
from tests.network.namespaces import CommandFailed

PORT = 29433
LIMIT_S = 60.0
PROGRAM = """
import os, sys, time, standfast
group = standfast.init()
print(group.rank, int(group.all_sum(1.0)), flush=True)
with open(f"{sys.argv[1]}/rank{group.rank}-gen{group.generation}", "w") as file:
    print(os.getpid(), file=file, flush=True)
if len(sys.argv) == 2:
    sys.exit(0)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Faults]:
    """Two hosts, and what breaks them."""
    try:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise PermissionError(f"this is {sys.platform}, user {os.geteuid()}")
        hosts = Hosts(2)
    except (OSError, CommandFailed) as error:
        skip_or_fail(error)
    with hosts:
        yield Faults(hosts)


def start(two: Faults, place: Path, *words: str) -> list[subprocess.Popen[str]]:
    """Start a launcher on each host, with two ranks."""
    found = []
    for node in (1, 0):
        command = ["nsenter", f"--net={two.hosts.members[node].path}", *LAUNCHER, "run", "-n", "2"]
        command += ["--nnodes", "2", "--node-rank", str(node), "--grace-s", "1"]
        command += ["--coordinator", f"{address_of(0, CONTROL)}:{PORT}", "--"]
        found.append(
            subprocess.Popen(
                [*command, sys.executable, "-c", PROGRAM, str(place), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=launcher_environment({"STANDFAST_SILENCE_S": "30"}),
            )
        )
    return found[::-1]


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait for something, but not for ever."""
    end_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.02)


def ends(launchers: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return status, stdout and stderr of each; end those that do not end by themselves."""
    found = []
    for each in launchers:
        try:
            out, err = each.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            each.kill()
            out, err = each.communicate()
        found.append((each.returncode, out, err))
    return found


def test_ranks_meet_at_the_address_of_node_0(two: Faults, tmp_path: Path) -> None:
    """Node 0's address is that at which the other node has reached it: no name, no loopback."""
    first, second = ends(start(two, tmp_path))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    told = sorted(line.split("] ")[1] for line in first[1].splitlines())
    assert told == [f"{rank} 4" for rank in range(4)]
    assert "standfast: node-1 is " in first[2]
    assert address_of(1, CONTROL) in first[2]


def test_the_cable_is_cut(two: Faults, tmp_path: Path) -> None:
    """Each side takes the other for lost: no rank is left on any, and both launchers say whom."""
    launchers = start(two, tmp_path, str(tmp_path / "never"))
    files = [tmp_path / f"rank{rank}-gen1" for rank in range(4)]
    try:
        wait_for(lambda: all(path.exists() and path.read_text() for path in files))
        pids = [int(path.read_text()) for path in files]
        two.cut(1)
        wait_for(lambda: not any(map(lives, pids)))
        first, second = ends(launchers)
    finally:
        for each in launchers:
            each.kill()
        ends(launchers)
        two.restore()
    assert (first[0], second[0]) == (137, 75), first[2] + second[2]
    assert "lost with host node-1" in first[2]
    assert "nothing was heard for 3.5 s" in first[2]
    assert f"node 0's launcher at {address_of(0, CONTROL)}:{PORT} is lost" in second[2]
