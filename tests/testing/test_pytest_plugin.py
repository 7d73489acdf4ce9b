"""The pytest plugin: a test that fails on one rank ends the run on all; its traceback is first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
FAILING = 1
LIMIT_S = 5.0

RAISES = """
import time

def test_first(standfast_group):
    standfast_group.barrier()

def test_second(standfast_group, record):
    if standfast_group.rank == 1:
        record.write_text(str(time.monotonic()))
        raise KeyError("only here")
    standfast_group.barrier()

def test_third(standfast_group):
    raise AssertionError("no rank comes here")
"""
IN_A_FIXTURE = """
import time, pytest

@pytest.fixture
def broken(standfast_group, record):
    if standfast_group.rank == 1:
        record.write_text(str(time.monotonic()))
        raise KeyError("only here")

def test_first(standfast_group, broken):
    standfast_group.barrier()

def test_third(standfast_group):
    raise AssertionError("no rank comes here")
"""
OWN_GROUP = """
import time, standfast

def test_first(record):
    with standfast.init() as group:
        if group.rank == 1:
            record.write_text(str(time.monotonic()))
            raise KeyError("only here")
        group.barrier()
"""
PASSES = """
def test_all(standfast_group):
    assert standfast_group.all_sum(1) == standfast_group.size
"""
CONFTEST = """
import pathlib, pytest

@pytest.fixture
def record():
    return pathlib.Path(__file__).with_name("raised_s")
"""


def limit_s() -> float:
    """Return the promised time, and more where the processors have been overbooked for a minute.

    Without the plugin it would be the progress limit, ten minutes.
    """
    return LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Run:
    """`standfast run` with a pytest per rank, and what came of it."""

    def __init__(self, folder: Path, tests: str) -> None:
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_ranks.py").write_text(tests)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STANDFAST_")}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # three pytests start at once
        if "EXPECT_INSTALLED" not in environment:
            environment["PYTHONPATH"] = str(ROOT / "src")
        launcher = [sys.executable, "-m", "standfast", "run", "-n", str(RANKS), "--json", "--"]
        words = ["-q", "-p", "standfast.testing.pytest_plugin", "-p", "no:cacheprovider"]
        answer = subprocess.run(
            [*launcher, sys.executable, "-m", "pytest", *words, str(folder)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        self.ended_s = time.monotonic()
        self.status = answer.returncode
        self.report = json.loads(answer.stdout)
        self.lines = answer.stderr.splitlines()

    def first(self, text: str) -> int:
        """Return the first line with a text."""
        found = [number for number, line in enumerate(self.lines) if text in line]
        assert found, "\n".join([f"no line with {text!r}", *self.lines])
        return found[0]

    def all_of(self, rank: int) -> str:
        """Return what a rank has written."""
        return "\n".join(line for line in self.lines if line.startswith(f"[r{rank}]"))


@pytest.mark.parametrize("tests", [RAISES, IN_A_FIXTURE])
def test_a_failure_ends_all_ranks(tests: str, tmp_path: Path) -> None:
    """In a test or its fixture: soon, with one traceback, and no rank begins another test."""
    run = Run(tmp_path, tests)
    took_s = run.ended_s - float((tmp_path / "raised_s").read_text())
    assert took_s < limit_s(), "\n".join(run.lines)
    assert run.status == 1
    assert run.first(f"[r{FAILING}]") <= run.first("KeyError: 'only here'") < run.first("RemoteFai")
    assert "no rank comes here" not in "\n".join(run.lines)
    for rank in set(range(RANKS)) - {FAILING}:
        assert "RemoteFailure: rank 1" in run.all_of(rank)
        assert "Traceback" not in run.all_of(rank)
    assert run.report["generations"][0]["first"] == FAILING


def test_a_group_of_the_tests_own(tmp_path: Path) -> None:
    """A group that ends within the test: the same, told by the group itself."""
    run = Run(tmp_path, OWN_GROUP)
    took_s = run.ended_s - float((tmp_path / "raised_s").read_text())
    assert took_s < limit_s()
    for rank in set(range(RANKS)) - {FAILING}:
        assert "RemoteFailure: rank 1" in run.all_of(rank)


def test_what_passes_passes(tmp_path: Path) -> None:
    """Nothing changes for tests that pass."""
    run = Run(tmp_path, PASSES)
    assert run.status == 0
    assert all("1 passed" in run.all_of(rank) for rank in range(RANKS))
