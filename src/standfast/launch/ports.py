"""The coordinator's listener and torch's port."""

from __future__ import annotations

import errno
import socket

from standfast.launch.environment import HOST

ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


def open_listener(host: str = HOST) -> socket.socket:
    """Listen on a free port; rank 0 inherits the socket, so nobody can take the port.

    `host`: an address by which others reach this machine. If it is none of its own (NAT), all
    addresses are listened on.
    """
    family = family_of(host)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            listener.close()
            raise
        listener.bind((ANY[family], 0))
    listener.listen(1024)
    return listener


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of a numeric address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def port_of(listener: socket.socket) -> int:
    """Return the port it listens on."""
    return int(listener.getsockname()[1])


def free_port(host: str = HOST) -> int:
    """Return a port that is free at the moment, and not that of an open listener."""
    with open_listener(host) as probe:
        return port_of(probe)


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Return so many different ports of this machine that are free at the moment."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port(host)] = None
    return list(found)
