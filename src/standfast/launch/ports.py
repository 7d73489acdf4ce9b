"""The coordinator's listener and torch's port."""

from __future__ import annotations

import socket

from standfast.launch.environment import HOST


def open_listener() -> socket.socket:
    """Listen on a free loopback port; rank 0 inherits the socket, so nobody can take the port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOST, 0))
    listener.listen(1024)
    return listener


def port_of(listener: socket.socket) -> int:
    """Return the port it listens on."""
    return int(listener.getsockname()[1])


def free_port() -> int:
    """Return a port that is free at the moment, and not that of an open listener."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return port_of(probe)
