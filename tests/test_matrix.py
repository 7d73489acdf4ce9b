"""Device files: what is one, what is none, and between which ranks a cable is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import ConfigError
from standfast.matrix import Cabling, Cell, Matrix, cabling, parse, read, whole

THREE = [
    [None, "rdma_en5", ["rdma_en4", "rdma_en3"]],
    [["rdma_en5"], None, "rdma_en4:2@10.0.0.7"],
    [["rdma_en2", "rdma_en3"], "rdma_en4", []],
]


def test_cells() -> None:
    """null, a name, a list, with port and address."""
    matrix = parse(THREE, "a file")
    assert matrix.rows[0] == (
        (),
        (Cell("rdma_en5"),),
        (Cell("rdma_en4"), Cell("rdma_en3")),
    )
    assert matrix.rows[1][2] == (Cell("rdma_en4", 2, "10.0.0.7"),)
    assert matrix.where(0, 2) == "row 0, column 2 of a file: rdma_en4, rdma_en3"
    assert matrix.where(0, 0) == "row 0, column 0 of a file: null"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({}, "not a list of rows"),
        ([], "not a list of rows"),
        ("rdma_en5", "not a list of rows"),
        ([[None, "a"]], "row 0 does not have 1 columns"),
        ([[None, "a"], ["b"]], "row 1 does not have 2 columns"),
        ([[None, "a"], "ab"], "row 1 does not have 2 columns"),
        ([[None, 7], ["b", None]], "row 0, column 1 is 7"),
        ([[None, ["a", 7]], ["b", None]], "row 0, column 1 is ['a', 7]"),
        ([["a", "a"], ["b", None]], "row 0, column 0 is 'a'; a rank has no cable to itself"),
        ([[None, list("abcde")], ["b", None]], "at most 4 cables"),
        ([[None, ["a", "a"]], ["b", None]], "names a device twice"),
        ([[None, ""], ["b", None]], "'' is no device"),
        ([[None, "a:0"], ["b", None]], "'a:0' is no device"),
        ([[None, "a b"], ["b", None]], "'a b' is no device"),
    ],
)
def test_no_matrix(rows: Any, words: str) -> None:
    """What is wrong is said with row and column."""
    with pytest.raises(ConfigError) as caught:
        parse(rows, "a file")
    assert words in str(caught.value)
    assert "a file" in str(caught.value)


def test_files(tmp_path: Path) -> None:
    """A file is read; one that cannot be is named."""
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(THREE))
    assert read(str(path)).rows == parse(THREE, "").rows
    assert whole(str(path)) == read(str(path))
    path.write_text("[[")
    with pytest.raises(ConfigError, match=r"devices\.json"):
        read(str(path))
    with pytest.raises(ConfigError, match="nowhere"):
        read("/nowhere/devices.json")


def pairs(rows: Any, *hosts: str) -> str:
    """Return what is wrong between the ranks, or ""."""
    try:
        cabling(parse(rows, "a file"), hosts)
    except ConfigError as error:
        return error.message
    return ""


def test_pairs() -> None:
    """Neighbours need a cable with both ends; cells and hosts are named."""
    assert pairs(THREE, "x", "y", "z") == ""
    assert pairs(THREE, "x", "y") == "a file is for 3 ranks, and the group has 2"
    one_end = [[None, "a"], [None, None]]
    assert pairs(one_end, "x", "y") == (
        "there is no whole cable between rank 0 on x and rank 1 on y: "
        "row 0, column 1 of a file: a; row 1, column 0 of a file: null"
    )
    none = [[None, None], [None, None]]
    assert pairs(none, "x", "y").startswith("there is no cable between rank 0 on x and rank 1 on y")
    uneven = [[None, ["a", "b"]], ["c", None]]
    assert "no whole cable" in pairs(uneven, "x", "y")


HOSTS = ("w", "x", "y", "z")
RING = [
    [None, "a", None, "b"],
    ["a", None, "b", None],
    [None, "a", None, "b"],
    ["a", None, "b", None],
]


def test_ring() -> None:
    """Cables between neighbours make a ring, whatever else is missing; a mesh needs all."""
    matrix = parse(RING, "a file")
    for asked in ("auto", "ring"):
        found = cabling(matrix, HOSTS, asked)
        assert found == Cabling("ring", frozenset({(0, 2), (1, 3)}))
        assert not found.joins(2, 0)
        assert found.joins(3, 0)
    with pytest.raises(ConfigError) as caught:
        cabling(matrix, HOSTS, "mesh")
    assert str(caught.value).startswith(
        "there is no cable between rank 0 on w and rank 2 on y: "
        "row 0, column 2 of a file: null; row 2, column 0 of a file: null"
    )
    assert "topology='ring'" in str(caught.value.hint)
    for asked in ("auto", "mesh", "ring"):
        assert cabling(parse(THREE, "a file"), HOSTS[:3], asked) == Cabling(asked)


def test_ring_in_another_order() -> None:
    """Neighbours without a cable are named, however many cables others have."""
    order = (0, 2, 1, 3)
    matrix = parse(RING, "a file").of(order)
    with pytest.raises(ConfigError) as caught:
        cabling(matrix, [HOSTS[rank] for rank in order])
    assert "no cable between rank 0 on w and rank 1 on y" in str(caught.value)
    assert "in the order in which cables join them" in str(caught.value.hint)


def test_parts() -> None:
    """A group within a group has its ranks' rows and columns, in its order."""
    part = parse(THREE, "a file").of([2, 0])
    assert part == Matrix(
        "a file",
        (((), (Cell("rdma_en2"), Cell("rdma_en3"))), ((Cell("rdma_en4"), Cell("rdma_en3")), ())),
    )
