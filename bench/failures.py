"""Measures how long after a fault each survivor has its error in hand: the times of README's table.

    python bench/failures.py                        # all faults, shm and tcp
    python bench/failures.py --faults kill raise --fabrics shm --repeats 20

Ranks are plain processes that sum up 1 MiB again and again; one of them does the fault while the
others wait for it. A time runs from just before the fault to the `except` of a survivor. Every
survivor must raise, and the right error: otherwise the exit status is non-zero.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.bench.jobs import free_ports
from standfast.bench.machine import wait_until_quiet

RANK_PROGRAM = Path(__file__).parent / "rank_failures.py"
LIMIT_S = 60


@dataclass(frozen=True)
class Fault:
    """What the victim does, and the error that every survivor must raise."""

    name: str
    title: str
    error: str
    names_victim: bool = True
    coordinator: bool = False

    def victim(self, ranks: int) -> int:
        """Return the rank that does it: the last, or rank 0, where all control links end."""
        return 0 if self.coordinator else ranks - 1


FAULTS = (
    Fault("kill", "killed (SIGKILL)", "PeerDied"),
    Fault("kill-0", "killed (SIGKILL), rank 0", "PeerDied", coordinator=True),
    Fault("kill-large", "killed (SIGKILL), 1 GB of memory in use", "PeerDied"),
    Fault("exit", "ended without a goodbye (`os._exit`)", "PeerDied"),
    Fault("raise", "raised an exception that nobody caught", "RemoteFailure"),
    Fault("close", "closed its group", "PeerLeft"),
    Fault("interrupt", "interrupted (Ctrl-C)", "PeerLeft"),
    Fault("abort", "called `group.abort(reason)`", "GroupAborted", names_victim=False),
    Fault("mismatch", "called `all_sum` with another size", "CollectiveMismatch", False),
)


def run_once(fault: Fault, fabric: str, ranks: int) -> list[dict[str, Any]]:
    """Run one job; return what the survivors noted, each with after_ms."""
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        processes = []
        for rank in range(ranks):
            identity = {
                "STANDFAST_RANK": str(rank),
                "STANDFAST_WORLD_SIZE": str(ranks),
                "STANDFAST_COORDINATOR": f"127.0.0.1:{port}",
                "STANDFAST_FABRIC": fabric,
            }
            arguments = [fault.name, str(fault.victim(ranks)), folder]
            processes.append(_start(arguments, identity, Path(folder, f"rank{rank}.out")))
        _await(processes)
        notes = [_note(Path(folder, f"rank{rank}.json")) for rank in range(ranks)]
    begin_ns = notes.pop(fault.victim(ranks))["at_ns"]
    for note in notes:
        note["after_ms"] = (note["at_ns"] - begin_ns) / 1e6
    return notes


def _start(arguments: list[str], identity: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, str(RANK_PROGRAM), *arguments],
            env={**os.environ, **identity},
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _await(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all; a rank that hangs is ended, and shows by its missing note."""
    end = time.monotonic() + LIMIT_S
    for process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _note(path: Path) -> dict[str, Any]:
    if path.exists():
        return dict(json.loads(path.read_text()))
    words = path.with_suffix(".out").read_text(errors="replace")[-2000:]
    return {"at_ns": 0, "error": {"type": "no error", "message": words}}


def faulty(fault: Fault, note: dict[str, Any], victim: int) -> bool:
    """Tell whether a survivor's error is not what it has to be."""
    error = note["error"]
    named = not fault.names_victim or error.get("rank") == victim
    return error["type"] != fault.error or not named


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row per fault and fabric."""
    for fault in FAULTS:
        if fault.name not in options.faults:
            continue
        for fabric in options.fabrics:
            busy = wait_until_quiet(options.patience_s)
            print(f"{fault.name}, {fabric}: machine busy before {busy:.0%}", file=sys.stderr)
            jobs = [run_once(fault, fabric, options.ranks) for _ in range(options.repeats)]
            notes = [note for job in jobs for note in job]
            wrong = [n for n in notes if faulty(fault, n, fault.victim(options.ranks))]
            times = [note["after_ms"] for note in notes if note not in wrong]
            yield {
                "fault": fault.title,
                "error": fault.error,
                "fabric": fabric,
                "median_ms": statistics.median(times) if times else None,
                "worst_ms": max(times, default=None),
                "errors": len(times),
                "wrong": [note["error"] for note in wrong],
            }


def show(row: dict[str, Any]) -> None:
    """Print a row of the table, and what was wrong on stderr."""
    times = (
        "- | -" if row["median_ms"] is None else f"{row['median_ms']:.1f} | {row['worst_ms']:.1f}"
    )
    print(
        f"| {row['fault']} | `{row['error']}` | {row['fabric']} | {times} | {row['errors']} |",
        flush=True,
    )
    for error in row["wrong"]:
        print(f"wrong: {error['type']}: {error['message']}", file=sys.stderr)


def main() -> int:
    """Measure all that was asked for; non-zero if any survivor raised the wrong error, or none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--faults", nargs="+", choices=names, default=names)
    parser.add_argument("--fabrics", nargs="+", choices=["shm", "tcp"], default=["shm", "tcp"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--patience-s", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        print("| a rank | error on all others | fabric | median ms | worst ms | errors |")
        print("|---|---|---|---|---|---|")
    for row in measured(options):
        rows.append(row)
        if not options.json:
            show(row)
    if options.json:
        print(json.dumps(rows))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
