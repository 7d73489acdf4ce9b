"""One small class per library, so that rank.py measures all of them with the same loop.

Made inside a rank's process, which imports only the library that it measures. Memory is allocated
by prepare(), not by what is timed, wherever a library lets the caller say where results go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from standfast.bench.data import Array, dtype_of
from standfast.bench.plan import Cell

Floats = NDArray[np.float32]
Call = Callable[[], object]


def _nothing() -> None:
    """Do nothing: the library looks at the source itself."""


@dataclasses.dataclass
class Work:
    """One operation, ready to be called again and again.

    source is what this rank puts in, in one dimension; load() makes a change of it known to a
    library that keeps memory of its own. result() is what the last call gave, as a view or copy.
    calls_per_time: how many messages in a row one call stands for; its time is divided by that.
    """

    call: Call
    source: Array
    result: Callable[[], Array]
    load: Call = _nothing
    calls_per_time: int = 1


class Adapter(Protocol):
    """What rank.py needs of a library.

    is_ours: an error is not to be expected. Others may show that they lack an operation by raising
    when it is called, on all ranks alike.
    """

    rank: int
    size: int
    is_ours: bool

    def join(self) -> None:
        """Join the group; blocks until it is complete."""

    def leave(self) -> None:
        """Leave the group in order."""

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks, as a new array."""

    def prepare(self, cell: Cell) -> Work | None:
        """Return the operation, or None where the library has none like it."""


def buffers(
    cell: Cell, rank: int, ranks: int, empty: Callable[..., Array] = np.empty
) -> tuple[Array, Array]:
    """Return memory for what a rank puts in and for its result, in one dimension each."""
    count, dtype = cell.count(ranks), dtype_of(cell.dtype)
    many, at_root = count * ranks, rank == cell.root
    source, target = {
        "all_gather": (count, many),
        "reduce_scatter": (many, count),
        "all_to_all": (many, many),
        "gather": (count, many if at_root else 0),
        "scatter": (many if at_root else 0, count),
    }.get(cell.op, (count, count))
    to = empty(target, dtype)
    to[:] = 0  # touched: its pages are there when the first call is timed
    if not cell.in_place:
        return empty(source, dtype), to
    return (to[rank * count :][:count] if cell.op == "all_gather" else to), to


class Standfast:
    """Ourselves. options: arguments of init(); memory "shared": arrays of standfast.empty()."""

    is_ours = True

    def __init__(self, rank: int, size: int, options: dict[str, Any]) -> None:
        self.rank: int = rank
        self.size: int = size
        self.options: dict[str, Any] = {
            key: text for key, text in options.items() if key != "memory"
        }
        self.is_shared: bool = options.get("memory") == "shared"

    def join(self) -> None:
        """Join the group that the environment describes."""
        import standfast

        self.empty: Any = standfast.empty if self.is_shared else np.empty
        self.group: standfast.Group = standfast.init(**self.options)
        self.rank, self.size = self.group.rank, self.group.size

    def leave(self) -> None:
        """Close the group."""
        self.group.close()

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        return np.asarray(self.group.all_sum(x))

    def prepare(self, cell: Cell) -> Work | None:
        """Return the operation."""
        x, y = buffers(cell, self.rank, self.size, self.empty)
        call = self._call(cell, x, y)
        return Work(call, x, lambda: y, calls_per_time=2 if cell.op == "ping_pong" else 1)

    def _call(self, cell: Cell, x: Array, y: Array) -> Call:
        group, op, root = self.group, cell.redop, cell.root
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size

        def send_recv() -> None:
            sending = group.send_async(x, after)
            group.recv_like(y, before, out=y)
            sending.wait()

        def ping() -> None:
            group.send(x, after)
            group.recv_like(y, after, out=y)

        def pong() -> None:
            group.recv_like(y, after, out=y)
            group.send(x, after)

        calls: dict[str, Call] = {
            "all_reduce": lambda: group.all_reduce(x, op, out=y),
            "all_gather": lambda: group.all_gather(x, out=y),
            "reduce_scatter": lambda: group.reduce_scatter(x, op, out=y),
            "broadcast": lambda: group.broadcast(x, root, out=y),
            "all_to_all": lambda: group.all_to_all(x, out=y),
            "gather": lambda: group.gather(x, root, out=y if self.rank == root else None),
            "scatter": lambda: group.scatter(x if self.rank == root else None, root, out=y),
            "send_recv": send_recv,
            "ping_pong": ping if self.rank == 0 else pong,
            "barrier": group.barrier,
        }
        if op == "sum":  # as most programs write it
            calls["all_reduce"] = lambda: group.all_sum(x, out=y)
        return calls[cell.op]


class Mpi:
    """Any MPI through mpi4py's upper-case calls on NumPy's buffers."""

    is_ours = False

    def __init__(self, rank: int, size: int, _options: dict[str, Any]) -> None:
        self.rank: int = rank
        self.size: int = size

    def join(self) -> None:
        """Initialise MPI, which importing mpi4py.MPI does."""
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD
        self.rank, self.size = int(self.comm.Get_rank()), int(self.comm.Get_size())

    def leave(self) -> None:
        """Leave the rest to mpi4py, which finalises MPI at exit."""

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        result = np.empty_like(x)
        self.comm.Allreduce(x, result)
        return result

    def prepare(self, cell: Cell) -> Work | None:
        """Return the operation; MPI has no 16-bit floats."""
        if cell.dtype in ("float16", "bfloat16"):
            return None
        x, y = buffers(cell, self.rank, self.size)
        call = self._call(cell, x, y)
        return Work(call, x, lambda: y, calls_per_time=2 if cell.op == "ping_pong" else 1)

    def _call(self, cell: Cell, x: Array, y: Array) -> Call:
        comm, root = self.comm, cell.root
        op: Any = getattr(self.mpi, (cell.redop or "sum").upper())
        given: Any = self.mpi.IN_PLACE if cell.in_place else x
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size

        def ping() -> None:
            comm.Send(x, after)
            comm.Recv(y, after)

        def pong() -> None:
            comm.Recv(y, after)
            comm.Send(x, after)

        def broadcast() -> None:  # MPI has it in place only
            if self.rank == root and not cell.in_place:
                y[:] = x
            comm.Bcast(y, root)

        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.Allreduce(given, y, op),
            "all_gather": lambda: comm.Allgather(given, y),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(x, y, op),
            "broadcast": broadcast,
            "all_to_all": lambda: comm.Alltoall(x, y),
            "gather": lambda: comm.Gather(x, y if self.rank == root else None, root),
            "scatter": lambda: comm.Scatter(x if self.rank == root else None, y, root),
            "send_recv": lambda: comm.Sendrecv(x, after, recvbuf=y, source=before),
            "ping_pong": ping if self.rank == 0 else pong,
            "barrier": comm.Barrier,
        }
        return calls[cell.op]


class Gloo:
    """Gloo through torch.distributed, one thread per rank."""

    is_ours = False

    def __init__(self, rank: int, size: int, _options: dict[str, Any]) -> None:
        self.rank: int = rank
        self.size: int = size

    def join(self) -> None:
        """Join the group whose store is at MASTER_ADDR:MASTER_PORT."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch: Any = torch
        self.dist: Any = dist
        dist.init_process_group("gloo", rank=self.rank, world_size=self.size)

    def leave(self) -> None:
        """Take the group apart, once nobody is in it any more."""
        self.dist.barrier()
        self.dist.destroy_process_group()

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        tensor = self.torch.from_numpy(x.copy())
        self.dist.all_reduce(tensor)
        return np.asarray(tensor.numpy())

    def prepare(self, cell: Cell) -> Work | None:
        """Return the operation."""
        x, y = buffers(cell, self.rank, self.size)
        call = self._call(cell, self._tensor(x, cell.dtype), self._tensor(y, cell.dtype))
        if call is None:
            return None
        # all_reduce and broadcast are in place only: out of place, what comes out is where x was.
        same = cell.op in ("all_reduce", "broadcast")
        return Work(
            call, x, lambda: x if same else y, calls_per_time=2 if cell.op == "ping_pong" else 1
        )

    def _tensor(self, x: Array, dtype: str) -> Any:
        if dtype == "bfloat16":  # of which torch takes no NumPy array
            return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(x)

    def _call(self, cell: Cell, x: Any, y: Any) -> Call | None:
        dist, root = self.dist, cell.root
        op = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN", "": "SUM"}[cell.redop]
        by: Any = getattr(dist.ReduceOp, op)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size

        def send_recv() -> None:
            sending = dist.isend(x, after)
            dist.recv(y, before)
            sending.wait()

        def ping() -> None:
            dist.send(x, after)
            dist.recv(y, after)

        def pong() -> None:
            dist.recv(y, after)
            dist.send(x, after)

        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(x, by),
            "all_gather": lambda: dist.all_gather_into_tensor(y, x),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(y, x, by),
            "broadcast": lambda: dist.broadcast(x, root),
            "all_to_all": lambda: dist.all_to_all_single(y, x),
            "send_recv": send_recv,
            "ping_pong": ping if self.rank == 0 else pong,
            "barrier": dist.barrier,
        }
        return calls.get(cell.op)


class Mlx:
    """MLX's ring on the CPU. Its operations are lazy and always make a new array."""

    is_ours = False

    def __init__(self, rank: int, size: int, _options: dict[str, Any]) -> None:
        self.rank: int = rank
        self.size: int = size
        self.last: Any = None

    def join(self) -> None:
        """Join the ring described by MLX_RANK and MLX_HOSTFILE."""
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx: Any = mx
        ring = mx.distributed.init(strict=True, backend="ring")
        self.options: dict[str, Any] = {"group": ring, "stream": mx.cpu}

    def leave(self) -> None:
        """Do nothing: a ring ends with its processes."""

    def total(self, x: Floats) -> Floats:
        """Return the sum of x over all ranks."""
        return np.array(self.mx.distributed.all_sum(self.mx.array(x), **self.options))

    def prepare(self, cell: Cell) -> Work | None:
        """Return the operation, followed by mx.eval; its ring has no reduce_scatter (0.32)."""
        if cell.in_place or cell.dtype == "bfloat16":  # NumPy reads no bfloat16 of MLX's
            return None
        name = {"sum": "all_sum", "max": "all_max", "min": "all_min"}.get(cell.redop)
        if cell.op not in ("all_reduce", "all_gather", "ping_pong", "barrier") or (
            cell.op == "all_reduce" and name is None
        ):
            return None
        mx, ring, options = self.mx, self.mx.distributed, self.options
        source, _ = buffers(cell, self.rank, self.size)
        given = [mx.array(source)]
        mx.eval(given)
        call: Call
        if cell.op == "all_reduce":
            call = self._kept(lambda: getattr(ring, str(name))(given[0], **options))
        elif cell.op == "all_gather":
            call = self._kept(lambda: ring.all_gather(given[0], **options))
        elif cell.op == "barrier":  # MLX has none: the usual idiom
            one = mx.array(1.0)
            return Work(self._kept(lambda: ring.all_sum(one, **options)), source, lambda: source)
        else:
            call = self._ping_pong(given)

        def load() -> None:
            given[0] = mx.array(source)
            mx.eval(given)

        pairs = 2 if cell.op == "ping_pong" else 1
        return Work(call, source, lambda: np.array(self.last), load, calls_per_time=pairs)

    def _kept(self, make: Call) -> Call:
        evaluate = self.mx.eval

        def call() -> None:
            self.last = make()
            evaluate(self.last)

        return call

    def _ping_pong(self, given: list[Any]) -> Call:
        ring, options, other = self.mx.distributed, self.options, 1 - self.rank
        shape, dtype = given[0].shape, given[0].dtype
        send = self._kept(lambda: ring.send(given[0], other, **options))
        recv = self._kept(lambda: ring.recv(shape, dtype, other, **options))

        def ping() -> None:
            send()
            recv()

        def pong() -> None:
            recv()
            got = self.last
            send()
            self.last = got

        return ping if self.rank == 0 else pong


ADAPTERS: dict[str, Callable[[int, int, dict[str, Any]], Adapter]] = {
    "standfast": Standfast,
    "mlx": Mlx,
    "gloo": Gloo,
    "mpi": Mpi,
}
