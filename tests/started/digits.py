"""examples/digits.py as a job of four ranks under some launcher: one is killed, all start again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.started.job import FOREIGN, ROOT, SIZE, VICTIM, source_tree, wait_for

EPOCHS = 6
ACCURACY = 0.95
IS = re.compile(r"rank (\d) of 4 is process (\d+)")
FINAL = re.compile(rf"final test accuracy (0\.\d+) after {EPOCHS} epochs")
TRAINED_S = 60.0
GONE_S = 10.0


def program(python: str, folder: Path, slow_ms: int) -> list[str]:
    """Return what each rank runs: 23 steps per epoch."""
    options = ["--epochs", str(EPOCHS), "--slow-ms", str(slow_ms)]
    checkpoint = ["--checkpoint", str(folder / "digits.npz")]
    return [python, str(ROOT / "examples/digits.py"), *options, *checkpoint]


class DigitsJob:
    """A launcher with its four ranks.

    output: where they print, if not to the launcher's stdout. slow_ms: how long each step takes.
    """

    def __init__(
        self,
        folder: Path,
        launcher: Sequence[str],
        *,
        python: str,
        environment: Mapping[str, str] | None = None,
        output: str = "launcher.text",
        slow_ms: int = 20,
    ) -> None:
        self._folder = folder
        self._output = output
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        with (folder / "launcher.text").open("wb") as log:
            self.launcher = subprocess.Popen(
                [*launcher, *program(python, folder, slow_ms)],
                env={**inherited, **unbuffered, **source_tree(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )

    def __enter__(self) -> DigitsJob:
        return self

    def __exit__(self, *raised: object) -> None:
        if self.launcher.poll() is None:
            self.launcher.terminate()
            try:
                self.launcher.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.launcher.pid, signal.SIGKILL)
                self.launcher.wait()
        for _rank, pid in self.ranks():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)

    def text(self) -> str:
        """All that launcher and ranks have printed."""
        paths = sorted(self._folder.glob(self._output))
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def ranks(self) -> list[tuple[int, int]]:
        """Rank and process of all that have joined a group so far."""
        return [(int(rank), int(pid)) for rank, pid in IS.findall(self.text())]

    def formed(self) -> dict[int, int]:
        """Wait until all ranks have joined; return their processes."""
        wait_for(lambda: len(dict(self.ranks())) == SIZE or None, TRAINED_S, self.text)
        return dict(self.ranks())

    def trained(self, epoch: int) -> dict[int, int]:
        """Wait for the end of an epoch; return the processes of the ranks, the last ones'."""
        line = f"epoch {epoch:3} "
        wait_for(lambda: line in self.text() or None, TRAINED_S, self.text)
        return dict(self.ranks())

    def kill_one(self) -> dict[int, int]:
        """Kill the victim when two epochs are done; return the processes of that generation."""
        pids = self.trained(2)
        assert sorted(pids) == list(range(SIZE)), self.text()
        os.kill(pids[VICTIM], signal.SIGKILL)
        return pids

    def gone(self, pids: Mapping[int, int]) -> None:
        """Wait until none of these ranks is left."""
        wait_for(lambda: not any(is_alive(pid) for pid in pids.values()) or None, GONE_S, self.text)

    def check_end(self) -> None:
        """The group was formed again from the checkpoint, and the training has succeeded."""
        text = self.text()
        assert "resuming after epoch" in text, text
        final = FINAL.search(text)
        assert final is not None, text
        assert float(final[1]) > ACCURACY

    def wait(self, limit_s: float = 120.0) -> int:
        """Wait for the launcher's end; return its status."""
        try:
            return self.launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end\n{self.text()}") from None


def is_alive(pid: int) -> bool:
    """Whether this is a process that trains on digits."""
    try:
        return b"digits.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def listens_on(pid: int) -> set[int]:
    """Return the TCP ports of a process's listeners."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes
    }
