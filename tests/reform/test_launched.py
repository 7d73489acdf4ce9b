"""Both ways of the examples under `standfast run`: from a checkpoint, and with a newcomer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.support import launcher_environment
from tests.ranks import ROOT
from tests.reform.printing import Printing


class Launched(Printing):
    """A `standfast run`."""

    def __init__(self, options: list[str], program: list[str]) -> None:
        run = [sys.executable, "-m", "standfast", "run", *options]
        super().__init__([*run, "--", sys.executable, *program], launcher_environment())


@pytest.fixture
def launched() -> Iterator[list[Launched]]:
    """Those that a test has started; ended after it."""
    started: list[Launched] = []
    yield started
    for one in started:
        one.process.kill()
        one.end()


@pytest.mark.parametrize("spares", [0, 1])
def test_in_process(launched: list[Launched], spares: int) -> None:
    """A rank is killed: the launcher's newcomer, or its spare, gets the state of the others."""
    options = ["-n", "3", "--restarts", "3", "--replace", "--spares", str(spares)]
    program = [f"{ROOT}/examples/survive.py", "--epochs", "12", "--slow-ms", "15", "--wait-s", "60"]
    job = Launched(options, program)
    launched.append(job)
    pid = int(job.wait_for(r"rank 1 of 3, new, generation 1 .*process (\d+)")[1])
    job.wait_for("epoch 2 is done")
    subprocess.run(["kill", "-9", str(pid)], check=True)
    job.wait_for(r"\[r0\] rank 0 of 3, rank 0 before, generation 2")
    job.wait_for(r"\[r2\] rank 1 of 3, rank 2 before, generation 2")
    job.wait_for(r"\[r1\] rank 2 of 3, new, generation 2")
    final = job.wait_for(r"final test accuracy ([\d.]+) with 3 ranks")
    assert job.end() == 0, "\n".join(job.lines)
    assert float(final[1]) > 0.95
    assert len([line for line in job.lines if "epoch 1 is done" in line]) == 1  # nobody began again


def test_from_the_checkpoint(launched: list[Launched], tmp_path: Path) -> None:
    """A rank is killed: all are started again, and go on from the checkpoint."""
    checkpoint = f"{tmp_path}/digits.npz"
    program = [f"{ROOT}/examples/digits.py", "--epochs", "8", "--slow-ms", "10"]
    options = ["-n", "3", "--restarts", "3", "--spares", "1"]
    job = Launched(options, [*program, "--checkpoint", checkpoint])
    launched.append(job)
    pid = int(job.wait_for(r"\[r1\].*process (\d+)")[1])
    job.wait_for("epoch +2")
    subprocess.run(["kill", "-9", str(pid)], check=True)
    job.wait_for("forming generation 2")
    job.wait_for("resum")
    final = job.wait_for(r"final test accuracy ([\d.]+)")
    assert job.end() == 0, "\n".join(job.lines)
    assert float(final[1]) > 0.9
