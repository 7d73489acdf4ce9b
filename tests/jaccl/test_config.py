"""Configs, device files, and the choice of mesh or ring: tables, without any device."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from standfast import ConfigError, settings
from standfast.jaccl import Config, Options, from_env, init
from standfast.jaccl.topology import Berth, berths
from standfast.matrix import parse

Rows = list[list[Any]]

MESH_2: Rows = [[None, "a"], ["b", None]]
MESH_3: Rows = [[None, "a1", "a2"], ["b0", None, "b2"], ["c0", "c1", None]]
RING_4: Rows = [
    [None, "a1", None, "a3"],
    ["b0", None, "b2", None],
    [None, "c1", None, "c3"],
    ["d0", None, "d2", None],
]
RING_3_OF_2: Rows = [
    [None, ["a1", "a1x"], ["a2", "a2x"]],
    [["b0", "b0x"], None, ["b2", "b2x"]],
    [["c0", "c0x"], ["c1", "c1x"], None],
]
# A mesh for lack of symmetry only: not as many cables everywhere.
UNEVEN: Rows = [[None, ["a1", "x"], "a2"], [["b0", "y"], None, "b2"], ["c0", "c1", None]]


@pytest.mark.parametrize(
    ("rows", "prefer_ring", "topology"),
    [
        (MESH_2, False, "mesh"),
        (MESH_2, True, "ring"),
        (MESH_3, False, "mesh"),
        (MESH_3, True, "ring"),
        (RING_3_OF_2, False, "mesh"),
        (RING_3_OF_2, True, "ring"),
        (RING_4, False, "ring"),
        (RING_4, True, "ring"),
        (UNEVEN, False, "mesh"),
        (UNEVEN, True, "mesh"),
    ],
)
def test_the_choice_is_stocks(rows: Rows, prefer_ring: bool, topology: str) -> None:
    """A ring if it is preferred and there is one, else a mesh, else a ring."""
    for rank in range(len(rows)):
        config = Config(rank=rank, devices=rows, coordinator="h:1", prefer_ring=prefer_ring)
        assert (config.topology, config.size) == (topology, len(rows))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[None, "a"], [None, None]], ["row 1, column 0", "neither a mesh nor a ring"]),
        ([[None, None], [None, None]], ["row 0, column 1", "neither"]),
        ([[None]], ["at least 2 ranks"]),
        ([[None, "a"]], ["row 0 does not have 1 columns"]),
        ([[None, 3], ["b", None]], ["row 0, column 1 is 3", "rank 0 is "]),
        ([["a", "b"], ["c", None]], ["row 0, column 0 is 'a'", "no cable to itself"]),
        ([[None, ["a", "b", "c", "d", "e"]], ["b", None]], ["row 0, column 1 has 5 names"]),
        ([[None, ["a", "a"]], ["b", None]], ["row 0, column 1 names a device twice"]),
        ({}, ["not a list of rows"]),
    ],
)
def test_wrong_devices_are_named(rows: Any, words: list[str], tmp_path: Path) -> None:
    """What is wrong with a device file names its row and column, and the host if it is ours."""
    file = tmp_path / "devices.json"
    file.write_text(json.dumps(rows))
    with pytest.raises(ConfigError) as caught:
        Config(rank=0, devices=file, coordinator="h:1")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_hostfile_names_its_hosts(tmp_path: Path) -> None:
    """MLX's hostfile holds the same rows, and names whose row is wrong."""
    file = tmp_path / "hosts.json"
    good = [{"ssh": "m1", "rdma": [None, "a"]}, {"ssh": "m2", "rdma": ["b", None]}]
    file.write_text(json.dumps(good))
    assert Config(rank=1, devices=file, coordinator="h:1").topology == "mesh"
    file.write_text(json.dumps([good[0], {"ssh": "m2", "rdma": [7, None]}]))
    with pytest.raises(ConfigError, match=r"row 1, column 0 is 7.*rank 1 is m2") as caught:
        Config(rank=0, devices=file, coordinator="h:1")
    assert (caught.value.rank, caught.value.host) == (1, "m2")


@pytest.mark.parametrize("text", ["", "{", "[[null"])
def test_a_file_that_is_no_json(text: str, tmp_path: Path) -> None:
    """A file that cannot be read is named."""
    file = tmp_path / "devices.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"cannot read the device file .*devices.json"):
        Config(rank=0, devices=file, coordinator="h:1")
    with pytest.raises(ConfigError, match="cannot read the device file"):
        Config(rank=0, devices=tmp_path / "none", coordinator="h:1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 2}, "rank 2 is not one of the 2 ranks"),
        ({"rank": -1}, "rank -1 is not one"),
        ({"rank": True}, "rank=True is not a whole number"),
        ({"rank": "0"}, "rank='0' is not a whole number"),
        ({"rank": 0, "coordinator": "nowhere"}, "is not of the form host:port"),
        ({"rank": 0, "coordinator": None}, "needs a coordinator"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    """A rank or coordinator that cannot be is refused before anything is opened."""
    with pytest.raises(ConfigError, match=words):
        Config(**{"devices": MESH_2, "coordinator": "h:1", **arguments})


def test_too_large_a_mesh() -> None:
    """A mesh of nine is refused; a ring of nine is not."""
    rows = [[None if i == j else f"d{j}" for j in range(9)] for i in range(9)]
    with pytest.raises(ConfigError, match="at most 8 ranks, not 9"):
        Config(rank=0, devices=rows, coordinator="h:1")
    assert Config(rank=0, devices=rows, coordinator="h:1", prefer_ring=True).topology == "ring"


def test_berths() -> None:
    """A mesh has the first cable to each peer; a ring all to the left, then all to the right."""
    matrix = parse(RING_3_OF_2, "devices")
    assert berths(matrix, 1, "mesh") == [Berth(0, "b0", 1, ""), Berth(2, "b2", 1, "")]
    assert [(b.peer, b.device) for b in berths(matrix, 0, "ring")] == [
        *((2, "a2"), (2, "a2x")),
        *((1, "a1"), (1, "a1x")),
    ]
    pair = parse([[None, "a:2@10.0.0.1"], ["b", None]], "devices")
    assert berths(pair, 0, "ring") == [Berth(1, "a", 2, "10.0.0.1")] * 2


def devices_file(folder: Path, rows: Rows) -> str:
    file = folder / f"{len(rows)}.json"
    file.write_text(json.dumps(rows))
    return str(file)


def test_from_env(tmp_path: Path) -> None:
    """JACCL's names win over MLX's; a ring is preferred where the variable is there at all."""
    two, three = devices_file(tmp_path, MESH_2), devices_file(tmp_path, MESH_3)
    mlx = {"MLX_RANK": "1", "MLX_IBV_DEVICES": two, "MLX_JACCL_COORDINATOR": "a:1"}
    found = from_env(mlx)
    assert found is not None
    assert (found.rank, found.size, found.coordinator, found.topology) == (1, 2, "a:1", "mesh")
    jaccl = {"JACCL_RANK": "2", "JACCL_IBV_DEVICES": three, "JACCL_COORDINATOR": "b:2"}
    found = from_env({**mlx, **jaccl, "MLX_JACCL_RING": ""})
    assert found is not None
    assert (found.rank, found.size, found.coordinator, found.topology) == (2, 3, "b:2", "ring")


def test_from_env_of_another_job() -> None:
    """Without devices and coordinator it is no JACCL job, whatever the rank says."""
    assert from_env({}) is None
    assert from_env({"MLX_RANK": "0", "MLX_HOSTFILE": "x"}) is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"JACCL_COORDINATOR": "a:1"}, "JACCL_RANK or MLX_RANK, JACCL_IBV_DEVICES"),
        (
            {"MLX_IBV_DEVICES": "x", "MLX_RANK": "0"},
            "MLX_RANK='0', MLX_IBV_DEVICES='x' is set, but JACCL_COORDINATOR",
        ),
        (
            {"MLX_IBV_DEVICES": "x", "MLX_RANK": "one", "JACCL_COORDINATOR": "a:1"},
            "MLX_RANK='one' is not a rank",
        ),
    ],
)
def test_from_env_in_part(environ: dict[str, str], words: str) -> None:
    """Variables that are missing, or wrong, are named."""
    with pytest.raises(ConfigError) as caught:
        from_env(environ)
    assert words in str(caught.value)


def test_verification_is_refused() -> None:
    """The protocol carries nothing but data: there is no place for digests."""
    config = Config(rank=0, devices=[[None, "a"], ["b", None]], coordinator="127.0.0.1:1")
    with pytest.raises(ConfigError, match="no place for digests"):
        init(config, Options(settings={"verify": True}))


def test_options() -> None:
    """Options become settings; a key does not show."""
    options = Options(timeout_s=3, frames="4k", key="k" * 16, settings={"progress_s": 5})
    chosen = settings.load(options.overrides(), {})
    assert (chosen.init_timeout_s, chosen.progress_s) == (3, 5)
    assert not chosen.has_large_jaccl_frames()
    assert "kkkk" not in repr(options)
    with pytest.raises(ConfigError, match=r"jaccl_frames='5k': must be one of auto, 26\.3, 4k"):
        settings.load({"jaccl_frames": "5k"}, {})


@pytest.mark.parametrize(
    ("release", "large"),
    [("", True), ("26.2", False), ("26.3", True), ("26.10", True), ("27.0", True), ("15.7", False)],
)
def test_frames_by_release(release: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The large frames came with macOS 26.3; elsewhere they are the default."""
    monkeypatch.setattr(platform, "mac_ver", lambda: (release, ("", "", ""), ""))
    assert settings.load({}, {}).has_large_jaccl_frames() is large
