"""The nursery of the death tests, and their summary of detection times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.death.measures import MEASURES
from tests.death.processes import Nursery

OPEN_AFTER: dict[str, int] = {}
"""Descriptors of this process after the latest test here; later ones have their own to keep."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Count the descriptors, when the test's own fixtures have ended."""
    OPEN_AFTER["latest"] = len(os.listdir("/dev/fd"))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks ranks; the tests leave no descriptor in ours."""
    before = len(os.listdir("/dev/fd"))
    nursery = Nursery()
    opened = len(os.listdir("/dev/fd"))
    yield nursery
    left = OPEN_AFTER.get("latest", opened) - opened
    nursery.close()
    assert left <= 0, f"the tests have left {left} descriptors open ({before} before the first)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long deaths took to be raised."""
    if MEASURES.seconds:
        terminalreporter.section("death tests: from the fault to the exception")
        for line in MEASURES.table():
            terminalreporter.write_line(line)
        where = Path(os.environ.get("DEATH_TABLE", ""))
        if where.name:
            where.write_text("\n".join(MEASURES.table()) + "\n")
