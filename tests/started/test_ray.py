"""Ranks as actors of a real Ray: four raylets, one actor killed, and a second generation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.started.job import SIZE, VICTIM, source_tree
from tests.started.test_started import KNOWN_S

JOB = Path(__file__).with_name("ray_job.py")
PYTHON = os.environ.get("RAY_PYTHON", os.environ.get("FOREIGN_PYTHON", sys.executable))
pytestmark = pytest.mark.timeout(180)


def has_ray() -> bool:
    """Tell whether that Python has Ray."""
    code = "import importlib.util as u; raise SystemExit(u.find_spec('ray') is None)"
    return subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


def test_actors(tmp_path: Path) -> None:
    """Survivors name the killed actor, Ray calls it dead, and new actors form the next group."""
    if not has_ray():
        pytest.skip(f"{PYTHON} has no ray: see `make test-foreign`")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("STANDFAST_", "RAY_"))}
    # Ray's sockets are in here: their paths must be shorter than those of tmp_path.
    with tempfile.TemporaryDirectory(prefix="sf", dir="/tmp") as folder:
        answer = subprocess.run(
            [PYTHON, str(JOB)],
            env={**environment, **source_tree(), "RAY_TMPDIR": folder},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
    assert answer.returncode == 0, answer.stderr[-4000:]
    story = json.loads(next(line for line in answer.stdout.splitlines() if line[:1] == "{"))
    assert (story["nodes"], story["victim"]) == (SIZE, "ActorDiedError")
    assert len(story["ends"]) == SIZE - 1
    for end in story["ends"]:
        assert (end["type"], end["rank"]) == ("PeerDied", VICTIM), end
        assert end["ended_s"] - story["killed_s"] < KNOWN_S, end
