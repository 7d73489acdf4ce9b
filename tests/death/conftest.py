"""The nursery of the death tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.death.processes import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks ranks."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(autouse=True)
def nothing_is_left_open(nursery: Nursery) -> Iterator[None]:
    """A test leaves no descriptor in our own process: the next ones may run out of them."""
    before = len(os.listdir("/dev/fd"))
    yield
    left = len(os.listdir("/dev/fd")) - before
    assert left <= 0, f"the test has left {left} descriptors open ({before} before it)"
