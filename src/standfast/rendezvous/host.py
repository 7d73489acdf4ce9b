"""Which machine is this? Ranks with the same host id share memory and see each other's pids."""

from __future__ import annotations

import functools
import hashlib
import socket
import sys

if sys.platform == "linux":
    from standfast.rendezvous.host_linux import identities
else:
    from standfast.rendezvous.host_other import identities


def host_name() -> str:
    """Return this machine's name, for messages."""
    return socket.gethostname()[:255] or "localhost"


@functools.cache
def host_id() -> str:
    """Return a hash that is the same for all processes of one machine (and container) only."""
    parts = [host_name(), *identities()]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
