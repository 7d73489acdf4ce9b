"""Connecting goes on through every errno that may pass, and only time ends it."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast.endpoint import Endpoint
from standfast.rendezvous import dial
from standfast.rendezvous.dial import Dial, connect_limit_s, pause_s
from standfast.rendezvous.loop import Loop

ENOUGH_S = 10.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop(60.0) as loop:
        yield loop


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def endpoint_of(listener: socket.socket) -> Endpoint:
    return Endpoint("127.0.0.1", listener.getsockname()[1])


def connect(loop: Loop, endpoints: list[Endpoint]) -> Dial:
    """Dial until there is a connection."""
    connected: list[socket.socket] = []
    dialling = Dial(loop, endpoints, lambda sock, address: connected.append(sock))
    dialling.start()
    deadline = time.monotonic() + ENOUGH_S
    while not connected:
        assert time.monotonic() < deadline, dialling.attempts.text()
        loop.turn()
    connected[0].close()
    return dialling


def failing(monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    """Make the next connects fail with these errnos."""

    class Failing(socket.socket):
        def connect_ex(self, address: Any) -> int:
            return codes.pop(0) if codes else super().connect_ex(address)

    monkeypatch.setattr(dial.socket, "socket", Failing)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "ECONNREFUSED",
        "ETIMEDOUT",
        "EHOSTUNREACH",
        "ENETUNREACH",
        "ECONNABORTED",
        "ECONNRESET",
        "EADDRNOTAVAIL",
        "EHOSTDOWN",
        "ENETDOWN",
        "EPERM",
        "EACCES",
        "ENOBUFS",
        "EAGAIN",
    ],
)
def test_errnos_that_may_pass_are_tried_again(
    loop: Loop, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """R35: each of them only delays, and is logged and remembered by name."""
    failing(monkeypatch, [getattr(errno, name)] * 3)
    dialling = connect(loop, [endpoint_of(listener)])
    assert dialling.attempts.count == 4
    assert name in dialling.attempts.text()


def test_the_next_address_is_tried_at_once(loop: Loop, listener: socket.socket) -> None:
    """An address that does not work costs no pause as long as there are others."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    dialling = connect(loop, [Endpoint("127.0.0.1", port), endpoint_of(listener)])
    assert dialling.attempts.count == 2


def test_an_address_of_a_family_that_is_missing_is_passed_over(
    loop: Loop, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """localhost may mean ::1 on a machine without IPv6."""
    failing(monkeypatch, [errno.EAFNOSUPPORT])
    assert connect(loop, [endpoint_of(listener)] * 2).attempts.count == 2


def test_what_never_passes_is_an_error(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all addresses are refused by the local system for good, waiting does not help."""
    failing(monkeypatch, [errno.EMFILE] * 10)
    dialling = Dial(loop, [Endpoint("127.0.0.1", 1)], lambda sock, address: sock.close())
    with pytest.raises(OSError, match="EMFILE") as caught:
        dialling.start()
    assert caught.value.errno == errno.EMFILE


def test_pauses_grow_with_the_time_spent() -> None:
    """First 10 ms, then 5 % of the time so far, at most 1 s; chance spreads them."""
    assert pause_s(0.0, 0.5) == pytest.approx(0.01)
    assert pause_s(10.0, 0.5) == pytest.approx(0.5)
    assert pause_s(1000.0, 0.5) == pytest.approx(1.0)
    assert pause_s(10.0, 0.0) < pause_s(10.0, 1.0) <= 1.25 * 0.5


def test_a_connect_has_its_own_limit() -> None:
    """A silent address is left for the next one after 2 s, later 10 s."""
    assert [connect_limit_s(number) for number in (0, 1, 2, 3, 100)] == [2, 4, 8, 10, 10]


def test_a_silent_address_is_left(loop: Loop, listener: socket.socket) -> None:
    """A connect that gets no answer does not keep the others waiting."""
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(dial, "connect_limit_s", lambda number: 0.05)
        silent = full_listener()
        try:
            dialling = connect(loop, [endpoint_of(silent[0]), endpoint_of(listener)])
        finally:
            for sock in silent:
                sock.close()
    assert "ETIMEDOUT from 127.0.0.1" in dialling.attempts.text()


def full_listener() -> list[socket.socket]:
    """Return a listener whose queue is full, so that it answers nobody, and what fills it."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    socks = [listener]
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(listener.getsockname())
        socks.append(sock)
    return socks


def look_ups(monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> None:
    """Make name look-ups give these answers: an exception, or a host to look up instead."""
    original = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        if not isinstance(host, str):
            return original(host, *args, **more)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer()
        return original("127.0.0.1", *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_a_name_may_not_be_known_yet(
    loop: Loop, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up that fails is tried again, each time afresh."""
    again = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    look_ups(monkeypatch, [again, unknown, "127.0.0.1"])
    dialling = connect(loop, [Endpoint("node0.example", endpoint_of(listener).port)])
    assert dialling.attempts.count == 3
    assert "Name or service not known" in dialling.attempts.text()


def test_a_resolver_that_hangs_holds_nobody(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop turns on while a look-up takes its time."""
    release = threading.Event()
    hang: Callable[[], object] = lambda: release.wait(ENOUGH_S)  # noqa: E731 - one word is enough
    look_ups(monkeypatch, [hang])
    dialling = Dial(loop, [Endpoint("node0.example", 1)], lambda sock, address: None)
    dialling.start()
    started = time.monotonic()
    loop.pause(0.1)
    assert time.monotonic() - started < ENOUGH_S / 2
    dialling.stop()
    release.set()


def test_each_new_reason_is_logged_once(
    loop: Loop,
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R35: retries are logged, but a thousand equal ones are one line."""
    caplog.set_level(logging.INFO, logger="standfast")
    failing(monkeypatch, [errno.ECONNREFUSED] * 5 + [errno.EHOSTUNREACH] * 2)
    connect(loop, [endpoint_of(listener)])
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert "ECONNREFUSED" in messages[0]
    assert "EHOSTUNREACH" in messages[1]


def test_a_connection_to_itself_is_none(loop: Loop, listener: socket.socket) -> None:
    """The kernel can join a socket with itself on an unanswered local port."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        assert dial._useless(own) == errno.ECONNREFUSED
    with socket.create_connection(listener.getsockname()) as sock:
        assert dial._useless(sock) == 0
    with socket.socket() as unconnected:
        assert dial._useless(unconnected) == errno.ENOTCONN


class Virtual:
    """Time that passes only while the loop waits, so that minutes of it cost nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        virtual = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                ready = super().select(0)
                virtual.now_s += 1e-4 if ready else (timeout or 1e-4)
                return ready

        monkeypatch.setattr("standfast.rendezvous.loop.time", self)
        monkeypatch.setattr("standfast.rendezvous.loop.selectors", self)
        self.DefaultSelector = Selector

    def monotonic(self) -> float:
        """Stand in for time.monotonic."""
        return self.now_s


@pytest.mark.parametrize("limit_s", [5.0, 30.0, 120.0])
def test_only_the_deadline_ends_it(limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts go on to the deadline, at most about a second apart, and never beyond it."""
    clock = Virtual(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        endpoint = endpoint_of(gone)
    with Loop(limit_s) as loop:
        dialling = Dial(loop, [endpoint], lambda sock, address: None)
        dialling.start()
        last, longest_s, count = 0.0, 0.0, 0
        while not loop.expired():
            loop.turn()
            if dialling.attempts.count > count:
                count, longest_s, last = (
                    dialling.attempts.count,
                    max(longest_s, clock.now_s - last),
                    clock.now_s,
                )
    assert limit_s <= clock.now_s < limit_s + 1.0
    assert longest_s < 1.5
    assert count > limit_s
