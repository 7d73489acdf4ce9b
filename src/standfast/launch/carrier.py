"""What carries frames between the launcher and an agent: a process of ours, or a TCP connection."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Protocol

from standfast.launch.clock import now_ns
from standfast.launch.guardian import Guardian
from standfast.launch.lines import Tail


class Carrier(Protocol):
    """Two descriptors that the link takes over, and what else there is to know about them."""

    read_fd: int
    write_fd: int

    def said(self) -> Sequence[str]:
        """Return the last lines of what the other end said beside its frames."""

    def end(self, patience_s: float) -> None:
        """Make sure that nothing of it is left; the link has closed its descriptors."""


class ProcessCarrier:
    """The stdin and stdout of a process: ssh, or an agent on this machine."""

    def __init__(
        self, command: Sequence[str], selector: selectors.BaseSelector, guardian: Guardian
    ) -> None:
        self._selector = selector
        self._guardian = guardian
        self._tail = Tail()
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
        self.read_fd: int = os.dup(stdout.fileno())
        self.write_fd: int = os.dup(stdin.fileno())
        for each in (stdin, stdout, stderr):
            each.close()

    def said(self) -> Sequence[str]:
        """Return the last lines of its stderr."""
        return self._tail.lines()[-3:]

    def end(self, patience_s: float) -> None:
        """Wait so long for its end, then kill it."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._read_stderr()
        self._close_stderr()
        self._guardian.gone(self._process.pid)

    def _read_stderr(self) -> None:
        if self._err_fd is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._err_fd, 65536):
                self._tail.feed(data)
            self._close_stderr()

    def _close_stderr(self) -> None:
        if self._err_fd is not None:
            self._selector.unregister(self._err_fd)
            os.close(self._err_fd)
            self._err_fd = None


class SocketCarrier:
    """A connection over which the launcher of another node has come to serve as an agent."""

    def __init__(self, fd: int) -> None:
        self.ended: bool = False
        self._sock = socket.socket(fileno=fd)
        self.read_fd: int = os.dup(fd)
        self.write_fd: int = os.dup(fd)

    def said(self) -> Sequence[str]:
        """Return nothing: frames are all that comes."""
        return ()

    def end(self, patience_s: float) -> None:
        """Wait so long for the other side's end.

        To close with something unread would reset the connection, and could overtake a goodbye.
        """
        self.ended = True
        until_ns = now_ns() + int(patience_s * 1e9)
        with self._sock, contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while (left_ns := until_ns - now_ns()) > 0:
                self._sock.settimeout(left_ns / 1e9)
                if not self._sock.recv(65536):
                    return
