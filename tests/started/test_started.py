"""Ranks under the launchers of others: torchrun, mlx.launch, Open MPI, MPICH.

Four ranks meet by what their launcher tells them; one is killed; the others raise PeerDied with its
number and end with 75. Where a launcher starts ranks again, they are the next generation.

FOREIGN_PYTHON and MPICH_MPIRUN say where those launchers are: `make test-foreign` makes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.started.job import FOREIGN, SIZE, VICTIM, StartedJob, free_port, source_tree

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(180),
]
PYTHON = os.environ.get("FOREIGN_PYTHON", sys.executable)
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
KNOWN_S = 3.0


def tool(name: str) -> str:
    """Find a launcher beside the foreign Python, or skip."""
    found = shutil.which(name, path=str(Path(PYTHON).parent))
    if found is None:
        pytest.skip(f"there is no {name} beside {PYTHON}: see `make test-foreign`")
    return found


def mpich() -> str:
    """Find MPICH's mpirun, which has the same name as Open MPI's, or skip."""
    found = os.environ.get("MPICH_MPIRUN")
    if found is None:
        pytest.skip("MPICH_MPIRUN is not set: see `make test-foreign`")
    return found


def check_ends(job: StartedJob, generation: int) -> None:
    """Kill the victim: all others name it, soon."""
    killed_s = job.kill(generation)
    for end in job.ends(generation):
        assert (end["type"], end["rank"]) == ("PeerDied", VICTIM), end
        assert end["ended_s"] - killed_s < KNOWN_S, end


def check_survivors(job: StartedJob, generation: int) -> None:
    """Kill the victim: all others name it, soon, and end with 75."""
    check_ends(job, generation)
    assert job.statuses(SIZE) == [75, 75, 75, 137], job.story()


def test_torchrun(tmp_path: Path) -> None:
    """The agent's restart is generation 2, at the same port, which is not MASTER_PORT.

    It sends SIGTERM to those that still run when it looks: who is faster has said why.
    """
    words = ["--nproc-per-node", str(SIZE), "--max-restarts", "1", "--no-python"]
    launcher = [tool("torchrun"), *words, "--master-port", str(free_port())]
    with StartedJob(tmp_path, python=PYTHON, launcher=launcher, shell=False) as job:
        job.kill(1)
        job.formed(2)
        for end in job.ended(1):
            assert (end["type"], end["rank"]) == ("PeerDied", VICTIM), end
        job.stop()
        assert job.wait() == 0, job.story()


@pytest.mark.parametrize("record", [False, True])
def test_torchrun_names_the_cause(tmp_path: Path, record: bool) -> None:
    """Its report calls the killed rank the root cause, with @record or without.

    That is about survivors that ended by themselves. The agent looks every 8 s, and it is chance
    whether it does so right after the kill; then another job is tried.
    """
    words = ["--nproc-per-node", str(SIZE), "--monitor-interval", "8", "--no-python"]
    environment = {"STARTED_RECORD": "1"} if record else {}
    for attempt in range(5):
        launcher = [tool("torchrun"), *words, "--master-port", str(free_port())]
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with StartedJob(
            folder, python=PYTHON, launcher=launcher, shell=False, environment=environment
        ) as job:
            job.kill(1)
            assert job.wait() == 1, job.story()
            story = job.log.read_text()
        if story.count("exitcode  : 75") == SIZE - 1:
            report = story.partition("Root Cause")[2]
            assert f"rank      : {VICTIM} (local_rank: {VICTIM})" in report, story
            assert "SIGKILL" in report, story
            return
    pytest.fail("torchrun was always faster than the survivors")


def test_mlx_launch(tmp_path: Path) -> None:
    """The ring's host file says who and where; the ring's own ports stay free for MLX.

    mlx.launch sends the others SIGTERM when a rank has ended: who is faster has said why, and
    nobody is left.
    """
    words = ["--backend", "ring", "-n", str(SIZE), "--starting-port", str(free_port())]
    launcher = [tool("mlx.launch"), *words, "--"]
    with StartedJob(tmp_path, python=PYTHON, launcher=launcher, shell=False) as job:
        pids = job.formed(1)
        job.kill(1)
        job.wait()
        job.gone(pids.values())
        for end in job.ended(1):
            assert (end["type"], end["rank"]) == ("PeerDied", VICTIM), end
        assert f"rank {VICTIM} exited with code -9" in job.log.read_text(), job.story()


def test_open_mpi(tmp_path: Path) -> None:
    """With recovery on mpirun lets the survivors speak; MASTER_ADDR alone is enough."""
    words = ["--enable-recovery", "--oversubscribe", "-n", str(SIZE), "-x", "MASTER_ADDR=127.0.0.1"]
    job = StartedJob(
        tmp_path, python=PYTHON, launcher=[tool("mpirun"), *words], environment=AS_ROOT
    )
    with job:
        check_survivors(job, 1)
        assert job.wait() != 0


def test_mpich(tmp_path: Path) -> None:
    """Hydra needs a port as well; without its clean-up the survivors can speak."""
    where = ["-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "STANDFAST_PORT", str(free_port())]
    words = ["-disable-auto-cleanup", "-n", str(SIZE)]
    with StartedJob(tmp_path, python=PYTHON, launcher=[mpich(), *where, *words]) as job:
        check_survivors(job, 1)
        assert job.wait() != 0


@pytest.mark.parametrize("flavour", ["open mpi", "mpich"])
def test_mpirun_by_default_leaves_nobody(tmp_path: Path, flavour: str) -> None:
    """Without recovery mpirun ends the survivors itself: nobody is left, and it says so."""
    if flavour == "mpich":
        where = ["-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "STANDFAST_PORT", str(free_port())]
        launcher = [mpich(), *where, "-n", str(SIZE)]
    else:
        where = ["--oversubscribe", "-x", "MASTER_ADDR=127.0.0.1"]
        launcher = [tool("mpirun"), *where, "-n", str(SIZE)]
    with StartedJob(tmp_path, python=PYTHON, launcher=launcher, environment=AS_ROOT) as job:
        pids = job.formed(1)
        job.kill(1)
        assert job.wait() != 0
        job.gone(pids.values())


def test_open_mpi_with_mpi4py(tmp_path: Path) -> None:
    """Nobody says where to meet: rank 0's address travels by a broadcast, and all else is as ever.

    The survivors do not call MPI_Finalize, which would wait for the dead rank.
    """
    if subprocess.run([PYTHON, "-c", "import mpi4py"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no mpi4py: see `make test-foreign`")
    words = ["--enable-recovery", "--oversubscribe", "-n", str(SIZE)]
    with StartedJob(
        tmp_path, python=PYTHON, launcher=[tool("mpirun"), *words], environment=AS_ROOT
    ) as job:
        check_survivors(job, 1)
        assert job.wait() != 0


@pytest.mark.parametrize("flavour", ["open mpi", "mpich"])
def test_mpirun_without_a_meeting_point(tmp_path: Path, flavour: str) -> None:
    """Without mpi4py the ranks end with 78 and say what to pass to mpirun."""
    if flavour == "mpich":
        launcher, way = [mpich(), "-n", "2"], "-genv MASTER_ADDR"
    else:
        launcher, way = [tool("mpirun"), "--oversubscribe", "-n", "2"], "-x MASTER_ADDR="
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["mpi4py"] = None\n')
    path = os.pathsep.join(filter(None, [str(tmp_path), source_tree().get("PYTHONPATH")]))
    environment = {**AS_ROOT, "PYTHONPATH": path}
    with StartedJob(tmp_path, python=PYTHON, launcher=launcher, environment=environment) as job:
        assert job.wait() != 0
        assert way in job.log.read_text()
        assert 78 in job.statuses(1)


@pytest.mark.parametrize("where", [["-n", "3"], ["--hosts", "localhost,127.0.0.1:2"]])
def test_mlx_under_our_launcher(tmp_path: Path, where: list[str]) -> None:
    """`standfast run` describes a ring, so that stock MLX forms it without another word.

    Two agents stand for two hosts: each has a file of its own.
    """
    if subprocess.run(
        [PYTHON, "-c", "import mlx.core"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{PYTHON} has no mlx: see `make test-foreign`")
    program = (
        "import mlx.core as mx; mx.set_default_device(mx.cpu);"
        "group = mx.distributed.init(strict=True, backend='ring');"
        "total = mx.distributed.all_sum(mx.array([1.0]), stream=mx.cpu);"
        "print('ring', group.rank(), group.size(), total.item())"
    )
    command = [sys.executable, "-m", "standfast", "run", *where, "--", PYTHON, "-c", program]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    answer = subprocess.run(
        command,
        env={**environment, **source_tree()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    found = sorted(line.partition("] ")[2] for line in answer.stdout.splitlines())
    assert found == [f"ring {rank} 3 3.0" for rank in range(3)]
