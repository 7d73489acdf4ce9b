"""What is said of an address that kept silent: what was seen, and advice only where it follows."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from standfast.endpoint import Endpoint
from standfast.errors import RendezvousError
from standfast.rendezvous import failures, second_look
from standfast.rendezvous.second_look import Look, advice, evidence, look, wanted

COORDINATOR = Endpoint("10.0.0.9", 5)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({}, COORDINATOR),
        ({"10.0.0.1:5": "ECONNREFUSED from 10.0.0.2"}, None),
        ({"10.0.0.1:5": "EHOSTUNREACH from 10.0.0.2"}, Endpoint("10.0.0.1", 5)),
        ({"10.0.0.1:5": "ECONNREFUSED", "[fd00::1]:5": "ETIMEDOUT"}, Endpoint("fd00::1", 5)),
        ({"host:5": "cannot be looked up: no such name"}, None),
    ],
)
def test_only_silence_is_looked_at(outcomes: dict[str, str], expected: Endpoint | None) -> None:
    """A host that refused has answered; a name without an address has nothing to look at."""
    assert wanted(outcomes, COORDINATOR) == expected
    assert wanted({}, Endpoint("name", 5)) is None


@pytest.mark.parametrize(
    ("seen", "platform", "words"),
    [
        (Look("10.0.0.1:5", "10.0.0.2", True), "darwin", "Local Network"),
        (Look("10.0.0.1:5", "10.0.0.2", True), "linux", None),
        (Look("10.0.0.1:5", "10.0.0.2", False), "darwin", None),
        (Look("10.0.0.1:5", "10.0.0.2", None), "darwin", None),
        (Look("10.0.0.1:5", None, False), "darwin", "no route to 10.0.0.1:5"),
        (Look("10.0.0.1:5", None, None), "linux", "no route to 10.0.0.1:5"),
    ],
)
def test_advice(seen: Look, platform: str, words: str | None) -> None:
    """macOS's privacy setting is named only if there is a route and another process gets on."""
    said = advice(seen, platform=platform)
    assert said is None if words is None else words in (said or "")


def test_a_real_look(listener: socket.socket) -> None:
    """For an address that answers: the route's source, and another process's success, soon."""
    began_s = time.monotonic()
    seen = look(Endpoint("127.0.0.1", listener.getsockname()[1]))
    assert time.monotonic() - began_s < second_look.LIMIT_S + 5.0
    assert seen.source == "127.0.0.1"
    assert seen.elsewhere in (True, None)  # None: the machine was too busy to start it in time
    assert "there is a route from 127.0.0.1" in evidence(seen)


def test_an_address_that_nobody_has() -> None:
    """Another process fails there too."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert look(Endpoint("127.0.0.1", port)).elsewhere in (False, None)


def test_the_error_tells_it() -> None:
    """Address, source and errno of the attempts, what another process saw, and the advice."""
    error = failures.unreachable(
        3,
        5.0,
        "10.0.0.1:5",
        41,
        "10.0.0.1:5: EHOSTUNREACH from 10.0.0.2",
        seen=Look("10.0.0.1:5", "10.0.0.2", True),
        platform="darwin",
    )
    assert isinstance(error, RendezvousError)
    for words in ("41 attempts", "EHOSTUNREACH from 10.0.0.2", "a process of its own reaches it"):
        assert words in error.message
    assert "Local Network" in str(error.hint)
