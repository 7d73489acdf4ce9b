"""The launcher's side of its guardian, a small process that kills what a dead launcher left.

A parent-death signal alone is not enough: it reaches a rank, but not the rank's children, is lost
on exec of a setuid program, and does not exist on macOS. A group comes into the guardian's care
before its first exec: the new child says so itself, so there is no moment at which the launcher's
death would be missed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterable

from standfast.launch.parts import die_with_parent

NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)
GOODBYE_S = 2.0
DEATHS_MAX = 3


class Guardian:
    """Started before the first rank; closed after the last is reaped."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._launcher = os.getpid()
        self._deaths = 0
        self._process, self._line = self._start(())

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it is still to be watched; without it, ranks still die with the launcher."""
        return self._deaths <= DEATHS_MAX

    def replace(self, groups: Iterable[int]) -> bool:
        """After its death: put the groups into the care of another; False after too many."""
        self._process.wait()
        self._deaths += 1
        if not self.lives:
            return False
        self._line.close()
        self._process, self._line = self._start(groups)
        return True

    def enter(self) -> None:
        """Between fork and exec of a rank: put it into care, and let it die with the launcher."""
        self._say(f"+{os.getpid()}")
        die_with_parent(self._launcher)

    def gone(self, group: int) -> None:
        """A group has no members any more; its number may be somebody else's soon."""
        self._say(f"-{group}")

    def close(self) -> None:
        """Take leave; nothing is killed, the directory is removed, no process of ours is left."""
        self._say("!")
        self._line.close()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self, groups: Iterable[int]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, its = socket.socketpair()
        ours.sendall("".join(f"+{group}\n" for group in groups).encode())
        ours.setblocking(False)
        script = os.path.join(os.path.dirname(__file__), "guard.py")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, self._directory],
            stdin=its.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        its.close()
        return process, ours

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):
            self._line.send(f"{word}\n".encode(), NO_SIGPIPE)
