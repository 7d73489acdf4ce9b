"""A rank for these tests: says who it is; fails as its arguments say; sums until it is told to end.

    python rank.py FOLDER GENERATIONS [reform]

In the last of so many generations it ends well after a sum; before, it sums until it fails, and
forms its group again in process where it is told to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import standfast

folder, generations = Path(sys.argv[1]), int(sys.argv[2])
reform = sys.argv[3:] == ["reform"]


def work(group: standfast.Group) -> None:
    """Say who this is, and sum."""
    name = f"{group.generation}-{os.environ['STANDFAST_RANK']}"
    (folder / f".{name}").write_text(f"{os.getpid()} {os.getppid()}")
    (folder / f".{name}").replace(folder / name)
    while True:
        total = group.all_sum(group.rank)
        if group.generation >= generations:
            break
    print("sum", total, flush=True)


with standfast.init() as group:
    try:
        work(group)
    except standfast.PeerError:
        if not reform:
            raise
        with group.reform(wait_s=30.0) as again:
            work(again)
