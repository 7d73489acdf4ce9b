"""The hosts of the network tests: made once, whole again before each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.death.conftest import nursery
from tests.network.faults import Faults
from tests.network.hosts import Hosts
from tests.network.namespaces import CommandFailed

__all__ = ["nursery"]

HOSTS = 4
DELAY_S = 0.2


def _unable(error: Exception) -> str:
    """Say what is missing, if this machine cannot do what these tests need."""
    return f"needs Linux, root, network namespaces, iproute2 and nftables: {error}"


def skip_or_fail(error: Exception) -> None:
    """Skip where hosts cannot be made, except where they must be: in CI."""
    if os.environ.get("EXPECT_NETWORK"):
        pytest.fail(_unable(error))
    pytest.skip(_unable(error))


@pytest.fixture(scope="session")
def faults() -> Iterator[Faults]:
    """Four hosts, and what breaks them."""
    try:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise PermissionError(f"this is {sys.platform}, user {os.geteuid()}")
        hosts = Hosts(HOSTS)
    except (OSError, CommandFailed) as error:
        skip_or_fail(error)
    with hosts:
        yield Faults(hosts)


@pytest.fixture(scope="session")
def slow() -> Iterator[Hosts]:
    """Hosts that are far from each other."""
    try:
        hosts = Hosts(HOSTS, DELAY_S)
    except (OSError, CommandFailed) as error:
        skip_or_fail(error)
    with hosts:
        yield hosts


@pytest.fixture
def network(faults: Faults) -> Iterator[Faults]:
    """The same, whole at first and healed afterwards."""
    yield faults
    faults.restore()
