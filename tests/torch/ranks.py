"""The process that job.py starts: imports torch, forks the ranks, and says how each ended."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

# What trains, shards or saves loads these when it first does: seconds, in each rank, if not here.
LOADS_LATE = (
    *("training", "sharded", "meshes", "backward", "fsdp", "functional"),
    *("mesh", "checkpoint"),
)


def main(scenario: str, ranks: int, folder: Path) -> None:
    from tests.torch import scenarios

    if scenario.removeprefix("death_in_") in LOADS_LATE:
        importlib.import_module("torch._dynamo")
    run = getattr(scenarios, scenario)
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _rank(run, rank, ranks, folder)
        pids.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    (folder / "statuses.json").write_text(json.dumps(statuses))


def _rank(run: object, rank: int, ranks: int, folder: Path) -> None:
    status = 1
    try:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(ranks)
        assert callable(run)
        told = run(rank, ranks, folder)
        (folder / f"{rank}.json").write_text(json.dumps(told))
        status = 0
    except BaseException:  # noqa: BLE001 - the edge of the process
        (folder / f"{rank}.err").write_text(f"rank {rank}: {traceback.format_exc()}")
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
