"""Cells, sizes and the meanings of nccl-tests' columns."""

from __future__ import annotations

import pytest

from standfast.bench.plan import (
    OPERATIONS,
    Cell,
    Sizes,
    bandwidths,
    cells,
    from_dict,
    parse_size,
    to_dict,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8", 8), ("32K", 32768), ("1.5MiB", 1572864), ("1G", 1 << 30), ("2 kb", 2048), ("0", 0)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    """A size may have a unit, a power of two."""
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "-8", "8X", "K", "1e3", "65G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """What is not a size is a ValueError that shows it."""
    with pytest.raises(ValueError, match=r"is not a size|is more than"):
        parse_size(text)


def test_sizes_go_by_factor_or_by_steps() -> None:
    """-f multiplies, -i adds; the last size is part of it."""
    assert list(Sizes(8, 64, 2)) == [8, 16, 32, 64]
    assert list(Sizes(8, 65, 0, 24)) == [8, 32, 56]


def test_sizes_are_cut_to_whole_shares() -> None:
    """What is shared out has whole elements for all ranks; nothing becomes 0 or comes twice."""
    found = cells(["all_gather"], [4, 8, 100], ["float32"], ["sum"], ranks=3, both_places=False)
    assert [cell.nbytes for cell in found] == [12, 96]
    assert [cell.count(3) for cell in found] == [1, 8]


def test_only_what_exists_is_planned() -> None:
    """Operators belong to reductions, ping-pong to two ranks; complex numbers have no maximum."""
    everything = cells(list(OPERATIONS), [64], ["complex64"], ["sum", "max"], ranks=3)
    assert {cell.redop for cell in everything if cell.op == "all_reduce"} == {"sum"}
    assert "ping_pong" not in {cell.op for cell in everything}
    assert [cell.nbytes for cell in everything if cell.op == "barrier"] == [0]
    assert {cell.op for cell in everything if cell.root >= 0} == {"broadcast", "gather", "scatter"}


@pytest.mark.parametrize(
    ("op", "ranks", "bus"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 2, 0.5),
        ("all_to_all", 8, 0.875),
        ("broadcast", 4, 1.0),
        ("send_recv", 4, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, ranks: int, bus: float) -> None:
    """Of 1 GB in 1 s, algbw is 1 GB/s, and busbw that times nccl-tests' factor."""
    algorithm, across = bandwidths(Cell(op, 10**9), ranks, 1e6)
    assert algorithm == pytest.approx(1.0)
    assert across == pytest.approx(bus)


def test_a_cell_survives_json() -> None:
    """A cell is what it was after a way through JSON."""
    cell = Cell("all_gather", 64, "int8", in_place=True)
    assert from_dict(to_dict(cell)) == cell
