"""Results as text."""

from __future__ import annotations

from typing import Any

from standfast.bench import limits, table
from standfast.bench.plan import Cell, to_dict
from standfast.bench.printer import Progress, Rows


def result_of(cell: Cell, *, backend: str = "standfast", us: float = 100.0, **more: Any) -> Any:
    """Return a result as rank 0 tells it, of two ranks."""
    return {
        **to_dict(cell),
        "backend": backend,
        "ranks": 2,
        "count": cell.count(2),
        "median_us": us,
        "wrong": 0,
        "foreign_pct": 1.0,
        **more,
    }


OUT = Cell("all_reduce", 1_000_000, redop="sum")
IN = Cell("all_reduce", 1_000_000, redop="sum", in_place=True)


def test_a_row_has_the_columns_of_nccl_tests() -> None:
    """Size, count, type, redop, root, then time, algbw, busbw and #wrong, twice."""
    line = table.row(result_of(OUT), result_of(IN, us=50.0, wrong=3), time_key="median_us")
    words = ["1000000", "250000", "float32", "sum", "-1"]
    assert line.split() == [*words, "100.0", "10.00", "10.00", "0", "50.00", "20.00", "20.00", "3"]


def test_rows_are_written_when_both_halves_are_there() -> None:
    """The first half waits for the second; each operation has its header once."""
    gathered = Cell("reduce_scatter", 64, redop="sum")
    rows = Rows([OUT, IN, gathered], "2 ranks", time_key="median_us")
    assert not [line for line in rows.add(result_of(OUT)) if not line.startswith("#")]
    assert len(list(rows.add(result_of(IN)))) == 1
    *header, last = rows.add(result_of(gathered))
    assert header[0] == "# reduce_scatter: 2 ranks"
    assert last.split()[-4:] == ["-"] * 4


def test_a_comparison_takes_medians_and_tells_speeds() -> None:
    """Speed is the other's median over ours; what a library does not have is a dash."""
    results = [result_of(OUT, us=us) for us in (100.0, 900.0, 110.0)]
    results += [result_of(OUT, backend="gloo", us=us) for us in (220.0, 10.0, 500.0)]
    results.append(result_of(OUT, backend="mlx") | {"error": "not offered"})
    del results[-1]["median_us"]
    titles = {name: name for name in ("standfast", "gloo", "mlx")}
    line = table.comparison(results, titles, ours="standfast", time_key="median_us")[-1]
    assert line.split()[-5:] == ["110.0", "220.0", "2.00x", "-", "-"]


def test_what_is_wrong_or_noisy_is_said_below_the_table() -> None:
    """Wrong values, errors and other work on the machine have a line each."""
    failed = result_of(OUT, backend="gloo") | {"error": "ValueError: no"}
    del failed["median_us"]
    results = [result_of(OUT, wrong=7), result_of(IN, foreign_pct=80.0), failed]
    text = "\n".join(table.footer(results, time_key="median_us"))
    assert "# gloo, all_reduce float32: ValueError: no" in text
    assert "# wrong values: 7 FAILED" in text
    assert "1 of 2 figures are noisy" in table.noise_lines(results, 15.0)[0]
    assert table.wrong_values(results) == 7


def test_progress_is_silent_where_no_terminal_is() -> None:
    """A bar is drawn by the writer that it has, and by none without."""
    written: list[str] = []
    progress = Progress(2, written.append)
    progress.step("all_reduce 8 B")
    assert "1/2 all_reduce 8 B" in written[-1]
    Progress(2, None).step("nothing")


def test_shares_are_bounds_over_times() -> None:
    """64 MiB over all_reduce of two ranks are 2 x 64 MiB of copies for both cores together."""
    rate = 2 * 64 * (1 << 20) / 1e-3  # of a copy of that in 1 ms
    found = {limit.name: limits.Measured(rate, rate) for limit in limits.LIMITS}
    cell = Cell("all_reduce", 64 << 20, redop="sum")
    assert round(limits.bound_us(cell, "shm", found) or 0) == 1000
    lines = list(
        limits.share_lines([result_of(cell, us=2000.0)], "shm", found, time_key="median_us")
    )
    assert lines[-1].split()[-1] == "50%"


def test_a_limit_that_needs_two_cores_is_a_dash_on_one() -> None:
    """Without samples there is neither limit nor share, and no error."""
    found = limits.measure(lambda _name: [])
    assert all(line.split()[-1] == "-" for line in list(limits.lines(found))[1:])
    assert limits.bound_us(Cell("barrier", 0, "uint8"), "shm", found) is None
