"""Files that tell other libraries where ranks and cables are: MLX's ring, JACCL's devices.

The texts are pure; they are written where ranks are started, into the job's directory there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from standfast.launch.environment import endpoint
from standfast.launch.placement import Host

if TYPE_CHECKING:
    from standfast.launch.orders import Describe

RING_BACKEND = "ring"
JACCL_RING_BACKEND = "jaccl-ring"


def ring_text(addresses: Sequence[tuple[str, int]]) -> str:
    """Return MLX's host file: rank r listens at the r-th address. "" if MLX could not read it.

    An address is a host and a port. MLX splits at the first colon, so it has no use for IPv6.
    """
    if any(":" in host for host, _ in addresses):
        return ""
    return json.dumps([[endpoint(host, port)] for host, port in addresses])


def devices_text(entries: Sequence[Host]) -> str:
    """Return JACCL's device file for these entries of the job's hosts, one per rank.

    "" where the host file does not say which devices they have, or where two ranks are of one
    entry: no cable leads from a host to itself. Ranks may be fewer than the hosts of the file, and
    then their rows and columns are what is left of it.
    """
    numbers = [entry.number for entry in entries]
    if len(set(numbers)) < len(numbers) or not all(entry.rdma for entry in entries):
        return ""
    return json.dumps([[_cell(entry.rdma[number]) for number in numbers] for entry in entries])


def _cell(devices: Sequence[str]) -> str | list[str] | None:
    if not devices:
        return None
    return devices[0] if len(devices) == 1 else list(devices)


@dataclass(frozen=True, slots=True)
class Files:
    """Where the descriptions of a generation are on a host; "" for one that there is not."""

    ring: str
    devices: str


NO_FILES = Files("", "")


def ring_name(generation: int) -> str:
    """Return the name of the ring's file in the job's directory."""
    return f"mlx-gen{generation}.json"


def write_descriptions(directory: str, order: Describe) -> Files:
    """Write what a generation's ranks of this host read."""
    number = order.generation
    return Files(
        ring=written(f"{directory}/{ring_name(number)}", order.ring),
        devices=written(f"{directory}/devices-gen{number}.json", order.devices),
    )


def written(path: str, text: str) -> str:
    """Write a file, if there is something to write; return its path, or ""."""
    if not text:
        return ""
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path
