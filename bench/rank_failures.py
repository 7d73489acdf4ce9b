"""The program of one rank of failures.py: works until its group fails, and notes when and how.

Started as a plain process, with its identity in STANDFAST_..., as
`rank_failures.py FAULT VICTIM FOLDER`. The victim notes the time and does the fault.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

import standfast

CALLS_BEFORE = 50
FLOATS = 1 << 18


def kill(group: standfast.Group) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_now(group: standfast.Group) -> None:
    os._exit(3)


def raise_error(group: standfast.Group) -> NoReturn:
    raise ArithmeticError("the loss is not a number")


def close(group: standfast.Group) -> None:
    group.close()


def abort(group: standfast.Group) -> None:
    group.abort("asked for by the benchmark")


def mismatch(group: standfast.Group) -> None:
    group.all_sum(np.ones(17, np.float32))


def interrupt(group: standfast.Group) -> None:
    os.kill(os.getpid(), signal.SIGINT)


FAULTS: dict[str, Callable[[standfast.Group], None]] = {
    "kill": kill,
    "kill-0": kill,
    "kill-large": kill,
    "exit": exit_now,
    "raise": raise_error,
    "close": close,
    "interrupt": interrupt,
    "abort": abort,
    "mismatch": mismatch,
}


def note(folder: Path, rank: int, **values: object) -> None:
    """Write when it happened, on the clock that all processes of a machine share, and what."""
    values["at_ns"] = values.get("at_ns") or time.monotonic_ns()
    path = folder / f"rank{rank}.json"
    path.with_suffix(".new").write_text(json.dumps(values))
    path.with_suffix(".new").rename(path)


def work(group: standfast.Group, fault: str, victim: int, folder: Path) -> None:
    """Sum up and up; the victim stops after a while to do what it is here for."""
    x = np.ones(FLOATS, np.float32)
    for call in range(1_000_000):
        if call == CALLS_BEFORE and group.rank == victim:
            time.sleep(0.05)  # until all others wait for this rank
            note(folder, group.rank)
            FAULTS[fault](group)
            return
        group.all_sum(x, out=x)


def main() -> None:
    """Join, work, note the error."""
    fault, victim, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    with standfast.init() as group:
        ballast = np.ones(125_000_000 if fault == "kill-large" else 1)
        group.barrier()
        try:
            work(group, fault, victim, folder)
        except standfast.StandfastError as error:
            now_ns = time.monotonic_ns()
            if group.rank != victim:
                note(folder, group.rank, at_ns=now_ns, error=error.to_dict())
        del ballast


if __name__ == "__main__":
    main()
