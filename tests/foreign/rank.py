"""A rank of a job that knows nothing of standfast: stock MLX ring, Gloo, or MPI. Sums for ever.

    python rank.py LIBRARY FOLDER

A script of its own, run by any Python that has the library. It writes its pid and, after each sum,
a count into FOLDER. With FOREIGN_COORDINATOR set it calls standfast.watch() first: the one line
that such a program needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNT = 65536
PAUSE_S = 0.005

Sum = Callable[[], object]


def mlx_ring(rank: int, size: int) -> Sum:
    """Join MLX's ring; MLX_HOSTFILE is set."""
    os.environ["MLX_RANK"] = str(rank)
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")
    assert group.size() == size
    ones = mx.ones((COUNT,))
    return lambda: mx.eval(mx.distributed.all_sum(ones, group=group, stream=mx.cpu))


def gloo(rank: int, size: int) -> Sum:
    """Join torch's Gloo group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    address = f"tcp://{os.environ['FOREIGN_MEETING']}"
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=address)
    ones = torch.ones(COUNT)
    return lambda: dist.all_reduce(ones)


def mpi(rank: int, size: int) -> Sum:
    """Join MPI; mpirun has started us."""
    import numpy as np
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    assert (world.rank, world.size) == (rank, size)
    ones, total = np.ones(COUNT, np.float32), np.empty(COUNT, np.float32)
    return lambda: world.Allreduce(ones, total)


LIBRARIES: dict[str, Callable[[int, int], Sum]] = {"mlx": mlx_ring, "gloo": gloo, "mpi": mpi}


def main(library: str, folder: Path) -> None:
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") if library == "mpi" else ("RANK", "")
    rank = int(os.environ[names[0]])
    size = int(os.environ.get(names[1], "3"))
    coordinator = os.environ.get("FOREIGN_COORDINATOR")
    if coordinator is not None:
        import standfast

        limits = json.loads(os.environ["FOREIGN_LIMITS"])
        standfast.watch(rank, size, coordinator, on_fault="exit", **limits)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    add = LIBRARIES[library](rank, size)
    count = os.open(folder / f"{rank}.count", os.O_WRONLY | os.O_CREAT, 0o600)
    done = 0
    while True:
        add()
        done += 1
        os.pwrite(count, b"%12d" % done, 0)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
