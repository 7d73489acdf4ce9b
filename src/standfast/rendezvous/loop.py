"""One selector, its timers and one deadline: all of rendezvous runs in it, in init()'s thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable
from types import TracebackType

from standfast.rendezvous.signals import Deferred

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

# An upper bound on each wait, so that nothing depends on a signal or an event to be noticed.
TURN_S_MAX = 0.1


class Watch:
    """What to call when a socket is ready; goes inactive when the socket is forgotten."""

    __slots__ = ("active", "call")

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call: Callable[[int], None] = call
        self.active: bool = True


class Timer:
    """A call at a point in time, until it is cancelled."""

    __slots__ = ("active", "call")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] = call
        self.active: bool = True

    def cancel(self) -> None:
        """Make sure that the call does not happen any more."""
        self.active = False


class Loop:
    """Calls back when sockets are ready and when times have come; owns the sockets it is given.

    What a callback raises comes out of `turn`, and so does what `check()` raises, which is called
    at least every 0.1 s. Leaving the `with` block closes every socket that
    was adopted and not released, and gives the program its signals back.
    """

    def __init__(self, timeout_s: float, check: Callable[[], None] | None = None) -> None:
        self.timeout_s = timeout_s
        self._check = check
        self.started: float = time.monotonic()
        self.deadline: float = self.started + timeout_s
        self._selector = selectors.DefaultSelector()
        self._watches: dict[socket.socket, Watch] = {}
        self._owned: set[socket.socket] = set()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signals = Deferred()

    def __enter__(self) -> Loop:
        self._signals.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        self._signals.leave()

    def close(self) -> None:
        """Close every socket that is owned: for a loop without a `with` block of its own."""
        self._selector.close()
        for sock in self._owned:
            sock.close()

    def fileno(self) -> int:
        """Return a descriptor that can be read when a turn has something to do: for another loop.

        Timers do not show there: that other loop takes a turn now and then all the same.
        """
        return self._selector.fileno()

    def elapsed_s(self) -> float:
        """Return the seconds since the loop was made."""
        return time.monotonic() - self.started

    def expired(self) -> bool:
        """Tell whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def adopt(self, sock: socket.socket) -> None:
        """Close this socket with the loop."""
        self._owned.add(sock)

    def release(self, sock: socket.socket) -> None:
        """Forget a socket without closing it."""
        self.forget(sock)
        self._owned.discard(sock)

    def drop(self, sock: socket.socket) -> None:
        """Forget a socket and close it."""
        self.release(sock)
        sock.close()

    def watch(self, sock: socket.socket, events: int, call: Callable[[int], None]) -> None:
        """Call `call(ready events)` whenever one of them is there; replaces an earlier watch."""
        known = self._watches.get(sock)
        if known is None:
            known = self._watches[sock] = Watch(call)
            self._selector.register(sock, events, known)
        else:
            known.call = call
            self._selector.modify(sock, events, known)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching a socket; it need not be watched."""
        known = self._watches.pop(sock, None)
        if known is not None:
            known.active = False
            self._selector.unregister(sock)

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call `call()` once, after the delay."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), timer))
        return timer

    def calm(self) -> None:
        """Make no more of the calls that were asked for so far; sockets stay owned."""
        for sock in list(self._watches):
            self.forget(sock)
        self._timers.clear()

    def turn(self, until: float | None = None) -> None:
        """Wait for events, a timer, the deadline or `until`, at most 0.1 s, and make the calls.

        Signal handlers of the program run at the end, and nowhere else.
        """
        for key, events in self._selector.select(self._wait_s(until)):
            watch: Watch = key.data
            # An earlier call of the same turn may have closed this socket.
            if watch.active:
                watch.call(events)
        self._run_timers()
        if self._check is not None:
            self._check()
        self._signals.serve()

    def pause(self, seconds: float) -> None:
        """Go on turning for that long, or until the deadline."""
        until = min(time.monotonic() + seconds, self.deadline)
        while time.monotonic() < until:
            self.turn(until)

    def _wait_s(self, until: float | None) -> float:
        now = time.monotonic()
        ends = [now + TURN_S_MAX, self.deadline if until is None else until]
        if self._timers:
            ends.append(self._timers[0][0])
        return max(0.0, min(ends) - now)

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.active:
                timer.active = False
                timer.call()
