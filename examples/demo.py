"""What `make demo` runs: a training job loses a rank to SIGKILL, goes on, and ends as it should.

    python examples/demo.py

Runs digits.py on 4 ranks through `standfast run`, twice: once left alone, and once with one rank
killed in mid-training. Exits non-zero if anything did not happen as promised.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RANKS, EPOCHS, VICTIM, KILL_AFTER_EPOCH = 4, 20, 2, 5
LIMIT_MS = 1000
DIGITS = Path(__file__).with_name("digits.py")
# Of rank 0 a few lines, of the others none, and all that the launcher itself says.
SHOWN = re.compile(r"\[r0\] (epoch +\d*[05] |resuming|final)|(?!\[r\d+\])")


class Run:
    """One `standfast run` of digits.py; kills a rank once its training is well under way."""

    def __init__(self, checkpoint: Path, *, restarts: int = 0, kill: int | None = None) -> None:
        self.checkpoint = checkpoint
        self.killed_ns = 0
        self.accuracy = ""
        self.resumed_after, self.resumed_s = 0, 0.0
        self._victim = kill
        self._processes: dict[int, int] = {}
        launcher = ["run", "-n", str(RANKS), "--timeout-s", "60", "--json"]
        launcher += ["--restarts", str(restarts)] if restarts else []
        program = ["python", str(DIGITS), "--epochs", str(EPOCHS), "--slow-ms", "5"]
        say("$ standfast " + " ".join([*launcher, "--", "python", "examples/digits.py", "..."]))
        program[0] = sys.executable
        command = [*launcher, "--", *program, "--checkpoint", str(checkpoint)]
        report = checkpoint.with_suffix(".json")
        with report.open("w") as file:
            self.status = self._follow([sys.executable, "-m", "standfast", *command], file)
        self.generations: list[dict[str, Any]] = json.loads(report.read_text())["generations"]

    def _follow(self, command: list[str], report: Any) -> int:
        """Run to the end: the launcher's report goes to a file, all else through our hands."""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=report, stderr=subprocess.PIPE, text=True
        ) as launcher:
            assert launcher.stderr is not None
            for line in launcher.stderr:
                self._hear(line.rstrip())
        return launcher.returncode

    def _hear(self, line: str) -> None:
        if SHOWN.match(line):
            say(f"  | {line}")
        if found := re.search(r"rank (\d+) of \d+ is process (\d+)", line):
            self._processes[int(found[1])] = int(found[2])
        if found := re.search(r"resuming after epoch (\d+)", line):
            self.resumed_after = int(found[1])
            self.resumed_s = (time.monotonic_ns() - self.killed_ns) / 1e9
        if found := re.search(r"final test accuracy ([\d.]+)", line):
            self.accuracy = found[1]
        if self._victim is not None and re.search(rf"epoch +{KILL_AFTER_EPOCH} ", line):
            self._kill(self._victim)
            self._victim = None

    def _kill(self, rank: int) -> None:
        process = self._processes[rank]
        self.killed_ns = time.monotonic_ns()
        os.kill(process, signal.SIGKILL)
        say(f"\n  That epoch's checkpoint is written: kill -9 {process}, which is rank {rank}.\n")


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def survivors_said(run: Run) -> list[dict[str, Any]]:
    """Print when each survivor of the first generation knew; return the errors they raised."""
    errors = []
    for rank in run.generations[0]["ranks"]:
        if rank["rank"] == VICTIM:
            continue
        error = rank["error"] or {"type": "no error"}
        error["after_ms"] = (error.get("detected_ns", 0) - run.killed_ns) / 1e6
        words = f"{error['type']}(rank={error.get('rank')})"
        say(f"  rank {rank['rank']}  {words}, {error['after_ms']:.1f} ms after the kill")
        errors.append(error)
    return errors


def same_bits(one: Path, other: Path) -> bool:
    """Tell whether two checkpoints hold the same epoch, parameters and velocity."""
    with np.load(one) as a, np.load(other) as b:
        return all(a[name].tobytes() == b[name].tobytes() for name in a.files)


def promises(plain: Run, killed: Run, errors: list[dict[str, Any]]) -> dict[str, bool]:
    """Return what had to happen, and whether it did."""
    first, *later = killed.generations
    victim = first["ranks"][VICTIM]
    return {
        "the undisturbed run ended well": plain.status == 0,
        f"rank {VICTIM} was ended by SIGKILL, and named as the first cause": (
            victim["signal"] == "SIGKILL" and first["first"] == VICTIM
        ),
        f"each of the {RANKS - 1} survivors raised PeerDied naming rank {VICTIM}": all(
            (error["type"], error.get("rank")) == ("PeerDied", VICTIM) for error in errors
        ),
        f"each knew within {LIMIT_MS} ms of the kill": all(
            0 <= error["after_ms"] <= LIMIT_MS for error in errors
        ),
        "the group formed again as generation 2": [g["generation"] for g in later] == [2],
        "it resumed from the checkpoint and ended well": (
            killed.resumed_after >= KILL_AFTER_EPOCH and killed.status == 0
        ),
        "both runs end with the same parameters, bit for bit": same_bits(
            plain.checkpoint, killed.checkpoint
        ),
        "both runs end with the same accuracy": plain.accuracy == killed.accuracy != "",
    }


def main() -> int:
    """Run both, compare, and say what was kept."""
    with tempfile.TemporaryDirectory(prefix="standfast-demo-") as folder:
        say(f"1. {RANKS} ranks train a network on scikit-learn's digits; nobody disturbs them.\n")
        plain = Run(Path(folder, "undisturbed.npz"))
        say(f"\n2. The same again, and rank {VICTIM} is killed in mid-training.\n")
        killed = Run(Path(folder, "killed.npz"), restarts=1, kill=VICTIM)
        say("\n3. When each survivor knew, by its own error:\n")
        errors = survivors_said(killed)
        say(f"\n  The new group was training again {killed.resumed_s:.1f} s after the kill.")
        say("\n4. What was promised:\n")
        kept = promises(plain, killed, errors)
    for promise, happened in kept.items():
        say(f"  {'yes' if happened else 'NO '}  {promise}")
    say(f"\nundisturbed: accuracy {plain.accuracy}\nkilled:      accuracy {killed.accuracy}")
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
