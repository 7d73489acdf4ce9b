"""Measures the collectives of standfast and of every other library that is installed, in one go.

    python bench/speed.py --ranks 2 4                  # all backends, three runs of each
    python bench/speed.py --backends standfast openmpi --ops all_reduce --ranks 2
    python bench/speed.py --report                     # the tables again, nothing is measured

Backends take turns, so that a slow minute of the machine hits all of them. A run starts when the
machine is quiet, or after --patience-s. Cells in which other processes took more than
--noise-max-pct of one core are measured again, up to --again times. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import report
from backends import BACKENDS
from launch import Job
from machine import wait_until_quiet

KIB, MIB = 1 << 10, 1 << 20
PLAN = {
    "all_reduce": (8, KIB, 32 * KIB, MIB, 16 * MIB, 64 * MIB),
    "all_gather": (8, MIB, 16 * MIB),
    "reduce_scatter": (8, MIB, 16 * MIB),
    "barrier": (0,),
    "pingpong": (8, MIB, 16 * MIB),
    "eval_only": (0,),
}
JOB_LIMIT_S = 300
Cell = tuple[str, int]


def planned_cells(ops: Sequence[str], ranks: int, backend: str) -> list[Cell]:
    """Return what to measure: ping-pong needs two ranks, eval_only is a matter of MLX alone."""
    return [
        (op, nbytes)
        for op in ops
        for nbytes in PLAN[op]
        if (op != "pingpong" or ranks == 2) and (op != "eval_only" or backend == "mlx")
    ]


def short_cells(
    records: Sequence[report.Record], cells: Sequence[Cell], runs: int, noise_max_pct: float
) -> list[Cell]:
    """Return the cells of one backend and size that have fewer than runs quiet measurements."""
    counts = dict.fromkeys(cells, 0)
    for record in records:
        for cell in record["results"]:
            key = cell["op"], cell["bytes"]
            quiet = "median_us" not in cell or cell["foreign_pct"] <= noise_max_pct
            counts[key] = counts.get(key, 0) + quiet
    return [cell for cell in cells if counts[cell] < runs]


def run_once(
    backend: str, ranks: int, cells: Sequence[Cell], options: argparse.Namespace
) -> report.Record:
    """Run one job and return its record."""
    busy = wait_until_quiet(options.patience_s)
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        job = Job(BACKENDS[backend], ranks, folder / "job", cells, options.budget_s)
        job.start()
        statuses = job.wait(JOB_LIMIT_S)
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "backend": backend,
            "ranks": ranks,
            "busy_before": round(busy, 3),
            "statuses": statuses,
            "results": [merged(each) for each in zip(*job.results(), strict=True)],
        }
        if any(statuses) or not record["results"]:
            record["error"] = job.output()
        return record
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def merged(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return rank 0's measurement with what ours and foreign processes took of one core."""
    cell = dict(cells[0])
    if "wall_s" not in cell:
        return cell
    own_s = sum(each.pop("own_cpu_s", 0) for each in map(dict, cells))
    foreign_s = max(0, cell.pop("machine_cpu_s") - own_s)
    cell.pop("own_cpu_s")
    cell["own_pct"] = 100 * own_s / cell["wall_s"]
    cell["foreign_pct"] = 100 * foreign_s / cell["wall_s"]
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in cell.items()}


def rounds(options: argparse.Namespace, names: Sequence[str]) -> Iterator[report.Record]:
    """Yield the record of each run: all that were asked for, then noisy cells again."""
    done: dict[tuple[str, int], list[report.Record]] = {}
    for number in range(options.runs + options.again):
        for ranks in options.ranks:
            for name in names:
                past = done.setdefault((name, ranks), [])
                if any("error" in record for record in past):
                    continue
                cells = planned_cells(options.ops, ranks, name)
                if number >= options.runs:
                    cells = short_cells(past, cells, options.runs, options.noise_max_pct)
                if cells:
                    past.append(run_once(name, ranks, cells, options))
                    yield past[-1]


def tell(record: report.Record) -> None:
    """Say on stderr how a run went."""
    measured = [cell for cell in record["results"] if "median_us" in cell]
    noise = max((cell["foreign_pct"] for cell in measured), default=0)
    print(
        f"{record['time'][11:]} {record['backend']:13} {record['ranks']} ranks: "
        f"{len(measured)} cells, busy before {record['busy_before']:.0%}, noise <= {noise:.0f}%",
        file=sys.stderr,
    )
    if "error" in record:
        print(f"  failed with {record['statuses']}: {record['error']}", file=sys.stderr)


def installed(wanted: Sequence[str]) -> list[str]:
    """Return the backends that can run here, and say on stderr which cannot and why."""
    for name in wanted:
        if absence := BACKENDS[name].absence():
            print(f"{name} is left out: {absence}", file=sys.stderr)
    return [name for name in wanted if not BACKENDS[name].absence()]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--ops", nargs="+", choices=PLAN, default=list(PLAN))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--again", type=int, default=3, help="repeats of noisy cells")
    parser.add_argument("--noise-max-pct", type=float, default=15, help="of one core")
    parser.add_argument("--budget-s", type=float, default=0.6, help="per cell and run")
    parser.add_argument("--patience-s", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "runs/speed.jsonl")
    parser.add_argument("--report", action="store_true", help="only print the tables of --out")
    parser.add_argument("--json", action="store_true", help="print the records, not the tables")
    return parser.parse_args()


def main() -> int:
    """Measure, keep the records in --out, print the tables; non-zero if a run failed."""
    options = parse()
    if options.report:
        records = [json.loads(line) for line in options.out.read_text().splitlines()]
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        records = []
        with options.out.open("w") as file:
            for record in rounds(options, installed(options.backends)):
                records.append(record)
                print(json.dumps(record), file=file, flush=True)
                tell(record)
    print(json.dumps(records) if options.json else report.markdown(records, options.runs))
    return int(any("error" in record for record in records) or not records)


if __name__ == "__main__":
    sys.exit(main())
