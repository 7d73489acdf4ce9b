"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Processes that run one function after another as ranks; they end with the module's tests."""
    pool = Pool()
    yield pool
    pool.close()
