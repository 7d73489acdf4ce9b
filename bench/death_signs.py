"""Measures how soon after SIGKILL another process can know: death_signs.c (a C compiler, Linux).

python bench/death_signs.py            # a table; the best of three runs beside the median
python bench/death_signs.py --json

The 4 GB victim needs as much free memory. Results of failures.py are to be read against these.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from standfast.bench.machine import wait_until_quiet

SOURCE = Path(__file__).with_name("death_signs.c")
Row = dict[str, Any]


def build(folder: Path) -> Path:
    """Compile death_signs.c into folder."""
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    program = folder / "death_signs"
    flags = ["-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-pthread"]
    subprocess.run([compiler, *flags, "-o", str(program), str(SOURCE)], check=True)
    return program


def native_rows(program: Path) -> Iterator[Row]:
    """Yield what death_signs.c measures."""
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True)
    yield from map(json.loads, done.stdout.splitlines())


def summary(runs: list[list[Row]]) -> Iterator[Row]:
    """Yield best and median over all runs for each limit: a rate is good when high, a time low."""
    for rows in zip(*runs, strict=True):
        rate = rows[0]["unit"] == "GB/s"
        best = max(row["max"] for row in rows) if rate else min(row["min"] for row in rows)
        middle = statistics.median(row["median"] for row in rows)
        yield {"name": rows[0]["name"], "unit": rows[0]["unit"], "best": best, "median": middle}


def main() -> int:
    """Build, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--patience-s", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        program = build(Path(folder))
        for number in range(options.runs):
            busy = wait_until_quiet(options.patience_s)
            print(f"run {number + 1}: busy before {busy:.0%}", file=sys.stderr)
            runs.append([*native_rows(program)])
    rows = list(summary(runs))
    if options.json:
        print(json.dumps(rows))
        return 0
    print("| what | unit | best | median |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['unit']} | {row['best']:.4g} | {row['median']:.4g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
