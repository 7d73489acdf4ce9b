"""examples/digits.py under the launchers of others: a rank is killed, all start again, it succeeds.

torchrun starts ranks again by itself; around mpirun and mlx.launch, which do not, again.sh of
examples/deploy does. Slurm's part is in test_slurm_job.py, Ray's in test_ray_run.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.started.digits import DigitsJob, listens_on
from tests.started.job import ROOT, SIZE, VICTIM, free_port
from tests.started.test_started import AS_ROOT, PYTHON, mpich, tool

DEPLOY = ROOT / "examples/deploy"
AGAIN = [str(DEPLOY / "again.sh"), "2"]
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(240),
]


def test_torchrun(tmp_path: Path) -> None:
    """--max-restarts forms generation 2; no rank listens on MASTER_PORT in either."""
    port = free_port()
    words = ["--nproc-per-node", str(SIZE), "--max-restarts", "1", "--no-python"]
    launcher = [tool("torchrun"), *words, "--master-port", str(port)]
    with DigitsJob(tmp_path, launcher, python=PYTHON) as job:
        pids = job.trained(1)
        assert all(port not in listens_on(pid) for pid in pids.values())
        assert listens_on(pids[0])  # that it looks at the right thing
        pids = job.kill_one()
        job.gone(pids)
        assert job.wait() == 0, job.text()
        job.check_end()


def test_open_mpi(tmp_path: Path) -> None:
    """mpirun with recovery lets survivors speak; again.sh starts it again."""
    words = ["--enable-recovery", "--oversubscribe", "-n", str(SIZE)]
    variables = ["-x", "MASTER_ADDR=127.0.0.1", "-x", "STANDFAST_GENERATION"]
    launcher = [*AGAIN, tool("mpirun"), *words, *variables]
    check_again(tmp_path, launcher, AS_ROOT)


def test_mpich(tmp_path: Path) -> None:
    """Hydra's mpirun without its clean-up; all variables are handed on, SIGKILL is 9."""
    where = ["-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "STANDFAST_PORT", str(free_port())]
    check_again(
        tmp_path,
        [*AGAIN, mpich(), *where, "-disable-auto-cleanup", "-n", str(SIZE)],
        {"AGAIN_ALSO": "9"},
    )


def check_again(folder: Path, launcher: list[str], environment: dict[str, str]) -> None:
    """Kill a rank: survivors name it and end with 75, generation 2 ends well."""
    with DigitsJob(folder, launcher, python=PYTHON, environment=environment) as job:
        pids = job.kill_one()
        job.gone(pids)
        assert job.wait() == 0, job.text()
        assert f"PeerDied: rank {VICTIM} on" in job.text()
        assert "starting generation 2" in job.text()
        job.check_end()


def test_mlx_launch(tmp_path: Path) -> None:
    """mlx.launch ends survivors at once, some before they can speak, and itself with 0.

    mlx-launch.sh makes a status of what rank 0 left; nobody else is left.
    """
    words = ["--backend", "ring", "-n", str(SIZE), "--starting-port", str(free_port())]
    launcher = [*AGAIN, str(DEPLOY / "mlx-launch.sh"), tool("mlx.launch"), *words, "--"]
    with DigitsJob(tmp_path, launcher, python=PYTHON) as job:
        pids = job.kill_one()
        job.gone(pids)
        assert job.wait() == 0, job.text()
        job.check_end()
