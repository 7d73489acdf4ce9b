"""torch.distributed over standfast, in real jobs of 2 and 4 ranks; one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.torch.job import PYTHON, ROOT, environment, missing, run, run_well

REASON = missing()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(150),
]

VICTIM = 1
# A death is known within milliseconds; a busy machine may take its time to run who knows it.
KNOWN_S = 20.0


@pytest.mark.parametrize("ranks", [2, 4])
def test_operations(ranks: int, tmp_path: Path) -> None:
    """Every operation, dtype and operator gives what it should, at once and in the background."""
    told = run_well("operations", ranks, tmp_path)
    assert len(told[0]) > 90
    assert all(each == told[0] for each in told)


@pytest.mark.parametrize("ranks", [2, 4])
def test_groups(ranks: int, tmp_path: Path) -> None:
    """Parts of the job, objects, and a second init are as with any backend."""
    (tmp_path / "again").mkdir()
    told = run_well("groups", ranks, tmp_path)
    halves = [sum(range(rank % 2, ranks, 2)) for rank in range(ranks)]
    assert told == [[2.0, halves[r]] if r < 2 else [halves[r]] for r in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_is_as_with_gloo(ranks: int, tmp_path: Path) -> None:
    """DDP's losses are Gloo's: to the bit with 2 ranks, where a sum has one order only."""
    for told in run_well("training", ranks, tmp_path):
        assert told["standfast"][-1] < told["standfast"][0]
        if ranks == 2:
            assert told["standfast"] == told["gloo"]
        assert told["standfast"] == pytest.approx(told["gloo"], rel=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded(ranks: int, tmp_path: Path) -> None:
    """FSDP2 learns what the whole model learns, and a checkpoint brings its state back."""
    for told in run_well("sharded", ranks, tmp_path):
        assert told["sharded"] == pytest.approx(told["whole"], rel=1e-3)
        assert told["loaded"]


def test_meshes(tmp_path: Path) -> None:
    """DeviceMesh, DTensor and functional collectives are as with any backend."""
    told = run_well("meshes", 4, tmp_path)
    assert told == [[2.0], [4.0], [2.0], [4.0]]


DEATHS = [
    *("all_reduce", "wait", "recv", "recv_any", "backward", "fsdp"),
    *("functional", "mesh", "checkpoint", "new_group"),
]


@pytest.mark.parametrize(
    ("where", "ranks"),
    [*((where, 4) for where in DEATHS), ("all_reduce", 2), ("backward", 2), ("fsdp", 2)],
)
def test_death(where: str, ranks: int, tmp_path: Path) -> None:
    """A killed rank is PeerDied, and torch's DistBackendError, wherever the others are."""
    ended = run(f"death_in_{where}", ranks, tmp_path)
    assert ended[VICTIM].status == -signal.SIGKILL
    for each in ended:
        if each.rank == VICTIM:
            continue
        assert each.status == 0, each.errors
        assert each.told["class"] == "PeerDied"
        assert each.told["ours"]
        assert each.told["rank"] == VICTIM
        assert f"rank {VICTIM} " in each.told["text"]
        assert each.told["state"] == "COMM_ERROR"
        assert each.told["seconds"] < KNOWN_S


def test_again_after_a_death(tmp_path: Path) -> None:
    """Survivors form a job of their own in the same processes, and parts of it."""
    (tmp_path / "again").mkdir()
    ended = run("again", 4, tmp_path)
    survivors = [each for each in ended if each.rank != VICTIM]
    assert not any(each.status for each in survivors), [each.errors for each in survivors]
    assert [each.told for each in survivors] == [["PeerDied", 5.0]] * 3


def test_limits(tmp_path: Path) -> None:
    """A rank that does not come within torch's timeout is an error on those that wait for it."""
    told = run_well("limits", 2, tmp_path)
    assert told[0] in (["PeerStalled", "TIMEOUT"], ["NoProgress", "TIMEOUT"])


def test_torchrun_without_an_import(tmp_path: Path) -> None:
    """An installed standfast is known to torch without an import, under torchrun too."""
    script = tmp_path / "job.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('standfast')\n"
        "x = torch.ones(3)\n"
        "dist.all_reduce(x)\n"
        "assert x[0] == dist.get_world_size() == 2\n"
        "dist.destroy_process_group()\n"
    )
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if os.environ.get("EXPECT_INSTALLED"):
        code = "from importlib.metadata import entry_points as e; print(e(group='torch.backends'))"
        shown = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
        assert "standfast" in shown.stdout
    else:
        script.write_text("import standfast.torch\n" + script.read_text())
    done = subprocess.run(
        [*torchrun, str(script)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
