"""Runs a scenario on n ranks of torch.distributed, in the Python that has torch.

That Python imports torch once and forks the ranks, which is as good as starting each (ranks.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The Python that has torch; `make test-integrations` makes one.
PYTHON = os.environ.get("FOREIGN_PYTHON", sys.executable)
LIMIT_S = 100.0


def missing() -> str | None:
    """Say why torch's tests cannot be run here, or None."""
    code = "import importlib.util as u; raise SystemExit(u.find_spec('torch') is None)"
    if subprocess.run([PYTHON, "-c", code], check=False).returncode:
        return f"{PYTHON} has no torch: see `make test-integrations`"
    return None


@dataclass(frozen=True)
class Ended:
    """How a rank ended. status: negative for a signal. told: what it says of itself."""

    rank: int
    status: int
    told: Any
    errors: str


def environment(**more: str) -> dict[str, str]:
    """One thread per rank: there are more ranks than cores."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return kept | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **more}


def run(scenario: str, ranks: int, folder: Path, limit_s: float = LIMIT_S) -> list[Ended]:
    """Run a scenario; return how each rank ended. None of them is left.

    Args:
        scenario: the name of a function in tests/torch/scenarios.py.
        ranks: how many.
        folder: for what they write.
        limit_s: after so long they are killed, and the test fails.
    """
    command = [PYTHON, "-m", "tests.torch.ranks", scenario, str(ranks), str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    try:
        process.wait(limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    statuses = json.loads((folder / "statuses.json").read_text())
    return [_ended(folder, rank, status) for rank, status in enumerate(statuses)]


def _ended(folder: Path, rank: int, status: int) -> Ended:
    told, errors = folder / f"{rank}.json", folder / f"{rank}.err"
    return Ended(
        rank,
        status,
        json.loads(told.read_text()) if told.exists() else None,
        errors.read_text() if errors.exists() else "",
    )


def run_well(scenario: str, ranks: int, folder: Path) -> list[Any]:
    """Run a scenario in which all ranks must end well; return what they say."""
    ended = run(scenario, ranks, folder)
    assert not any(each.status for each in ended), "\n".join(each.errors for each in ended)
    return [each.told for each in ended]
