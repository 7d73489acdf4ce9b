"""The launcher's connection to the agent of one host: a process, three pipes, a clock."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from standfast.launch.clock import now_ns
from standfast.launch.guardian import Guardian
from standfast.launch.lines import Tail
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
        command: Sequence[str],
        selector: selectors.BaseSelector,
        guardian: Guardian,
        heard: Callable[[Any], None],
        lost: Callable[[], None],
        limit_ns: int = CONNECT_NS,
    ) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.reason = ""
        self.offset_ns = 0
        """The agent's clock minus ours."""
        self._selector = selector
        self._guardian = guardian
        self._heard = heard
        self._lost = lost
        self._round_trip_ns: int | None = None
        self._began_ns = self._heard_ns = now_ns()
        self._asked_ns: int | None = None
        """When we pinged first since we heard anything: a standstill of our own is no silence."""
        self._pinged_ns = 0
        self._limit_ns = limit_ns
        self._said = Tail()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the launcher's
            preexec_fn=guardian.enter,  # noqa: PLW1509 - safe: the launcher has one thread
        )
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._err_fd: int | None = os.dup(stderr.fileno())
        os.set_blocking(self._err_fd, False)
        selector.register(self._err_fd, selectors.EVENT_READ, self._read_stderr)
        self._pipes = Pipes(
            selector,
            os.dup(stdout.fileno()),
            os.dup(stdin.fileno()),
            Frames(News, magic=MAGIC),
            self._take,
            self._lose,
        )
        for each in (stdin, stdout, stderr):
            each.close()

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

    def close(self) -> None:
        """Let the agent go, and make sure that the process is gone."""
        self.say(Goodbye())
        self._end_process(GOODBYE_S)

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

    def _read_stderr(self) -> None:
        if self._err_fd is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._err_fd, 65536):
                self._said.feed(data)
            self._close_stderr()

    def _close_stderr(self) -> None:
        if self._err_fd is not None:
            self._selector.unregister(self._err_fd)
            os.close(self._err_fd)
            self._err_fd = None

    def _lose(self, reason: str) -> None:
        self._end_process(0.2)
        self.reason = explained(self.name, reason, self._said.lines()[-3:])
        self._lost()

    def _end_process(self, patience_s: float) -> None:
        self._pipes.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._read_stderr()
        self._close_stderr()
        self._guardian.gone(self._process.pid)
