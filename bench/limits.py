"""Measures what this machine allows: limits.c (needs a C compiler and Linux) and NumPy's own loops.

python bench/limits.py            # a table; the best of three runs beside the median
python bench/limits.py --json

The 4 GB victim needs as much free memory. Results of speed.py are to be read against these.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import wait_until_quiet

SOURCE = Path(__file__).with_name("limits.c")
Row = dict[str, Any]


def numpy_rows() -> Iterator[Row]:
    """Yield how fast NumPy copies and adds."""
    nbytes = 64 << 20
    a, b, c = (np.ones(nbytes // 4, np.float32) for _ in range(3))
    loops: dict[str, Callable[[], object]] = {
        "numpy copyto 64 MiB, bytes copied": lambda: np.copyto(a, b),
        "numpy add(a, b, out=a) float32 64 MiB, bytes of b": lambda: np.add(a, b, out=a),
        "numpy add(a, b, out=c) float32 64 MiB, bytes of b": lambda: np.add(a, b, out=c),
    }
    for name, loop in loops.items():
        rates = []
        for _ in range(25):
            begin = time.perf_counter()
            loop()
            rates.append(nbytes / (time.perf_counter() - begin) / 1e9)
        middle = statistics.median(rates)
        yield {"name": name, "unit": "GB/s", "min": min(rates), "median": middle, "max": max(rates)}


def build(folder: Path) -> Path:
    """Compile limits.c into folder."""
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    program = folder / "limits"
    flags = ["-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-pthread"]
    subprocess.run([compiler, *flags, "-o", str(program), str(SOURCE)], check=True)
    return program


def native_rows(program: Path) -> Iterator[Row]:
    """Yield what limits.c measures."""
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
            print(f"limits, run {number + 1}: busy before {busy:.0%}", file=sys.stderr)
            runs.append([*numpy_rows(), *native_rows(program)])
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
