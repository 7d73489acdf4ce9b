"""This machine's IPv4 addresses by interface, and what STANDFAST_DATA_ADDRESS means on it."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping

from standfast.endpoint import is_numeric
from standfast.errors import ConfigError

SIOCGIFADDR = 0x8915 if sys.platform == "linux" else 0xC0206921
# struct ifreq: 16 bytes of name, then a sockaddr_in whose address begins at its 4th byte.
IFREQ = struct.Struct("16s24x")
ADDRESS = slice(20, 24)


def ipv4_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, SIOCGIFADDR, IFREQ.pack(name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[ADDRESS])
    return found


def chosen_address(wanted: str, addresses: Mapping[str, str]) -> str:
    """Return the address that an address, interface name or subnet stands for. Pure.

    Raises:
        ConfigError: no interface of this machine fits.
    """
    if is_numeric(wanted):
        return wanted
    if wanted in addresses:
        return addresses[wanted]
    for address in addresses.values():
        if _contains(wanted, address):
            return address
    known = ", ".join(f"{name} {address}" for name, address in addresses.items())
    raise ConfigError(
        f"data_address={wanted!r} (STANDFAST_DATA_ADDRESS) is no address, interface or subnet here",
        hint=f"this host has {known}; an IPv6 address must be given in full",
    )


def _contains(subnet: str, address: str) -> bool:
    try:
        network = ipaddress.ip_network(subnet, strict=False) if "/" in subnet else None
    except ValueError:
        return False
    return network is not None and ipaddress.ip_address(address) in network
