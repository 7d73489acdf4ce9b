"""Opening the listeners of rendezvous: rank 0's for all to meet, and each rank's for data."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Sequence

from standfast.endpoint import Endpoint, is_loopback, is_numeric
from standfast.errors import ConfigError, RendezvousError
from standfast.rendezvous.channel import errno_name
from standfast.rendezvous.interfaces import chosen_address, ipv4_addresses
from standfast.rendezvous.loop import Loop

# How long a port may stay taken, e.g. by the last generation's process as it ends.
BIND_PATIENCE_S = 2.0
BIND_AGAIN_S = 0.05
# An address may also come a little late, with its interface.
BIND_TRANSIENT = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
BACKLOG_MIN = 128
ANY4, ANY6, LOOPBACK = "0.0.0.0", "::", "127.0.0.1"


def text_of(address: tuple[object, ...]) -> str:
    """Return a socket address's host: IPv4 in its own form, link-local with its interface."""
    host = str(address[0])
    if ":" not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition("%")[0])
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    scope = address[3] if len(address) == 4 else 0
    if isinstance(scope, int) and scope and parsed.is_link_local:
        return f"{parsed}%{socket.if_indextoname(scope)}"
    return str(parsed)


def bind_hosts(host: str, *, ipv6: bool) -> list[str]:
    """Return the addresses at which rank 0 listens for a coordinator given as `host`. Pure.

    A name stands for all addresses of this machine: it may mean another one here (127.0.1.1) than
    elsewhere, and need not be looked up.
    """
    if is_numeric(host):
        return [host]
    if host == "localhost":
        return [LOOPBACK, "::1"] if ipv6 else [LOOPBACK]
    return [ANY6] if ipv6 else [ANY4]


def has_ipv6() -> bool:
    """Tell whether this machine has IPv6, at least over loopback."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def open_listener(host: str, port: int, backlog: int, *, dual: bool = False) -> socket.socket:
    """Listen at one address; `dual`: at :: for IPv4 as well. OSError where that is impossible."""
    kind, flags = socket.SOCK_STREAM, socket.AI_NUMERICHOST | socket.AI_PASSIVE
    # As bytes: for text, Python loads the tables of international names (5 ms).
    numeric = host.encode("ascii")
    family, _, _, _, address = socket.getaddrinfo(numeric, port, type=kind, flags=flags)[0]
    sock = socket.socket(family, kind)
    try:
        # Past connections in TIME_WAIT do not keep the port; a living listener does.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        sock.bind(address)
        sock.listen(max(BACKLOG_MIN, backlog))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def open_coordinator(loop: Loop, endpoint: Endpoint, size: int) -> list[socket.socket]:
    """Listen at the coordinator's address; a port or address that is not free is tried for 2 s.

    Raises:
        RendezvousError: it cannot be listened on; names the address and errno.
    """
    until = time.monotonic() + BIND_PATIENCE_S
    hosts = bind_hosts(endpoint.host, ipv6=has_ipv6())
    while True:
        opened: list[socket.socket] = []
        try:
            for host in hosts:
                dual = host == ANY6 and not is_numeric(endpoint.host)
                opened.append(open_listener(host, endpoint.port, 2 * size, dual=dual))
                loop.adopt(opened[-1])
            return opened
        except OSError as error:
            for sock in opened:
                loop.drop(sock)
            again = error.errno in BIND_TRANSIENT and not loop.expired()
            if not again or time.monotonic() >= until:
                raise _cannot_listen(endpoint, error) from error
        loop.pause(BIND_AGAIN_S)


def _cannot_listen(endpoint: Endpoint, error: OSError) -> RendezvousError:
    hints = {
        errno.EADDRINUSE: f"another process holds port {endpoint.port}: end it, or choose another "
        "port (STANDFAST_PORT, or the port of STANDFAST_COORDINATOR) on all ranks",
        errno.EADDRNOTAVAIL: f"{endpoint.host} is not an address of this machine: the coordinator "
        f"is rank 0's own address; on rank 0 alone it may be {ANY4}:{endpoint.port}",
    }
    return RendezvousError(
        f"rank 0 cannot listen on {endpoint}: {errno_name(error.errno)} ({error.strerror})",
        hint=hints.get(error.errno or 0),
        rank=0,
        cause=errno_name(error.errno),
        address=str(endpoint),
    )


def inherited_listener(fd: int) -> socket.socket:
    """Return the listener that the launcher handed over; its descriptor stays for later groups.

    Raises:
        ConfigError: the descriptor is not a listening stream socket.
    """
    try:
        sock = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        raise ConfigError(f"STANDFAST_LISTEN_FD={fd}: {errno_name(error.errno)}") from error
    try:
        os.set_inheritable(fd, False)
        check_listener(sock, f"STANDFAST_LISTEN_FD={fd}")
    except BaseException:
        sock.close()
        raise
    return sock


def check_listener(sock: socket.socket, name: str) -> None:
    """Make sure that a socket from elsewhere listens, and let it not block.

    Raises:
        ConfigError: it does not listen.
    """
    inet = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not inet or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError(f"{name} is not a listening TCP socket")
    sock.setblocking(False)


def port_of(listener: socket.socket) -> int:
    """Return the port of a listener."""
    return int(listener.getsockname()[1])


def reached_from_here(listener: socket.socket) -> str:
    """Return the address by which this machine itself reaches a listener."""
    host = text_of(listener.getsockname())
    return LOOPBACK if host in (ANY4, ANY6) else host


def is_local_only(listeners: Sequence[socket.socket]) -> bool:
    """Tell whether these listeners can be reached from this machine alone."""
    return all(is_loopback(text_of(sock.getsockname())) for sock in listeners)


def open_data_listener(wanted: str | None, *, near: str | None, size: int) -> socket.socket:
    """Listen for data: where the user wants it, else at `near`, else at all addresses.

    Raises:
        ConfigError: the address that the user wants is none of this machine.
    """
    if wanted is None:
        if near is not None:
            return open_listener(near, 0, size)
        dual = has_ipv6()
        return open_listener(ANY6 if dual else ANY4, 0, size, dual=dual)
    host = chosen_address(wanted, {} if is_numeric(wanted) else ipv4_addresses())
    try:
        return open_listener(host, 0, size)
    except OSError as error:
        raise ConfigError(
            f"data_address={wanted!r} (STANDFAST_DATA_ADDRESS): cannot listen on {host}: "
            f"{errno_name(error.errno)} ({error.strerror or error})"
        ) from error
