"""Fixtures for all tests, and the summary of detection times."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import Pool

MEASURED = pytest.StashKey[dict[str, list[float]]]()
"""What workers have measured, where tests run in several (pytest-xdist)."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Processes that run one function after another as ranks; they end with the module's tests."""
    pool = Pool()
    yield pool
    pool.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's measures to the one that prints."""
    output = getattr(session.config, "workeroutput", None)
    measures = sys.modules.get("tests.death.measures")
    if output is not None and measures is not None:
        output["seconds"] = dict(measures.MEASURES.seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's measures."""
    gathered = node.config.stash.setdefault(MEASURED, {})
    for label, seconds in getattr(node, "workeroutput", {}).get("seconds", {}).items():
        gathered.setdefault(label, []).extend(seconds)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how long deaths took to be raised."""
    gathered = config.stash.get(MEASURED, {})
    if not gathered and "tests.death.measures" not in sys.modules:
        return
    from tests.death.measures import MEASURES

    for label, seconds in gathered.items():
        MEASURES.seconds[label].extend(seconds)
    if not MEASURES.seconds:
        return
    terminalreporter.section("death tests: from the fault to the exception")
    for line in MEASURES.table():
        terminalreporter.write_line(line)
    where = Path(os.environ.get("DEATH_TABLE", ""))
    if where.name:
        where.write_text("\n".join(MEASURES.table()) + "\n")
