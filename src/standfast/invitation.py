"""What rank 0 tells the others by way of somebody else's store: where it listens, and a key.

torch's store and Ray's carry it (torch/meeting.py, ray/meeting.py). Neither knows who lives, so
neither carries more: all else goes over connections that are watched.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import socket
from typing import NamedTuple

from standfast.endpoint import Endpoint
from standfast.errors import RendezvousError
from standfast.rendezvous.listen import ANY4, ANY6, LOOPBACK, has_ipv6, open_listener
from standfast.settings import Secret, Settings

KEY_BYTES = 32


class Invitation(NamedTuple):
    """Where rank 0 listens, as ``host:port``, and the group's key in hex digits, if it has one."""

    address: str | None
    key: str | None

    def text(self) -> str:
        """Return what the store carries."""
        return json.dumps(self._asdict())

    def with_key(self, chosen: Settings) -> Settings:
        """Return the settings with the group's key."""
        if self.key is None:
            return chosen
        return dataclasses.replace(chosen, key=Secret(bytes.fromhex(self.key)))


NOBODY = Invitation(None, None)
"""What a group of one needs."""


def read(carried: bytes | str) -> Invitation:
    """Undo ``Invitation.text()``."""
    return Invitation(**json.loads(carried))


def invite(
    host: str, *, title: str, size: int, chosen: Settings
) -> tuple[socket.socket, Invitation]:
    """Open the listener at which a group meets; return it, and what the others have to know.

    Args:
        host: the address of this host at which the others reach it.
        title: the group's name in messages.
        size: number of ranks.
        chosen: the settings. A key of the program's own need not go through the store.

    Raises:
        RendezvousError: it cannot listen.
    """
    dual = has_ipv6()
    where = LOOPBACK if host == LOOPBACK else ANY6 if dual else ANY4
    try:
        listener = open_listener(where, 0, 2 * size, dual=where == ANY6)
    except OSError as error:
        raise RendezvousError(
            f"rank 0 of the group {title} cannot listen at {where}: {error}",
            rank=0,
            cause=str(error),
        ) from error
    address = str(Endpoint(host, listener.getsockname()[1]))
    key = None if chosen.key else secrets.token_bytes(KEY_BYTES).hex()
    return listener, Invitation(address, key)
