"""A rank that somebody else's launcher starts: tells who it is, then sums until it is told to stop.

    python rank.py FOLDER

Run by any Python that has standfast and NumPy. For each generation and rank it writes a record when
the group is formed, and one at its end: into FOLDER, under names that sort. With STARTED_RECORD set
it runs under torch's @record.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import standfast

PAUSE_S = 0.002


def write(folder: Path, name: str, record: dict[str, object]) -> None:
    """Write a record so that whoever finds it finds all of it."""
    temporary = folder / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps(record))
    temporary.replace(folder / name)


def work(group: standfast.Group, folder: Path) -> None:
    """Sum until a file says stop; rank 0 looks for it, and the sum tells all in the same turn."""
    stop = folder / "stop"
    while True:
        told = group.rank == 0 and stop.exists()
        total = group.all_sum(np.array([1, int(told)], np.int64))
        assert total[0] == group.size
        if total[1]:
            return
        time.sleep(PAUSE_S)


def main(folder: Path) -> None:
    """Join, work, and record how it ended; errors stay uncaught, as in a user's program."""
    with standfast.init() as group:
        name = f"{group.generation}-{group.rank}"
        write(folder, f"{name}.ready", {"pid": os.getpid(), "size": group.size})
        try:
            work(group, folder)
        except standfast.StandfastError as error:
            write(folder, f"{name}.end", {**error.to_dict(), "ended_s": time.monotonic()})
            raise
        write(folder, f"{name}.end", {"type": None})


if __name__ == "__main__":
    if "STARTED_RECORD" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main(Path(sys.argv[1]))
