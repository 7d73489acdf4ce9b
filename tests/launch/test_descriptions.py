"""Files for MLX's ring and for JACCL's devices."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from standfast import matrix
from standfast.hosts import parse
from standfast.launch.descriptions import devices_text, ring_text, write_descriptions
from standfast.launch.options import entries_of as entries_in
from standfast.launch.orders import Describe
from standfast.launch.placement import Host, entries_of

MESH = """[
  {"ssh": "a", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5", ["rdma_en4", "rdma_en3"]]},
  {"ssh": "b", "rdma": ["rdma_en2", null, "rdma_en6"]},
  {"ssh": "c", "rdma": [["rdma_en7", "rdma_en8"], "rdma_en9", null]}
]"""


def test_a_ring_as_mlx_reads_it() -> None:
    """A list of addresses for each rank; no IPv6, which MLX takes apart at the first colon."""
    assert json.loads(ring_text([("h", 7), ("10.0.0.1", 8)])) == [["h:7"], ["10.0.0.1:8"]]
    assert ring_text([("10.0.0.1", 7), ("fd00::1", 8)]) == ""


def test_devices_of_a_host_file() -> None:
    """What MLX's host file says under rdma is JACCL's device file, and ours."""
    hosts = entries_in(parse(MESH, name="file"))
    rows = json.loads(devices_text(entries_of(3, hosts)))
    assert rows == [
        [None, "rdma_en5", ["rdma_en4", "rdma_en3"]],
        ["rdma_en2", None, "rdma_en6"],
        [["rdma_en7", "rdma_en8"], "rdma_en9", None],
    ]
    assert len(matrix.parse(rows, "test").rows) == 3


def test_devices_of_the_hosts_that_are_left() -> None:
    """Without a host, its row and its column are gone, and the others keep their cables."""
    hosts = entries_in(parse(MESH, name="file"))
    left = [hosts[0], hosts[2]]
    assert json.loads(devices_text(entries_of(2, left))) == [
        [None, ["rdma_en4", "rdma_en3"]],
        [["rdma_en7", "rdma_en8"], None],
    ]


def test_no_devices() -> None:
    """A host file without them says nothing; nor does a host with two ranks, without a cable."""
    assert devices_text([Host("a", 1, None, 0), Host("b", 1, None, 1)]) == ""
    hosts = entries_in(parse(MESH, name="file"))
    twice = dataclasses.replace(hosts[0], slots=2)
    assert devices_text(entries_of(3, [twice, hosts[1]])) == ""


def test_files(tmp_path: Path) -> None:
    """All ranks of a host read the same files; what there is nothing to say of has none."""
    folder = tmp_path / "job"
    folder.mkdir()
    found = write_descriptions(str(folder), Describe(2, ring="[]", devices=""))
    assert found.devices == ""
    assert Path(found.ring).read_text() == "[]"
    assert [each.name for each in folder.iterdir()] == ["mlx-gen2.json"]
