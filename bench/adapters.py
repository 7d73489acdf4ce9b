"""One small class per library, so that rank_speed.py times all of them with the same loop.

Created inside a rank's process, which imports only the library that it measures. Each offers

    join()                      become part of the group; blocks until it is complete
    total(x)                    the sum of a float32 array over all ranks, as a new array
    operation(name, nbytes)     a function without arguments that runs the operation once, or None
                                where the library has no such operation

Memory is allocated by operation(), not by the function that is timed, wherever the library lets the
caller provide the result's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Operation = Callable[[], object]


class Adapter(Protocol):
    """What rank_speed.py needs of a library."""

    rank: int
    size: int

    def join(self) -> None:
        """Join the group."""

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""

    def operation(self, name: str, nbytes: int) -> Operation | None:
        """Return a function that runs the operation once."""


def floats_in(nbytes: int) -> int:
    """Return how many float32 make up a message."""
    return max(1, nbytes // 4)


class Standfast:
    """Ourselves, started as plain processes; the fabric is chosen by STANDFAST_FABRIC."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def join(self) -> None:
        """Join the group described by STANDFAST_RANK, _WORLD_SIZE and _COORDINATOR."""
        import standfast

        self.group = standfast.init()

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        return np.asarray(self.group.all_sum(x))

    def operation(self, name: str, nbytes: int) -> Operation | None:
        """Return a function that runs the operation once."""
        group, count, other = self.group, floats_in(nbytes), 1 - self.rank
        x = np.ones(count, np.float32)
        y = np.empty_like(x)
        many = np.ones(count * self.size, np.float32)

        def ping() -> None:
            group.send(x, other)
            group.recv_like(y, other, out=y)

        def pong() -> None:
            group.recv_like(y, other, out=y)
            group.send(x, other)

        match name:
            case "all_reduce":
                return lambda: group.all_sum(x, out=y)
            case "all_gather":
                return lambda: group.all_gather(x, out=many)
            case "reduce_scatter":
                return lambda: group.reduce_scatter(many, out=x)
            case "barrier":
                return group.barrier
            case "pingpong":
                return ping if self.rank == 0 else pong
        return None


class Mlx:
    """MLX's ring on the CPU. Its operations are lazy and always make a new array."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def join(self) -> None:
        """Join the ring described by MLX_RANK and MLX_HOSTFILE."""
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx: Any = mx
        self.options = {"group": mx.distributed.init(strict=True, backend="ring"), "stream": mx.cpu}

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        return np.array(self.mx.distributed.all_sum(self.mx.array(x), **self.options))

    def operation(self, name: str, nbytes: int) -> Operation | None:
        """Return a function that runs the operation once and evaluates it."""
        mx, ring, options, count = self.mx, self.mx.distributed, self.options, floats_in(nbytes)
        x, one, other = mx.ones((count,), dtype=mx.float32), mx.array(1.0), 1 - self.rank
        mx.eval(x, one)

        def ping() -> None:
            mx.eval(ring.send(x, other, **options))
            mx.eval(ring.recv((count,), mx.float32, other, **options))

        def pong() -> None:
            mx.eval(ring.recv((count,), mx.float32, other, **options))
            mx.eval(ring.send(x, other, **options))

        match name:
            case "all_reduce":
                return lambda: mx.eval(ring.all_sum(x, **options))
            case "all_gather":
                return lambda: mx.eval(ring.all_gather(x, **options))
            case "barrier":  # MLX has none: the usual idiom
                return lambda: mx.eval(ring.all_sum(one, **options))
            case "eval_only":  # what mx.eval costs with nothing to communicate
                return lambda: mx.eval(mx.add(one, one, stream=mx.cpu))
            case "pingpong":
                return ping if self.rank == 0 else pong
        return None  # reduce_scatter: "[ring] sum_scatter not supported." (0.32.4)


class Gloo:
    """Gloo through torch.distributed, one thread per rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def join(self) -> None:
        """Join the group whose store is at MASTER_ADDR:MASTER_PORT."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch: Any = torch
        self.dist: Any = dist
        dist.init_process_group("gloo", rank=self.rank, world_size=self.size)

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        tensor = self.torch.from_numpy(x.copy())
        self.dist.all_reduce(tensor)
        return np.asarray(tensor.numpy())

    def operation(self, name: str, nbytes: int) -> Operation | None:
        """Return a function that runs the operation once."""
        dist, count, other = self.dist, floats_in(nbytes), 1 - self.rank
        x = self.torch.ones(count, dtype=self.torch.float32)
        y = self.torch.empty_like(x)
        many = self.torch.ones(count * self.size, dtype=self.torch.float32)

        barrier: Operation = dist.barrier

        def ping() -> None:
            dist.send(x, other)
            dist.recv(y, other)

        def pong() -> None:
            dist.recv(y, other)
            dist.send(x, other)

        match name:
            case "all_reduce":  # in place: Gloo has no other form
                return lambda: dist.all_reduce(x)
            case "all_gather":
                return lambda: dist.all_gather_into_tensor(many, x)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(x, many)
            case "barrier":
                return barrier
            case "pingpong":
                return ping if self.rank == 0 else pong
        return None


class Mpi:
    """Any MPI through mpi4py's upper-case calls on NumPy buffers."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def join(self) -> None:
        """Initialise MPI, which importing mpi4py.MPI does."""
        from mpi4py import MPI

        self.comm: Any = MPI.COMM_WORLD

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        result = np.empty_like(x)
        self.comm.Allreduce(x, result)
        return result

    def operation(self, name: str, nbytes: int) -> Operation | None:
        """Return a function that runs the operation once."""
        comm, count, other = self.comm, floats_in(nbytes), 1 - self.rank
        x = np.ones(count, np.float32)
        y = np.empty_like(x)
        many = np.ones(count * self.size, np.float32)

        barrier: Operation = comm.Barrier

        def ping() -> None:
            comm.Send(x, other)
            comm.Recv(y, other)

        def pong() -> None:
            comm.Recv(y, other)
            comm.Send(x, other)

        match name:
            case "all_reduce":
                return lambda: comm.Allreduce(x, y)
            case "all_gather":
                return lambda: comm.Allgather(x, many)
            case "reduce_scatter":
                return lambda: comm.Reduce_scatter_block(many, x)
            case "barrier":
                return barrier
            case "pingpong":
                return ping if self.rank == 0 else pong
        return None


ADAPTERS: dict[str, Callable[[int, int], Adapter]] = {
    "standfast": Standfast,
    "mlx": Mlx,
    "gloo": Gloo,
    "mpi": Mpi,
}


def make(name: str, size: int) -> Adapter:
    """Return the adapter for this rank; the rank comes from the harness or the MPI launcher."""
    for variable in ("BENCH_RANK", "PMIX_RANK", "PMI_RANK"):
        if variable in os.environ:
            return ADAPTERS[name](int(os.environ[variable]), size)
    raise SystemExit("no rank in the environment: this program is started by speed.py")
