"""The connections of a muster, kept until the group is formed: a rank that dies between is missed.

form() knows only those who have come to it. Its `check` looks here as well, so that nobody waits
for a rank that knew its place and died on the way. Who is done says so before it lets go.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from standfast.errors import PeerDied

DONE = b"."


class Tether:
    """Connections by rank of the new group: the one that serves has all, the others that one."""

    def __init__(self, fds: Mapping[int, int], generation: int) -> None:
        """Own these descriptors, of non-blocking stream sockets."""
        self._socks = {rank: socket.socket(fileno=fd) for rank, fd in fds.items()}
        self._generation = generation

    def check(self) -> None:
        """Raise PeerDied if one of them has ended unexpectedly."""
        for rank, sock in self._socks.items():
            if _has_ended(sock):
                raise PeerDied(
                    f"rank {rank} of generation {self._generation} was lost while that was being "
                    "formed: its connection ended",
                    rank=rank,
                    cause="its connection ended",
                    generation=self._generation,
                    op="reform",
                )

    def done(self) -> None:
        """Let go in good order: the group is formed, as far as this rank is concerned."""
        for sock in self._socks.values():
            try:
                sock.send(DONE)
            except OSError:
                continue  # it has ended: the new group's watch tells why
        self.cut()

    def cut(self) -> None:
        """Let go."""
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()


def _has_ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
