"""Files that tell other libraries where ranks and cables are: MLX's ring, JACCL's devices.

The texts are pure; `described` writes them where ranks are started, into the job's directory there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence

from standfast.launch.environment import Formation, endpoint
from standfast.launch.placement import Host

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


def described(formation: Formation, directory: str) -> Formation:
    """Write what a generation's ranks of this host read, once; return it with the files' names."""
    number = formation.generation
    return dataclasses.replace(
        formation,
        report_dir=directory,
        ring_file=_written(f"{directory}/mlx-gen{number}.json", formation.ring),
        devices_file=_written(f"{directory}/devices-gen{number}.json", formation.devices),
    )


def _written(path: str, text: str) -> str:
    if not text:
        return ""
    if not os.path.exists(path):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    return path
