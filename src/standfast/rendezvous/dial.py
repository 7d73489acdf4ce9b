"""Connecting: every address in turn, again and again with growing pauses, until it works.

Only time ends it (the loop's deadline), never a count of attempts.
"""

from __future__ import annotations

import errno
import logging
import queue
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from standfast.endpoint import Endpoint, is_numeric
from standfast.rendezvous.channel import errno_name
from standfast.rendezvous.listen import text_of
from standfast.rendezvous.loop import WRITE, Loop, Timer

log: logging.Logger = logging.getLogger("standfast")

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 1.0
# A pause is 5 % of the time spent so far: who is late by t is met at most 1.05 t after the start.
PAUSE_SHARE = 0.05
CONNECT_S_FIRST = 2.0
CONNECT_S_MAX = 10.0
LOOKUP_POLL_S = 0.01

# What the local system will not stop saying, however often it is asked. All else may pass.
PERMANENT = frozenset(
    {errno.EAFNOSUPPORT, errno.EINVAL, errno.EMFILE, errno.ENFILE, errno.EPROTONOSUPPORT}
)

Address = tuple[int, tuple[object, ...]]


def pause_s(elapsed_s: float, chance: float) -> float:
    """Return how long to wait before the next round; `chance` in 0..1 spreads ranks apart. Pure."""
    pause = min(max(elapsed_s * PAUSE_SHARE, PAUSE_S_MIN), PAUSE_S_MAX)
    return pause * (0.75 + 0.5 * chance)


def connect_limit_s(round_number: int) -> float:
    """Return how long one connect may take in the given round, counted from 0. Pure."""
    return float(min(CONNECT_S_FIRST * 2 ** min(round_number, 8), CONNECT_S_MAX))


class Attempts:
    """What was tried and what came of it, for the final message."""

    def __init__(self) -> None:
        self.count = 0
        self.last: dict[str, str] = {}

    def note(self, address: str, outcome: str) -> None:
        """Remember the last outcome for an address."""
        if self.last.get(address) != outcome:
            log.info("connecting to %s: %s; trying again", address, outcome)
        self.last[address] = outcome

    def text(self) -> str:
        """Return e.g. "10.0.0.1:29500: ECONNREFUSED from 10.0.0.2"."""
        return "; ".join(f"{address}: {outcome}" for address, outcome in self.last.items())


class Lookup:
    """Looks a name up in a thread of its own: getaddrinfo has no time limit and cannot be stopped.

    The thread ends when the resolver gives up; until then it is a daemon and harms nobody.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._answer: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()
        self._endpoint = endpoint
        if is_numeric(endpoint.host):
            self._run()
        else:
            threading.Thread(target=self._run, name="standfast-lookup", daemon=True).start()

    def answer(self) -> list[Address] | OSError | None:
        """Return the addresses, or what went wrong, or None as long as there is no answer."""
        try:
            return self._answer.get_nowait()
        except queue.Empty:
            return None

    def _run(self) -> None:
        host: str | bytes = self._endpoint.host
        port, flags = self._endpoint.port, 0
        if is_numeric(self._endpoint.host):
            host, flags = self._endpoint.host.encode("ascii"), socket.AI_NUMERICHOST
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
            self._answer.put(list(dict.fromkeys((entry[0], entry[4]) for entry in found)))
        except OSError as error:
            self._answer.put(error)


class Dial:
    """Calls `connected(socket, address)`; `again(why)` says that nothing came of it and dials on.

    If the local system refuses all addresses for good, that is raised as OSError, out of the loop.
    """

    def __init__(
        self,
        loop: Loop,
        endpoints: Sequence[Endpoint],
        connected: Callable[[socket.socket, str], None],
        nobody: Callable[[], None] | None = None,
    ) -> None:
        """`nobody()` is called after each round in which every address refused to connect."""
        self.attempts: Attempts = Attempts()
        self._loop = loop
        self._endpoints = endpoints
        self._connected = connected
        self._round = 0
        self._started_s = loop.elapsed_s()
        self._hosts: deque[Endpoint] = deque()
        self._addresses: deque[Address] = deque()
        self._sock: socket.socket | None = None
        self._timer: Timer | None = None
        self._address = ""
        self._source = ""
        self._hopeless = False
        self._refusals_only = True
        self._stopped = False
        self._nobody = nobody
        self._code = 0

    def start(self) -> None:
        """Begin a round."""
        self._hopeless = True
        self._refusals_only = True
        self._hosts.extend(self._endpoints)
        self._next()

    def again(self, why: str) -> None:
        """Note why the last connection was of no use, and go on to the next address."""
        self._hopeless = False
        self._refusals_only = False
        self._note(why)

    def stop(self) -> None:
        """End all attempts."""
        self._stopped = True
        if self._timer:
            self._timer.cancel()
        if self._sock:
            self._loop.drop(self._sock)
            self._sock = None

    def _next(self) -> None:
        if self._addresses:
            self._attempt(*self._addresses.popleft())
        elif self._hosts:
            self._look_up(Lookup(self._hosts[0]))
        elif self._hopeless:
            raise OSError(self._code, f"cannot connect: {self.attempts.text()}")
        else:
            self._round += 1
            if self._refusals_only and self._nobody:
                self._nobody()
            if self._stopped:
                return
            pause = pause_s(self._loop.elapsed_s() - self._started_s, random.random())
            self._timer = self._loop.later(pause, self.start)

    def _look_up(self, lookup: Lookup) -> None:
        answer = lookup.answer()
        if answer is None:
            self._timer = self._loop.later(LOOKUP_POLL_S, lambda: self._look_up(lookup))
            return
        endpoint = self._hosts.popleft()
        if isinstance(answer, OSError):
            self.attempts.count += 1
            self._address = str(endpoint)
            self.again(f"cannot be looked up: {answer.strerror or answer}")
            return
        self._addresses.extend(answer)
        self._next()

    def _attempt(self, family: int, address: tuple[object, ...]) -> None:
        self.attempts.count += 1
        self._address = str(Endpoint(text_of(address), int(str(address[1]))))
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._failed(error.errno or 0)
            return
        self._sock = sock
        self._loop.adopt(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code not in (errno.EINPROGRESS, errno.EINTR):
            self._outcome(code)
            return
        self._source = text_of(sock.getsockname())
        self._timer = self._loop.later(
            connect_limit_s(self._round), lambda: self._outcome(errno.ETIMEDOUT)
        )
        self._loop.watch(sock, WRITE, lambda events: self._decided(sock))

    def _decided(self, sock: socket.socket) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._outcome(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _outcome(self, code: int) -> None:
        assert self._sock is not None
        sock, self._sock = self._sock, None
        code = code or _useless(sock)
        if code:
            self._loop.drop(sock)
            self._failed(code)
        else:
            self._loop.release(sock)
            self._connected(sock, self._address)

    def _failed(self, code: int) -> None:
        self._hopeless = self._hopeless and code in PERMANENT
        self._refusals_only = self._refusals_only and code == errno.ECONNREFUSED
        self._code = code
        self._note(errno_name(code) + (f" from {self._source}" if self._source else ""))

    def _note(self, outcome: str) -> None:
        self.attempts.note(self._address, outcome)
        self._source = ""
        self._next()


def _useless(sock: socket.socket) -> int:
    """Return an errno if a connection is gone already, or leads to ourselves; else 0.

    The kernel may let a socket without a listener on this machine connect to itself.
    """
    try:
        return errno.ECONNREFUSED if sock.getsockname() == sock.getpeername() else 0
    except OSError as error:
        return error.errno or errno.ENOTCONN
