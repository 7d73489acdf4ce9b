"""A job of a real Slurm, by the script in examples/deploy: one rank is killed, Slurm starts again.

Needs Debian's slurmctld, slurmd and slurm-client, and root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.started import slurm
from tests.started.digits import DigitsJob
from tests.started.job import ROOT, SIZE, VICTIM, StartedJob, wait_for
from tests.started.test_started import check_survivors

SCRIPT = ROOT / "examples/deploy/train.sbatch"
REASON = slurm.missing() if sys.platform == "linux" else "Slurm is Linux's"
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of Slurm's commands."""
    with slurm.running(tmp_path_factory.mktemp("slurm") / "cluster") as environment:
        yield environment


def test_a_launcher_on_each_node(tmp_path: Path) -> None:
    """On two nodes `standfast run` needs no word of where it is: one job, and a lost rank's next.

    The nodes are two slurmd of this machine; the first is called as it can be reached.
    """
    launcher = ["srun", "-N2", "--ntasks-per-node=1", sys.executable, "-m", "standfast", "run"]
    launcher += ["-n", str(SIZE // 2), "--restarts", "1", "--"]
    with (
        slurm.running(tmp_path / "cluster", ["127.0.0.1", "second"]) as environment,
        StartedJob(
            tmp_path, python=sys.executable, launcher=launcher, shell=False, environment=environment
        ) as job,
    ):
        job.kill(1)
        job.formed(2)
        job.stop()
        assert job.wait() == 0, job.story()
        said = job.log.read_text()
    assert "standfast: node-1 is " in said
    assert f"rank {VICTIM} on node-1 was ended by SIGKILL" in said


def test_srun(cluster: dict[str, str], tmp_path: Path) -> None:
    """Slurm's variables are enough; survivors end with 75, and srun tells of the killed rank."""
    launcher = ["srun", "-n", str(SIZE), "--kill-on-bad-exit=0"]
    with StartedJob(tmp_path, python=sys.executable, launcher=launcher, environment=cluster) as job:
        check_survivors(job, 1)
        assert job.wait() == 137, job.story()


def test_the_script_starts_again(cluster: dict[str, str], tmp_path: Path) -> None:
    """After a kill RequeueExit=75 runs the script again: generation 2, which ends well."""
    launcher = ["sbatch", "--wait", "--nodes=1", f"--ntasks-per-node={SIZE}", str(SCRIPT)]
    with StartedJob(tmp_path, python=sys.executable, launcher=launcher, environment=cluster) as job:
        check_survivors(job, 1)
        wait_for(lambda: started_again(job, cluster), 60.0, job.story)
        job.stop()
        assert job.wait() == 0, f"{job.story()}\n{_output(tmp_path)}"


def test_digits(cluster: dict[str, str], tmp_path: Path) -> None:
    """The script trains on: a rank is killed, Slurm starts again, and the training succeeds."""
    launcher = ["sbatch", "--wait", "--nodes=1", f"--ntasks-per-node={SIZE}", str(SCRIPT)]
    python = sys.executable
    with DigitsJob(tmp_path, launcher, python=python, environment=cluster, output="*.out") as job:
        job.gone(job.kill_one())

        def ended() -> int | None:
            slurm.start_at_once(cluster)
            return job.launcher.poll()

        assert wait_for(ended, 90.0, job.text) == 0, job.text()
        job.check_end()


def started_again(job: StartedJob, cluster: dict[str, str]) -> bool | None:
    """Look for generation 2, and spare it Slurm's pause."""
    slurm.start_at_once(cluster)
    return True if len(list(job.records.glob("2-*.ready"))) == SIZE else None


def test_a_mismatch_is_not_tried_again(cluster: dict[str, str], tmp_path: Path) -> None:
    """Only 75 and signals are worth another start: a status of 76 is the job's own."""
    program = ["sh", "-c", "exit 76"]
    command = ["sbatch", "--wait", "--nodes=1", f"--ntasks-per-node={SIZE}", str(SCRIPT), *program]
    answer = subprocess.run(
        command,
        env=os.environ | cluster,
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 76


def test_restarts_have_an_end(cluster: dict[str, str], tmp_path: Path) -> None:
    """A job that always loses a rank is started three times more, and then has failed."""
    program = ["sh", "-c", f"echo x >> {tmp_path}/starts; exit 75"]
    command = ["sbatch", "--wait", "--nodes=1", "--ntasks-per-node=1", str(SCRIPT), *program]
    with subprocess.Popen(command, env=os.environ | cluster, cwd=tmp_path) as sbatch:

        def ended() -> int | None:
            slurm.start_at_once(cluster)
            return sbatch.poll()

        assert wait_for(ended, 90.0, lambda: _output(tmp_path)) == 1
    assert (tmp_path / "starts").read_text().count("x") == 4


def _output(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("*.out"))
