"""Addresses as people write them: host:port, [v6]:port, [fe80::1%eth0]:port. Pure.

Used by identity.py, launchers.py and rendezvous/.
"""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass

from standfast.errors import ConfigError

PORT_MAX = 65535
DERIVED_FIRST = 20000
DERIVED_COUNT = 8192


@dataclass(frozen=True)
class Endpoint:
    """A host (name or address, without brackets, with its scope if it has one) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, *, name: str = "coordinator") -> Endpoint:
    """Read ``host:port``; ``name`` is what the text came from, for the message.

    Raises:
        ConfigError: the text is not of that form, or the port is not in 1..65535.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or any(c.isspace() or c in "[]/" for c in host):
        raise ConfigError(f"{name}={text!r} is not of the form host:port")
    if not bracketed and ":" in host:
        raise ConfigError(
            f"{name}={text!r} is ambiguous",
            hint=f"write an IPv6 address in brackets: [{host}]:{port}",
        )
    return Endpoint(host, parse_port(port, name=name, shown=text))


def parse_port(text: str, *, name: str, shown: str | None = None) -> int:
    """Read a port from 1 to 65535.

    Raises:
        ConfigError: it is something else; the message names ``name`` and ``shown`` (or the text).
    """
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= PORT_MAX:
        return int(text)
    raise ConfigError(f"{name}={shown or text!r}: {text!r} is not a port from 1 to {PORT_MAX}")


def derived_port(taken: int) -> int:
    """Return our port beside one that the launcher itself uses (MASTER_PORT, MLX's own).

    The rule: 20000 + taken % 8192. It lies below the ephemeral ports of Linux and macOS, different
    ports of one launcher (mostly neighbours) lead to different ones, and none leads to itself.
    """
    return DERIVED_FIRST + taken % DERIVED_COUNT


@functools.lru_cache(maxsize=1024)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_numeric(host: str) -> bool:
    """Tell whether the host is an address rather than a name that must be looked up."""
    return _address(host) is not None


def is_wildcard(host: str) -> bool:
    """Tell whether the host is 0.0.0.0 or ::, where one can listen but not connect."""
    address = _address(host)
    return address is not None and address.is_unspecified


def is_loopback(host: str) -> bool:
    """Tell whether the address never leaves this machine; False for names."""
    address = _address(host)
    return address is not None and address.is_loopback


def is_link_local(host: str) -> bool:
    """Tell whether this is an IPv6 address that means something on one interface only."""
    address = _address(host)
    return address is not None and address.version == 6 and address.is_link_local
