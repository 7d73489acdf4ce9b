"""`standfast run --on ray` with the real Ray: five raylets on this machine, four ranks.

The same with a stand-in for Ray, and more of it, is in tests/ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.started.digits import DigitsJob, is_alive
from tests.started.job import SIZE, source_tree, wait_for

PYTHON = os.environ.get("FOREIGN_PYTHON", "")
CLUSTER = Path(__file__).with_name("ray_cluster.py")
RAYLETS = SIZE + 1
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.skipif(not PYTHON, reason="Ray is there in `make test-foreign`"),
    pytest.mark.timeout(300),
]


@dataclass
class Cluster:
    """What ray_cluster.py has told."""

    address: str
    raylets: list[int]
    gcs: int
    environment: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster for one test; its sockets' names are too long for pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="sf", dir="/tmp") as folder:
        quiet = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        quiet["RAY_gcs_rpc_server_reconnect_timeout_s"] = "5"
        environment = {**source_tree(), **quiet}
        with running(environment) as started:
            yield Cluster(**json.loads(started), environment=environment)


@contextlib.contextmanager
def running(environment: dict[str, str]) -> Iterator[str]:
    """Run the cluster's process; give the line it prints."""
    process = subprocess.Popen(
        [PYTHON, str(CLUSTER), str(RAYLETS)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield next(line for line in process.stdout if line.startswith("{"))
    finally:
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def start(folder: Path, cluster: Cluster, *options: str, slow_ms: int = 20) -> DigitsJob:
    """Train on digits, four ranks on four nodes."""
    command = [PYTHON, "-m", "standfast", "run", "--on", "ray", "-n", str(SIZE)]
    command += ["--ray-address", cluster.address, "--ray-strategy", "STRICT_SPREAD"]
    command += ["--events", str(folder / "events"), *options, "--"]
    environment = cluster.environment
    return DigitsJob(folder, command, python=PYTHON, environment=environment, slow_ms=slow_ms)


def parent_of(pid: int) -> int:
    """Return the process that started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_rank_and_an_actor_are_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """A killed rank, then a killed actor: each time the group forms again and trains on."""
    with start(tmp_path, cluster, "--restarts", "2", "--wait-refill-s", "60") as job:
        pids = job.kill_one()
        job.gone(pids)
        line = "standfast: all processes are gone; forming generation 2"
        wait_for(lambda: line in job.text() or None, 60.0, job.text)
        wait_for(lambda: len(job.ranks()) == 2 * SIZE or None, 60.0, job.text)
        pids = dict(job.ranks())
        actor = parent_of(parent_of(pids[1]))  # rank, agent, actor
        assert b"Place" in Path(f"/proc/{actor}/cmdline").read_bytes()
        os.kill(actor, signal.SIGKILL)
        job.gone(pids)
        assert job.wait() == 0, job.text()
        assert "rank 2 on ray-2 was ended by SIGKILL" in job.text()
        assert "rank 1 was lost with host ray-1: no agent on ray-1: Ray node" in job.text()
        job.check_end()
    lines = (tmp_path / "events").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    lost = ["peer_lost", "group_failed", "restarting", "started"]
    assert [name for name in events if name != "ready"] == ["started", *lost, *lost, "finished"]


def test_a_raylet_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """Its rank goes on until Ray gives the node up; then the group forms again on the fifth."""
    options = ("--restarts", "2", "--wait-refill-s", "60")
    with start(tmp_path, cluster, *options, slow_ms=100) as job:
        pids = job.trained(1)
        raylets = [parent_of(parent_of(parent_of(pids[rank]))) for rank in (3, 2)]
        assert set(raylets) <= set(cluster.raylets)
        head = cluster.raylets[0]  # has the GCS
        os.kill(next(raylet for raylet in raylets if raylet != head), signal.SIGKILL)
        assert job.wait() == 0, job.text()
        assert "node has died" in job.text()
        job.check_end()


@pytest.mark.parametrize("victim", ["launcher", "gcs"])
def test_no_rank_outlives(cluster: Cluster, tmp_path: Path, victim: str) -> None:
    """Without the driver no rank lives 5 s later; without the GCS the job ends by Ray's limit."""
    with start(tmp_path, cluster, "--restarts", "9", slow_ms=2000) as job:
        pids = job.formed()
        os.kill(job.launcher.pid if victim == "launcher" else cluster.gcs, signal.SIGKILL)
        limit_s = 5.0 if victim == "launcher" else 60.0
        wait_for(lambda: not any(map(is_alive, pids.values())) or None, limit_s, job.text)
        assert job.wait() == (-signal.SIGKILL if victim == "launcher" else 69), job.text()
