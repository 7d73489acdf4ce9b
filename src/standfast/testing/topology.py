"""What an emulated fabric consists of: its file, and JACCL's matrix of devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FIRST_DEVICE = 2
"""Thunderbolt ports of a Mac are en2 and up."""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable, or a switch: a name, and its ends as "host:device:address"."""

    name: str
    ends: tuple[str, ...]

    @property
    def ports(self) -> tuple[str, ...]:
        """The ends, as the emulator names ports, such as "host:device"."""
        return tuple(end.rsplit(":", 1)[0] for end in self.ends)


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts, cables, and for each pair of hosts the devices by which the first reaches the second.

    `settings` are further lines of the fabric file, before the cables; `matrix[i][j]` is a tuple of
    device names, one per cable, empty where i and j are not joined.
    """

    hosts: tuple[str, ...]
    cables: tuple[Cable, ...]
    matrix: tuple[tuple[tuple[str, ...], ...], ...]
    settings: tuple[str, ...] = ()
    prefers_ring: bool = False

    def text(self) -> str:
        """Return the fabric file."""
        hosts = [f"host {host}" for host in self.hosts]
        cables = [f"cable {each.name} {' '.join(each.ends)} up" for each in self.cables]
        return "\n".join([*self.settings, *hosts, *cables]) + "\n"

    def jaccl_matrix(self) -> list[list[str | list[str] | None]]:
        """Return what JACCL's device file holds: null, a name, or a list of names per pair."""
        return [[_cell(names) for names in row] for row in self.matrix]


@dataclass(slots=True)
class _Builder:
    hosts: tuple[str, ...]
    cables: list[Cable] = field(default_factory=list)
    matrix: list[list[tuple[str, ...]]] = field(default_factory=list)
    used: dict[int, int] = field(default_factory=dict)

    def device(self, host: int) -> str:
        number = self.used.get(host, 0)
        self.used[host] = number + 1
        return f"rdma_en{FIRST_DEVICE + number}"

    def join(self, one: int, other: int) -> None:
        number = len(self.cables)
        devices = self.device(one), self.device(other)
        # Self-assigned, as on Macs without DHCP; a network per cable.
        network = f"169.254.{number + 1}"
        ends = tuple(
            f"{self.hosts[host]}:{device}:{network}.{place}"
            for place, (host, device) in enumerate(zip((one, other), devices, strict=True), 1)
        )
        self.cables.append(Cable(f"c{number}", ends))
        self.matrix[one][other] += (devices[0],)
        self.matrix[other][one] += (devices[1],)


def mesh(macs: int, *, cables: int = 1, settings: Sequence[str] = ()) -> Topology:
    """Join any two Macs by `cables` cables; hosts are "mac0", "mac1", ..."""
    pairs = [(one, other) for one in range(macs) for other in range(one + 1, macs)]
    return _joined(macs, pairs, cables, settings, prefers_ring=False)


def ring(macs: int, *, cables: int = 1, settings: Sequence[str] = ()) -> Topology:
    """Join neighbours in a circle by `cables` cables; two Macs are each other's only neighbour."""
    pairs = [(0, 1)] if macs == 2 else [(each, (each + 1) % macs) for each in range(macs)]
    return _joined(macs, pairs if macs > 1 else [], cables, settings, prefers_ring=True)


def switched(
    hosts: int, *, rails: int = 1, profile: str = "roce", settings: Sequence[str] = ()
) -> Topology:
    """Plug `rails` ports of each host into a switch each; hosts are "spark0", "spark1", ...

    profile: "roce" or "infiniband".
    """
    names = tuple(f"spark{each}" for each in range(hosts))
    devices = tuple(f"rocep1s0f{rail}" for rail in range(rails))
    cables = tuple(
        Cable(
            f"s{rail}",
            tuple(
                f"{name}:{devices[rail]}:192.168.{100 + rail}.{10 + place}"
                for place, name in enumerate(names)
            ),
        )
        for rail in range(rails)
    )
    matrix = tuple(
        tuple(() if one == other else devices for other in range(hosts)) for one in range(hosts)
    )
    return Topology(names, cables, matrix, (f"profile {profile}", *settings))


def _joined(
    macs: int,
    pairs: Sequence[tuple[int, int]],
    cables: int,
    settings: Sequence[str],
    *,
    prefers_ring: bool,
) -> Topology:
    builder = _Builder(tuple(f"mac{each}" for each in range(macs)))
    builder.matrix = [[()] * macs for _ in range(macs)]
    for one, other in pairs:
        for _ in range(cables):
            builder.join(one, other)
    matrix = tuple(tuple(row) for row in builder.matrix)
    return Topology(builder.hosts, tuple(builder.cables), matrix, tuple(settings), prefers_ring)


def _cell(names: tuple[str, ...]) -> str | list[str] | None:
    if not names:
        return None
    return names[0] if len(names) == 1 else list(names)
