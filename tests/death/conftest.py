"""The nursery of the death tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

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
