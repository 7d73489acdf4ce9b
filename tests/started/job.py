"""Four ranks under somebody else's launcher: start them, kill one, see how the others end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("rank.py")
SIZE = 4
VICTIM = 2
START_S = 60.0
GONE_S = 5.0
T = TypeVar("T")

# What an outer launcher may have left in the environment of these tests.
FOREIGN = ("STANDFAST_", "OMPI_", "PMIX_", "PRTE_", "PMI_", "SLURM_", "MLX_", "JACCL_", "RAY_")


def wait_for(look: Callable[[], T | None], limit_s: float, what: Callable[[], str]) -> T:
    """Return what `look` finds, as soon as it finds something."""
    end_s = time.monotonic() + limit_s
    while (found := look()) is None:
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what()}"
        time.sleep(0.01)
    return found


def free_port() -> int:
    """Return a port that nobody has at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class StartedJob:
    """A launcher with its ranks, in a folder where these leave their records.

    python: runs the ranks. launcher: the command up to the rank's own, as words. shell: the ranks
    run through one, which writes down the exit status that their launcher sees.
    """

    def __init__(
        self,
        folder: Path,
        *,
        python: str,
        launcher: Sequence[str],
        shell: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.records.mkdir()
        self.log = folder / "launcher.text"
        rank = [str(self._shim(python))] if shell else [python, str(RANK), str(self.records)]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        with self.log.open("wb") as log:
            self.launcher = subprocess.Popen(
                [*launcher, *rank],
                env={**inherited, **source_tree(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )

    def __enter__(self) -> StartedJob:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self.records.glob("*.ready"):
            _kill(json.loads(path.read_text())["pid"])
        if self.launcher.poll() is None:
            self.launcher.terminate()
            try:
                self.launcher.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()

    def _shim(self, python: str) -> Path:
        """Write the program that the launcher starts."""
        shim, records = self.folder / "rank.sh", shlex.quote(str(self.records))
        lines = [
            "#!/bin/sh",
            f"{shlex.quote(python)} {shlex.quote(str(RANK))} {records}",
            "status=$?",
            f"echo $status > {records}/$$.status",
            "exit $status",
        ]
        shim.write_text("\n".join(lines) + "\n")
        shim.chmod(0o755)
        return shim

    def formed(self, generation: int) -> dict[int, int]:
        """Wait until all ranks of a generation have met; return their process ids."""

        def look() -> dict[int, int] | None:
            pids = {}
            for rank in range(SIZE):
                record = self._read(f"{generation}-{rank}.ready")
                if record is None:
                    return None
                assert record["size"] == SIZE
                pids[rank] = record["pid"]
            return pids

        return wait_for(look, START_S, self.story)

    def kill(self, generation: int) -> float:
        """Kill the victim; return when."""
        pid = self.formed(generation)[VICTIM]
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def ended(self, generation: int) -> list[dict[str, Any]]:
        """Return the last records of those survivors that have written one."""
        names = (f"{generation}-{rank}.end" for rank in range(SIZE) if rank != VICTIM)
        return [record for name in names if (record := self._read(name))]

    def ends(self, generation: int) -> list[dict[str, Any]]:
        """Wait for the last records of all survivors."""

        def look() -> list[dict[str, Any]] | None:
            found = self.ended(generation)
            return found if len(found) == SIZE - 1 else None

        return wait_for(look, 20.0, self.story)

    def gone(self, pids: Iterable[int]) -> None:
        """Wait until all of these ranks have ended."""
        left = set(pids)

        def look() -> bool | None:
            left.difference_update([pid for pid in left if not _is_rank(pid)])
            return None if left else True

        wait_for(look, GONE_S, lambda: f"{left} still run\n{self.story()}")

    def statuses(self, count: int) -> list[int]:
        """Wait for so many exit statuses of ranks; return them in order."""

        def look() -> list[int] | None:
            texts = [path.read_text() for path in self.records.glob("*.status")]
            return sorted(map(int, texts)) if len(texts) >= count and all(texts) else None

        return wait_for(look, 20.0, self.story)

    def stop(self) -> None:
        """Tell the ranks that they are done."""
        (self.records / "stop").touch()

    def wait(self, limit_s: float = 60.0) -> int:
        """Wait for the launcher's end; return its exit status."""
        try:
            return self.launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end\n{self.story()}") from None

    def story(self) -> str:
        """What there is, and what was written."""
        names = sorted(path.name for path in self.records.iterdir())
        return f"{names}\n{self.log.read_text(errors='replace')[-4000:]}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads((self.records / name).read_text())
        except FileNotFoundError:
            return None
        return record


def source_tree() -> dict[str, str]:
    """Let the ranks find the source tree, unless the tests are of an installed wheel."""
    return {} if "EXPECT_INSTALLED" in os.environ else {"PYTHONPATH": str(ROOT / "src")}


def _is_rank(pid: int) -> bool:
    """Tell whether a process runs, and is a rank of these tests."""
    try:
        return str(RANK).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> None:
    """Kill a rank, if the process still is one."""
    if _is_rank(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
