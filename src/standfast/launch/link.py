"""The launcher's connection to the agent of one host: a carrier, frames, pings, a clock."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

from standfast.launch.carrier import Carrier
from standfast.launch.clock import now_ns
from standfast.launch.orders import (
    LEASE_NS,
    MAGIC,
    PING_NS,
    Frames,
    Goodbye,
    Hello,
    News,
    Order,
    Ping,
    Pong,
)
from standfast.launch.pipes import Pipes
from standfast.launch.ssh import explained
from standfast.version import version

CONNECT_NS = 30_000_000_000
"""For a host that is asked for the first time, logging in included."""
GOODBYE_S = 2.0


class Link:
    """One attempt to have an agent on a host; what was lost is not mended but replaced.

    `heard(message)` is called for all but what concerns the connection itself, `lost()` once.
    """

    def __init__(
        self,
        name: str,
        carrier: Carrier,
        selector: selectors.BaseSelector,
        heard: Callable[[Any], None],
        lost: Callable[[], None],
        limit_ns: int = CONNECT_NS,
    ) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.reason: str = ""
        self.offset_ns: int = 0
        """The agent's clock minus ours."""
        self._heard = heard
        self._lost = lost
        self._round_trip_ns: int | None = None
        self._began_ns = self._heard_ns = now_ns()
        self._asked_ns: int | None = None
        """When we pinged first since we heard anything: a standstill of our own is no silence."""
        self._pinged_ns = 0
        self._limit_ns = limit_ns
        self._carrier = carrier
        self._pipes = Pipes(
            selector,
            carrier.read_fd,
            carrier.write_fd,
            Frames(News, magic=MAGIC),
            self._take,
            self._lose,
        )

    @property
    def up(self) -> bool:
        """Whether the agent is there."""
        return self.hello is not None and self._pipes.open

    @property
    def down(self) -> bool:
        """Whether this attempt is over."""
        return not self._pipes.open

    def due_ns(self) -> int:
        """Return when attend() has something to do."""
        return self._pinged_ns + PING_NS

    def attend(self) -> None:
        """Say that we live, and notice if the agent does not."""
        now = now_ns()
        if self.down:
            return
        if self.up and self._asked_ns is not None and now - self._asked_ns > LEASE_NS:
            self._pipes.close()
            self._lose(f"nothing was heard for {LEASE_NS / 1e9:g} s")
        elif not self.up and now - self._began_ns > self._limit_ns:
            self._pipes.close()
            self._lose(f"no answer for {self._limit_ns / 1e9:g} s")
        elif now >= self.due_ns():
            self._pinged_ns = now
            self._asked_ns = self._asked_ns or now
            self.say(Ping(now))

    def say(self, order: Order) -> None:
        """Send an order; into the void if the link is down."""
        self._pipes.say(order)

    def ours_ns(self, theirs_ns: int) -> int:
        """Return a moment of the agent's clock by ours."""
        return theirs_ns - self.offset_ns

    def take_leave(self, status: int) -> None:
        """Tell the agent that the job is over, and how it ended."""
        self.say(Goodbye(status))

    def close(self) -> None:
        """After the leave: make sure that nothing of the connection is left."""
        self._end_carrier(GOODBYE_S)

    def _take(self, message: Any) -> None:
        self._heard_ns = now_ns()
        self._asked_ns = None
        match message:
            case Hello():
                if message.version != version():
                    self._pipes.close()
                    self._lose(f"it has standfast {message.version}, here is {version()}")
                    return
                self.hello = message
                self._heard(message)
            case Pong(sent_ns, theirs_ns):
                self._note_clock(sent_ns, theirs_ns)
            case _:
                self._heard(message)

    def _note_clock(self, sent_ns: int, theirs_ns: int) -> None:
        """The quickest answer tells most exactly how far the clocks are apart."""
        round_trip_ns = self._heard_ns - sent_ns
        if self._round_trip_ns is None or round_trip_ns < self._round_trip_ns:
            self._round_trip_ns = round_trip_ns
            self.offset_ns = theirs_ns - (sent_ns + self._heard_ns) // 2

    def _lose(self, reason: str) -> None:
        self._end_carrier(0.2)
        self.reason = explained(self.name, reason, self._carrier.said())
        self._lost()

    def _end_carrier(self, patience_s: float) -> None:
        self._pipes.close()
        self._carrier.end(patience_s)
