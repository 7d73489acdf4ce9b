"""The RDMA devices of this host: `standfast.devices()`, and the lines of `standfast devices`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from standfast import _core, settings
from standfast.errors import FabricError

ACTIVE = "ACTIVE"


@dataclass(frozen=True)
class Gid:
    """An entry of a port's table: an address, as text ("10.0.0.1" if it is IPv4-mapped)."""

    index: int
    address: str
    type: str
    is_ipv4: bool


@dataclass(frozen=True)
class Port:
    """A port of a device.

    number: from 1. state: "ACTIVE", "DOWN", ... link_layer: "Ethernet", "InfiniBand" or
    "unspecified". mtu_bytes: in use. gbit_per_s: None where the port does not tell.
    """

    number: int
    state: str
    link_layer: str
    mtu_bytes: int
    lid: int
    gbit_per_s: float | None
    gids: Sequence[Gid]

    @property
    def is_active(self) -> bool:
        """Whether it has a link to a device at the other end."""
        return self.state == ACTIVE

    @property
    def ipv4(self) -> list[str]:
        """The IPv4 addresses, each once."""
        return list(dict.fromkeys(gid.address for gid in self.gids if gid.is_ipv4))


@dataclass(frozen=True)
class Device:
    """An RDMA device.

    transport: "Thunderbolt", "InfiniBand" (RoCE too), ... queue_pairs, regions: what it says it
    offers, not what is left. trouble: why nothing more is known of it, else "".
    """

    name: str
    transport: str
    queue_pairs: int
    regions: int
    ports: Sequence[Port]
    trouble: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything, fit for JSON."""
        found = dataclasses.asdict(self)
        for port, entry in zip(self.ports, found["ports"], strict=True):
            entry["ipv4"] = port.ipv4
        return found


def devices(*, library: str | None = None) -> list[Device]:
    """Return the RDMA devices of this host.

    Args:
        library: the verbs library to load; without it STANDFAST_RDMA_LIBRARY, or the system's.

    Raises:
        FabricError: RDMA is not available. ``code`` says why: "no_library" (this system has none),
            "library_unusable" (it lacks functions), "no_devices" (RDMA is off, or the hardware has
            none). A fourth reason is no error here: no port is active.
    """
    if library is None:
        library = settings.load({}, os.environ).rdma_library or ""
    try:
        found = _core.verbs_devices(library)
    except _core.VerbsError as error:
        code, text, hint, device, number = error.args
        raise FabricError(
            text, hint=hint or None, code=code, device=device or None, error=number or None
        ) from error
    return [_device(entry) for entry in found]


def _device(entry: Mapping[str, Any]) -> Device:
    ports = [
        Port(
            number=port["port"],
            state=port["state"],
            link_layer=port["link_layer"],
            mtu_bytes=port["mtu_bytes"],
            lid=port["lid"],
            gbit_per_s=port["gbit_per_s"] or None,
            gids=tuple(Gid(*gid) for gid in port["gids"]),
        )
        for port in entry["ports"]
    ]
    return Device(
        name=entry["name"],
        transport=entry["transport"],
        queue_pairs=entry["queue_pairs"],
        regions=entry["regions"],
        ports=tuple(ports),
        trouble=entry["trouble"],
    )


@dataclass(frozen=True)
class Listing:
    """What `standfast devices` shows. trouble: why there is no RDMA all the same, or None."""

    devices: Sequence[Device]

    @property
    def trouble(self) -> str | None:
        """Say why RDMA is not available though there are devices."""
        if any(port.is_active for device in self.devices for port in device.ports):
            return None
        return "RDMA is not available: no port has a link (cable out, or RDMA off at its other end)"

    def text(self) -> str:
        """Return lines for people."""
        return "\n".join(_lines(self.devices))

    def json(self) -> str:
        """Return one JSON object."""
        devices = [device.to_dict() for device in self.devices]
        found = {"devices": devices, "error": {"code": "no_link", "message": self.trouble}}
        if self.trouble is None:
            del found["error"]
        return msgspec.json.encode(found).decode()


def listing() -> Listing:
    """Look at the devices of this host.

    Raises:
        FabricError, ConfigError: as for devices().
    """
    return Listing(devices())


def _lines(found: Sequence[Device]) -> Iterator[str]:
    for device in found:
        if device.trouble:
            yield f"{device.name}: {device.trouble}"
        for port in device.ports:
            yield f"{device.name}, port {port.number}: {_port_text(device, port)}"
            for gid in port.gids:
                kind = "" if gid.type == "unknown" else f" ({gid.type})"
                yield f"  GID {gid.index}: {gid.address}{kind}"


def _port_text(device: Device, port: Port) -> str:
    speed = f", {port.gbit_per_s:g} Gbit/s" if port.gbit_per_s else ""
    address = ", ".join(port.ipv4) or "no IPv4 address"
    layer = f"{device.transport}, link layer {port.link_layer}"
    return f"{port.state}, {address}, {layer}, MTU {port.mtu_bytes}{speed}"
