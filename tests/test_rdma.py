"""standfast.devices() and `standfast devices`: what is there, or which reason there is for none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import standfast
from standfast.command import cli
from tests.emulated import Fabric

APPLE = """
cable c mac0:rdma_en5:10.0.0.1 mac1:rdma_en5:10.0.0.2 up
port mac0:rdma_en4
"""
ROCE = "profile roce\ncable c mac0:mlx5_0:10.0.0.1 mac1:mlx5_0:10.0.0.2 up\n"


@pytest.fixture
def on_mac(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes this process run on the first Mac of a fabric."""

    def settle(fabric: Fabric) -> None:
        for name, value in fabric.environment(0).items():
            monkeypatch.setenv(name, value)

    return settle


def test_devices(on_mac: Any) -> None:
    """Names, states, addresses, link layers, MTUs and speeds are those of the ports."""
    with Fabric(APPLE) as fabric:
        on_mac(fabric)
        found = {device.name: device for device in standfast.devices()}
    assert sorted(found) == ["rdma_en4", "rdma_en5"]
    device = found["rdma_en5"]
    (port,) = device.ports
    assert (device.transport, device.trouble) == ("Thunderbolt", "")
    assert (port.number, port.state, port.is_active) == (1, "ACTIVE", True)
    assert (port.link_layer, port.mtu_bytes, port.gbit_per_s) == ("Ethernet", 1024, 100)
    assert port.ipv4 == ["10.0.0.1"]
    assert [(gid.index, gid.is_ipv4) for gid in port.gids] == [(0, False), (1, True)]
    assert found["rdma_en4"].ports[0].state == "DOWN"
    assert found["rdma_en4"].ports[0].ipv4 == []


def test_gid_types(on_mac: Any) -> None:
    """RoCE tells the type of each entry."""
    with Fabric(ROCE) as fabric:
        on_mac(fabric)
        (device,) = standfast.devices()
    (port,) = device.ports
    assert [gid.type for gid in port.gids if gid.is_ipv4] == ["RoCE v1", "RoCE v2"]
    assert port.ipv4 == ["10.0.0.1"]


def test_command(on_mac: Any) -> None:
    """The command lists ports, for people or as JSON."""
    with Fabric(APPLE) as fabric:
        on_mac(fabric)
        people = CliRunner().invoke(cli, ["devices"])
        machine = CliRunner().invoke(cli, ["devices", "--json"])
    assert people.exit_code == machine.exit_code == 0
    assert "rdma_en5, port 1: ACTIVE, 10.0.0.1, Thunderbolt" in people.output
    assert "rdma_en4, port 1: DOWN, no IPv4 address" in people.output
    found = json.loads(machine.output)
    assert [device["name"] for device in found["devices"]] == ["rdma_en5", "rdma_en4"]
    assert found["devices"][0]["ports"][0]["ipv4"] == ["10.0.0.1"]
    assert "error" not in found


@pytest.mark.parametrize(
    ("library", "text", "code"),
    [
        ("/nowhere/librdma.dylib", APPLE, "no_library"),
        ("libc.so.6", APPLE, "library_unusable"),
        (None, "host mac0\n" + ROCE.replace("mac0", "mac2"), "no_devices"),
        (None, APPLE.replace(" up", " down"), "no_link"),
    ],
)
def test_not_available(
    on_mac: Any, monkeypatch: pytest.MonkeyPatch, library: str | None, text: str, code: str
) -> None:
    """There are four reasons why RDMA is not available; each is said, and status 69."""
    with Fabric(text) as fabric:
        on_mac(fabric)
        if library is not None:
            monkeypatch.setenv("STANDFAST_RDMA_LIBRARY", library)
        ended = CliRunner().invoke(cli, ["devices", "--json"])
    assert ended.exit_code == 69
    assert "RDMA is not available" in ended.stderr
    assert json.loads(ended.stdout)["error"]["code"] == code


def test_a_device_that_refuses(on_mac: Any) -> None:
    """A device that cannot be opened is listed, with the reason."""
    with Fabric(APPLE) as fabric:
        on_mac(fabric)
        fabric.fault("fail at=mac0:rdma_en4 call=open_device count=all value=5")
        found = {device.name: device for device in standfast.devices()}
        people = CliRunner().invoke(cli, ["devices"])
    assert "ibv_open_device failed with 5" in found["rdma_en4"].trouble
    assert "rdma_en4: couldn't open the device on rdma_en4" in people.output
    assert people.exit_code == 0


def test_a_fabric_leaves_nothing() -> None:
    """The tests' own fabrics go with their files."""
    with Fabric(APPLE) as fabric:
        folder = fabric.folder
    assert not Path(folder).exists()
