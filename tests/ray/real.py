"""Runs a program on the real Ray, in the Python that has it; nothing of it is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# `make test-integrations` makes one.
PYTHON = os.environ.get("FOREIGN_PYTHON", sys.executable)
LIMIT_S = 200.0


def missing(*modules: str) -> str | None:
    """Say why the tests cannot be run here, or None."""
    code = f"import {', '.join(modules)}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run([PYTHON, "-c", code], cwd=ROOT, check=False, **quiet).returncode:  # type: ignore[call-overload]
        return f"{PYTHON} has no {' or '.join(modules)}: see `make test-integrations`"
    return None


def run(program: Path, *words: object) -> Any:
    """Run a program that starts its own cluster; return the JSON that it prints."""
    foreign = ("STANDFAST_", "RAY_", "MASTER_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Ray's sockets are in here: their paths must be shorter than those of pytest's folders.
    with tempfile.TemporaryDirectory(prefix="sf", dir="/tmp", ignore_cleanup_errors=True) as folder:
        environ |= {
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)),
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        process = subprocess.Popen(
            [PYTHON, str(program), *map(str, words)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    assert process.returncode == 0, errors[-6000:]
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
