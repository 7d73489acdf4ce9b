"""The nursery of the death tests, and their summary of detection times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.death.measures import MEASURES
from tests.death.processes import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks ranks; it leaves no descriptor in ours."""
    before = len(os.listdir("/dev/fd"))
    nursery = Nursery()
    opened = len(os.listdir("/dev/fd"))
    yield nursery
    left = len(os.listdir("/dev/fd")) - opened
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
