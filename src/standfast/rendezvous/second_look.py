"""What else this machine can say of an address that did not answer: for the error's text only.

member.py asks once, when its deadline has passed. A refused connection needs none of this: the host
has answered then.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from standfast.endpoint import Endpoint, is_numeric, parse_endpoint

# The error is promised within a second of the deadline, and must be written too.
LIMIT_S = 0.7
SILENT = ("EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT", "EACCES", "EPERM")
CONNECT = (
    "import socket, sys; "
    "socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()"
)
LOCAL_NETWORK = (
    "macOS may keep this program from the local network: allow it in System Settings, Privacy & "
    "Security, Local Network, and start it from a session that stays open"
)


class Look(NamedTuple):
    """What was seen. source: from where this machine would send, None if it has no route there.

    elsewhere: a process of its own reached the address; None if none could be asked in time.
    """

    address: str
    source: str | None
    elsewhere: bool | None


def wanted(outcomes: Mapping[str, str], coordinator: Endpoint) -> Endpoint | None:
    """Return the first address that kept silent, of addresses with their last outcomes. Pure.

    Without any outcome, the first attempt is still under way: at the coordinator's address.
    """
    if not outcomes:
        return coordinator if is_numeric(coordinator.host) else None
    for address, outcome in outcomes.items():
        if outcome.partition(" ")[0] in SILENT:
            return parse_endpoint(address)
    return None


def look(endpoint: Endpoint) -> Look:
    """Ask the kernel for a route, and let another process try the same address once."""
    return Look(str(endpoint), _source(endpoint), _elsewhere(endpoint))


def evidence(seen: Look) -> str:
    """Say in words what was seen. Pure."""
    route = f"there is a route from {seen.source}" if seen.source else "there is no route to it"
    if seen.elsewhere is None:
        return f"{seen.address}: {route}"
    other = "reaches it" if seen.elsewhere else "does not reach it either"
    return f"{seen.address}: {route}; a process of its own {other}"


def advice(seen: Look, *, platform: str) -> str | None:
    """Say what to do, where what was seen tells. Pure.

    The rule for macOS follows reports of users: sockets of a program without the permission, or of
    one whose session has ended, see EHOSTUNREACH or a time-out where those of others connect. It
    could not be tried on a Mac.
    """
    if seen.source is None:
        return f"this machine has no route to {seen.address}: is the interface up?"
    if platform == "darwin" and seen.elsewhere:
        return LOCAL_NETWORK
    return None


def _source(endpoint: Endpoint) -> str | None:
    """Connecting a datagram socket sends nothing, and makes the kernel choose a route."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(
                socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0][4]
            )
            return str(sock.getsockname()[0])
    except OSError:
        return None


def _elsewhere(endpoint: Endpoint) -> bool | None:
    words = [endpoint.host, str(endpoint.port), str(LIMIT_S / 2)]
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CONNECT, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.returncode == 0
