"""A rank for these tests: says who it is; fails as its arguments say; sums until it is told to end.

    python rank.py FOLDER GENERATIONS

In the last of so many generations it ends well after a sum; before, it sums until it fails.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import standfast

folder, generations = Path(sys.argv[1]), int(sys.argv[2])
with standfast.init() as group:
    name = f"{group.generation}-{group.rank}"
    (folder / f".{name}").write_text(f"{os.getpid()} {os.getppid()}")
    (folder / f".{name}").replace(folder / name)
    while True:
        total = group.all_sum(group.rank)
        if group.generation >= generations:
            break
    print("sum", total, flush=True)
