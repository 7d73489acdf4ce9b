"""Fixtures of the rendezvous tests: rank processes that end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rendezvous.processes import Ranks, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The process that forks ranks."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def ranks(server: Server) -> Iterator[Ranks]:
    """Starts ranks; ends them, and looks for what they have left behind."""
    with Ranks(server) as ranks:
        yield ranks
