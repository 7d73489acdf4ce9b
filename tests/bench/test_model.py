"""The measured model: switch points from times, and the table that is in the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast.bench import model
from standfast.bench.plan import Cell, to_dict

TABLE = Path(__file__).resolve().parents[2] / "core/collective/switch_points.inc"
SIZES = [1 << k for k in range(10, 18)]


def test_the_switch_is_where_the_curves_cross() -> None:
    """Below it the first algorithm is faster, from it on the second."""
    below = {size: 1.0 + size / 4096 for size in SIZES}
    above = {size: 4.0 + size / 16384 for size in SIZES}
    assert below[16384] == above[16384]  # where both are alike, the first stays
    assert model.switch(below, above) == 32768


def test_one_noisy_time_moves_nothing() -> None:
    """A single size at which the order is the other way round is outvoted."""
    below = {size: 1.0 + size / 4096 for size in SIZES}
    above = {size: 4.0 + size / 16384 for size in SIZES}
    below[2048] *= 4
    assert model.switch(below, above) == 32768


@pytest.mark.parametrize("factor", [1.0, 1.5, 0.99])
def test_there_is_no_switch_without_a_gain(factor: float) -> None:
    """An algorithm that is no faster, or by less than the noise, is not chosen."""
    below = dict.fromkeys(SIZES, 10.0)
    assert model.switch(below, dict.fromkeys(SIZES, 10.0 * factor)) is None


def test_what_is_slower_at_the_largest_size_is_not_chosen_beyond_it() -> None:
    """An algorithm that wins in the middle only is left alone: all larger sizes would have it."""
    below = dict.fromkeys(SIZES, 10.0)
    assert model.switch(below, dict.fromkeys(SIZES[:-1], 5.0) | {SIZES[-1]: 11.0}) is None


def times_of(ranks: int, topology: str) -> list[dict[str, Any]]:
    """Return times in which two phases win from 8 KiB on, and the ring from 128 KiB on."""
    found = []
    for cell in model.cells(topology, ranks):
        size = model.buffer_bytes(cell, ranks)
        switch = 8192 if topology in model.PHASES else 131072
        fast = (topology in ("two-phase", "ring")) == (size >= switch)
        known = {"fabric": "shm", "topology": topology, "ranks": ranks}
        found.append(to_dict(cell) | known | {"median_us": 10.0 if fast else 20.0})
    return found


def test_rows_come_from_the_best_of_runs() -> None:
    """In one phase below the switch, around the ring from it on; two ranks have no ring."""
    results = [each for topology in model.PHASES for each in times_of(2, topology)]
    results += [each for topology in model.PHASES + model.SHAPES for each in times_of(4, topology)]
    odd = [each | {"median_us": 1000.0} for each in times_of(2, "direct")]
    assert model.rows([*results, *results, *odd], time_key="median_us") == [
        model.Row("shm", 2, 4096),
        model.Row("shm", 4, 4096, (131072, 131072, 131072)),
        model.Row("verbs", 2, model.VERBS_DIRECT_BYTES),
    ]


def test_sizes_are_those_by_which_the_core_chooses() -> None:
    """all_gather is chosen by one rank's share, all_reduce by the whole."""
    assert model.buffer_bytes(Cell("all_gather", 4096), 4) == 1024
    assert model.buffer_bytes(Cell("all_reduce", 4096, redop="sum"), 4) == 4096


def test_the_cores_table_is_the_commands() -> None:
    """The file in the core is what the command writes: every fabric, ranks ascending, one frame."""
    lines = TABLE.read_text()
    found = model.parse(lines)
    machine = lines.split("Measured on ", 1)[1].split(". Over verbs", 1)[0]
    assert model.text(found, machine=machine) == lines
    assert {row.fabric for row in found} == {*model.FABRICS}
    for fabric in model.FABRICS:
        ranks = [row.ranks for row in found if row.fabric == fabric]
        assert ranks == sorted(set(ranks))
    assert all(0 <= row.direct <= model.EAGER_BYTES for row in found)
