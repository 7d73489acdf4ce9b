"""The examples do what they say: digits.py alone and through the launcher, and demo.py."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "examples/digits.py"
LAUNCHER = [sys.executable, "-m", "standfast", "run"]
JOB_LIMIT_S = 100


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    """The example as a module."""
    from examples import digits as module

    return module


class Alone:
    """A group of one, so that the model is tested without the core."""

    rank, size = 0, 1

    def all_sum(self, x: Any, out: Any) -> Any:
        """Return the sum over one rank."""
        return out

    def broadcast(self, x: Any, root: int, out: Any) -> Any:
        """Return what rank 0 has."""
        return out


def flat(digits: ModuleType) -> Any:
    return np.zeros(digits.PARAMETERS + 1, np.float32)


def test_gradient_is_the_slope_of_the_loss(digits: ModuleType) -> None:
    """The gradient written by hand agrees with differences of the loss, in double precision."""
    x, y, _, _ = digits.load()
    x, y = x[:20].astype(np.float64), y[:20]
    parameters = digits.initial(1).astype(np.float64)
    total = np.zeros(digits.PARAMETERS + 1)
    digits.gradient(parameters, x, y, out=total)
    rng, step = np.random.default_rng(1), 1e-6
    for index in rng.integers(0, digits.PARAMETERS, 40):
        losses = []
        for sign in (1, -1):
            moved, out = parameters.copy(), np.zeros_like(total)
            moved[index] += sign * step
            digits.gradient(moved, x, y, out=out)
            losses.append(out[-1])
        assert total[index] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 30])
def test_shares_of_a_batch_add_up(digits: ModuleType, ranks: int) -> None:
    """The gradients of the ranks' shares sum to the batch's, also when some shares are empty."""
    x, y, _, _ = digits.load()
    x, y = x[:29], y[:29]
    parameters = digits.initial(1)
    whole, part, total = flat(digits), flat(digits), flat(digits)
    digits.gradient(parameters, x, y, out=whole)
    for rank in range(ranks):
        digits.gradient(parameters, x[rank::ranks], y[rank::ranks], out=part)
        total += part
    np.testing.assert_allclose(total, whole, rtol=1e-3, atol=1e-4)


def test_test_images_are_held_out(digits: ModuleType) -> None:
    """Training and test images are all images, each once."""
    from sklearn.datasets import load_digits

    x, y, x_test, y_test = digits.load()
    assert (len(x), len(y), len(x_test), len(y_test)) == (1437, 1437, 360, 360)
    both = np.vstack([x, x_test])
    pixels = (load_digits().data / 16).astype(np.float32)
    assert np.array_equal(both[np.lexsort(both.T)], pixels[np.lexsort(pixels.T)])


def test_a_checkpoint_comes_back_bit_for_bit(digits: ModuleType, tmp_path: Path) -> None:
    """What save() wrote, resume() restores; without a file it changes nothing."""
    path = tmp_path / "point.npz"
    parameters, velocity = digits.initial(1), digits.initial(2)
    again, velocity_again = digits.initial(3), digits.initial(4)
    assert digits.resume(Alone(), path, again, velocity_again) == 0
    assert np.array_equal(again, digits.initial(3))
    digits.save(path, 7, parameters, velocity)
    assert digits.resume(Alone(), path, again, velocity_again) == 7
    assert np.array_equal(again, parameters)
    assert np.array_equal(velocity_again, velocity)


def test_a_write_that_is_cut_off_leaves_the_old_checkpoint(
    digits: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies while it writes cannot spoil the checkpoint before."""
    path = tmp_path / "point.npz"
    old = digits.initial(1)
    digits.save(path, 1, old, old)

    def cut_off(file: Any, **arrays: Any) -> None:
        file.write(b"half of")
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", cut_off)
        with pytest.raises(OSError, match="no space"):
            digits.save(path, 2, digits.initial(2), digits.initial(2))
    parameters, velocity = digits.initial(3), digits.initial(3)
    assert digits.resume(Alone(), path, parameters, velocity) == 1
    assert np.array_equal(parameters, old)


# --- through the launcher -------------------------------------------------------------------------


class Job:
    """`standfast run` on an example, with its output as it comes."""

    def __init__(
        self,
        ranks: int,
        *options: object,
        launcher: tuple[str, ...] = (),
        program: Path = DIGITS,
    ) -> None:
        command = [sys.executable, str(program), *map(str, options)]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*LAUNCHER, "-n", str(ranks), *launcher, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._timer = threading.Timer(JOB_LIMIT_S, self._process.kill)
        self._timer.start()

    def output(self) -> Iterator[str]:
        """Yield the lines as they come."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            yield line

    def finish(self) -> int:
        """Read the rest and return the exit status."""
        for _ in self.output():
            continue
        status = self._process.wait()
        self._timer.cancel()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    @property
    def text(self) -> str:
        """All output so far."""
        return "".join(self.lines)


def start_checked(ranks: int, *options: object) -> str:
    job = Job(ranks, *options)
    assert job.finish() == 0, job.text
    return job.text


def final_accuracy(text: str) -> float:
    found = re.findall(r"final test accuracy (\d\.\d+)", text)
    assert len(found) == 1, text
    return float(found[0])


def saved(path: Path) -> dict[str, bytes]:
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files}


def kill_when(job: Job, rank: int, ready: Callable[[str], bool]) -> None:
    """Send SIGKILL to a rank as soon as a line of the output says so."""
    processes: dict[int, int] = {}
    for line in job.output():
        if found := re.search(r"rank (\d+) of \d+ is process (\d+)", line):
            processes[int(found[1])] = int(found[2])
        if ready(line):
            os.kill(processes[rank], signal.SIGKILL)
            return
    raise AssertionError(f"the job ended before rank {rank} was killed:\n{job.text}")


@pytest.fixture(scope="module")
def alone(digits: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The parameters after eight epochs in this process, without any group."""
    path = tmp_path_factory.mktemp("alone") / "point.npz"
    options = argparse.Namespace(epochs=8, checkpoint=path, batch=64, seed=1, slow_ms=0)
    digits.train(Alone(), options)
    return np.load(path)["parameters"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_digits_learns(tmp_path: Path, alone: Any, ranks: int) -> None:
    """Any number of ranks learns what one process alone learns, but for rounding: over 93 %."""
    path = tmp_path / "point.npz"
    assert final_accuracy(start_checked(ranks, "--epochs", 8, "--checkpoint", path)) > 0.93
    np.testing.assert_allclose(np.load(path)["parameters"], alone, atol=1e-4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What three ranks have after six epochs in one go."""
    path = tmp_path_factory.mktemp("undisturbed") / "point.npz"
    start_checked(3, "--epochs", 6, "--checkpoint", path)
    return saved(path)


def test_resuming_changes_no_bit(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """Three epochs, then resumed to six, end as six epochs in one go do."""
    path = tmp_path / "point.npz"
    start_checked(3, "--epochs", 3, "--checkpoint", path)
    assert saved(path) != undisturbed
    text = start_checked(3, "--epochs", 6, "--checkpoint", path)
    assert "resuming after epoch 3" in text
    assert "epoch   3" not in text
    assert saved(path) == undisturbed


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_changes_no_bit(
    tmp_path: Path, undisturbed: dict[str, bytes], victim: int
) -> None:
    """A rank killed in mid-training, a restart, the checkpoint: the same parameters in the end."""
    path = tmp_path / "point.npz"
    options = ("--epochs", 6, "--slow-ms", 10, "--checkpoint", path)
    job = Job(3, *options, launcher=("--restarts", "1"))
    kill_when(job, victim, ready=lambda line: "epoch   2 " in line)
    assert job.finish() == 0, job.text
    assert re.search(r"resuming after epoch [2-5]", job.text), job.text
    assert saved(path) == undisturbed


def test_without_restarts_the_first_cause_is_the_status(tmp_path: Path) -> None:
    """A killed rank makes every other one raise PeerDied, and the job ends with 128 + SIGKILL."""
    job = Job(4, "--epochs", 100, "--slow-ms", 10)
    kill_when(job, 3, ready=lambda line: "epoch   1 " in line)
    assert job.finish() == 128 + signal.SIGKILL, job.text
    raised = set(re.findall(r"\[r(\d)\].*PeerDied", job.text))
    assert raised == {"0", "1", "2"}, job.text


def test_the_readme_tells_the_truth(tmp_path: Path) -> None:
    """The program that README shows does what README says that it does."""
    readme = (ROOT / "README.md").read_text()
    program = re.search(r"```python\n(# sum.py\n.*?)```", readme, re.DOTALL)
    assert program
    (tmp_path / "sum.py").write_text(program[1])
    job = Job(4, program=tmp_path / "sum.py")
    assert job.finish() == 128 + signal.SIGKILL, job.text
    gone = [f"[r{rank}] rank 2 is gone: its process " for rank in (0, 1, 3)]
    for line in ("[r2] [10. 10. 10.]", *gone, "  rank 2  cause     was ended by SIGKILL"):
        assert line in job.text, job.text
        assert line in readme


def test_demo_keeps_its_promise() -> None:
    """`make demo`: a rank is killed, the group forms again, both accuracies are equal (slow)."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    accuracies = re.findall(r"accuracy (\d\.\d{4})", done.stdout)
    assert len(set(accuracies[-2:])) == 1, done.stdout
    assert "generation 2" in done.stdout
