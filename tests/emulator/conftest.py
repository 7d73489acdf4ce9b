"""A fabric of two Macs, both of which are this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from standfast.testing.emulator import Emulator, library_path
from standfast.testing.topology import Topology, mesh
from tests.emulator.verbs import Device, Link, connect, environment, load

Opener = Callable[[Emulator, str, str], Device]
Pairer = Callable[..., tuple[Link, Link]]


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The emulated library, as ctypes loads it."""
    return load(str(library_path()))


@pytest.fixture
def open_port(library: ctypes.CDLL) -> Iterator[Opener]:
    """Open a device as a host of a fabric; closed at the end, if the test did not."""
    opened: list[Device] = []

    def open_one(fabric: Emulator, host: str, device: str) -> Device:
        with environment(fabric.environment(host, {})):
            opened.append(Device(library, device))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


@pytest.fixture
def make_fabric() -> Iterator[Callable[[Topology], Emulator]]:
    """Make fabrics that are removed at the end."""
    made: list[Emulator] = []

    def make_one(topology: Topology) -> Emulator:
        made.append(Emulator(topology))
        return made[-1]

    yield make_one
    for fabric in made:
        fabric.close()
        assert not fabric.folder.exists()


@pytest.fixture
def fabric(make_fabric: Callable[[Topology], Emulator]) -> Emulator:
    """Two Macs and a cable: ports mac0:rdma_en2 and mac1:rdma_en2."""
    return make_fabric(mesh(2))


@pytest.fixture
def make_pair(open_port: Opener) -> Iterator[Pairer]:
    """Connect two queue pairs across a fabric's first cable."""
    made: list[Link] = []

    def make_two(fabric: Emulator, bytes_total: int = 1 << 20, **options: int) -> tuple[Link, Link]:
        ends = [port.split(":") for port in fabric.topology.cables[0].ports[:2]]
        kind = {
            name: options.pop(name) for name in ("kind", "depth", "completions") if name in options
        }
        two = [Link(open_port(fabric, *end), bytes_total, **kind) for end in ends]
        made.extend(two)
        connect(two[0], two[1], **options)
        return two[0], two[1]

    yield make_two
    for each in made:
        each.close()
