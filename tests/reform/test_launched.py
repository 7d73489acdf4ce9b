"""Both ways of the examples under `standfast run`: from a checkpoint, and with a newcomer."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.support import launcher_environment
from tests.ranks import ROOT

LIMIT_S = 100.0


class Launched:
    """A `standfast run`, and the lines that it has printed."""

    def __init__(self, options: list[str], program: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "standfast", "run", *options, "--", sys.executable, *program],
            env=launcher_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match in what is printed."""

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), LIMIT_S)
            match = found()
        assert match is not None, f"no {pattern!r} in:\n" + "\n".join(self.lines)
        return match

    def end(self) -> int:
        """Wait for its end; return its status."""
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


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
