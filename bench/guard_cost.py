"""What guard and watch cost where nothing fails: instruction counts, and times in pairs.

Builds the core, its Python module and bench/guard_cost.cpp twice, as always and with the guard
compiled out, and prints for each size the median of the ratios of alternating runs: as a caller in
Python sees it, and of the core alone. See README.md beside this.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = [8, 1024, 32 * 1024, 64 * 1024, 64 * 1024 * 1024]


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25, help="runs of each kind per size")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a run, roughly")
    arguments = parser.parse_args()
    guarded = build(ROOT / "build" / "guarded", "")
    unguarded = build(ROOT / "build" / "unguarded", "-DSTANDFAST_UNGUARDED")
    if shutil.which("valgrind"):
        for title, counted in (("through Python", count_calls), ("the core alone", count_core)):
            with_guard, without = counted(guarded), counted(unguarded)
            print(
                f"instructions of an 8 B send and its recv, {title}: {with_guard:.0f} guarded,"
                f" {without:.0f} without: {100 * (with_guard / without - 1):+.2f} %",
                flush=True,
            )
    else:
        print("valgrind is missing: instructions are not counted", file=sys.stderr)
    for title, time in (("through Python", time_calls), ("the core alone", time_core)):
        print(f"| all_sum, 2 ranks, shm, {title} | guarded, ns | without, ns | median ratio |")
        print("|---|---|---|---|")
        for size in SIZES:
            pairs = [
                in_turn(time, guarded, unguarded, size, arguments, i)
                for i in range(arguments.pairs)
            ]
            ratio = statistics.median(a / b for a, b in pairs)
            with_guard, without = (statistics.median(side) for side in zip(*pairs, strict=True))
            print(f"| {size} B | {with_guard:.0f} | {without:.0f} | {ratio:.3f} |", flush=True)


def in_turn(
    time: Callable[[Path, int, float], float],
    guarded: Path,
    unguarded: Path,
    size: int,
    arguments: argparse.Namespace,
    turn: int,
) -> tuple[float, float]:
    """Return both times, measured one after the other, which one first by turns."""
    order = [guarded, unguarded] if turn % 2 == 0 else [unguarded, guarded]
    took = {program: time(program, size, arguments.seconds) for program in order}
    return took[guarded], took[unguarded]


def build(folder: Path, flag: str) -> Path:
    """Compile the core with a flag, and around it the program, and a package beside that."""
    folder.mkdir(parents=True, exist_ok=True)
    nanobind = run([sys.executable, "-m", "nanobind", "--cmake_dir"]).strip()
    configure = ["cmake", "-S", ROOT, "-B", folder, f"-DCMAKE_CXX_FLAGS={flag}", "-G", "Ninja"]
    python = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_ROOT={nanobind}"]
    run([*configure, *python, "-DCMAKE_BUILD_TYPE=Release"])
    run(["cmake", "--build", folder, "--target", "_core", "-j2"])
    package = folder / "python" / "standfast"
    shutil.copytree(
        ROOT / "src" / "standfast",
        package,
        ignore=shutil.ignore_patterns("*.so", "_sentinel", "__pycache__"),
        dirs_exist_ok=True,
    )
    for made in (*folder.glob("_core*.so"), *folder.glob("_sentinel")):
        shutil.copy(made, package)
    program = folder / "guard_cost"
    source = ROOT / "bench" / "guard_cost.cpp"
    archives = [str(path) for path in folder.rglob("libstandfast_core.a")]
    options = [*flag.split(), "-std=c++20", "-O2", "-g", f"-I{ROOT}", "-pthread"]
    run(["c++", *options, str(source), *archives, "-o", str(program), "-lrt"])
    return program


def count_core(program: Path) -> float:
    """Return the instructions of the core per operation."""
    return count(program, [program, "count"], 20_000)


def count_calls(program: Path) -> float:
    """Return the instructions per operation from Python."""
    return count(program, [sys.executable, ROOT / "bench" / "count_guard.py"], 20_000)


def count(program: Path, command: list[str | Path], operations: int) -> float:
    """Return the instructions per operation: of twice as many operations less those of once."""
    totals = []
    out = program.with_name("callgrind.out")
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    for times in (1, 2):
        run([*valgrind, *command, str(times * operations)], package_of(program))
        found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)
        assert found, "callgrind wrote no total"
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / operations


def package_of(program: Path) -> dict[str, str]:
    """Return the environment in which Python finds the package beside a program."""
    return {
        "PYTHONPATH": str(program.parent / "python"),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }


def time_core(program: Path, size: int, seconds: float) -> float:
    """Return nanoseconds per call of the core."""
    return float(run([program, "time", str(size), str(seconds)]))


def time_calls(program: Path, size: int, seconds: float) -> float:
    """Return nanoseconds per call from Python."""
    rank = [sys.executable, ROOT / "bench" / "rank_guard.py", str(size), str(seconds)]
    command = [sys.executable, "-m", "standfast", "run", "-n", "2", "--", *rank]
    said = run(command, package_of(program))
    found = re.search(r"ns ([\d.]+)", said)
    assert found, f"no time in what the ranks said: {said}"
    return float(found[1])


def run(command: list[str | Path], environment: dict[str, str] | None = None) -> str:
    """Run a command; if it fails, say what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
