"""Actors of the real Ray whose collectives run on standfast; for Ray's Python.

    python collective_job.py SCENARIO SIZE

Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import ray
import torch
from ray.util import collective
from ray.util.collective.types import ReduceOp

import standfast
import standfast.ray

VICTIM = 1
LIMIT_S = 90.0
CALLS: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: np.sum,
    ReduceOp.PRODUCT: np.prod,
    ReduceOp.MIN: np.min,
    ReduceOp.MAX: np.max,
}


@ray.remote(num_cpus=0.1, max_restarts=0)
class Actor:
    """One rank."""

    def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    def join(self, size: int, rank: int, name: str = "default") -> int:
        """Form the group; return Ray's number of this rank."""
        standfast.ray.register()
        collective.init_collective_group(size, rank, "standfast", name)
        return int(collective.get_rank(name))

    def leave(self, name: str = "default") -> None:
        """Leave the group."""
        collective.destroy_collective_group(name)

    def operations(self, name: str = "default") -> list[str]:
        """Run every operation on every sort of array; return what was run."""
        return list(every_operation(name))

    def refusals(self) -> list[str]:
        """Make mistakes; return what is said of them."""
        return list(every_refusal())

    def sum(self, value: int, name: str = "default") -> int:
        """Add up a number of all ranks."""
        x = np.array([value])
        collective.allreduce(x, name)
        return int(x[0])

    def until_it_fails(self, what: str) -> dict[str, Any]:
        """Repeat an operation; return what ended it, and when."""
        try:
            while True:
                one_of(what)
                time.sleep(0.001)
        except standfast.StandfastError as error:
            return {**error.to_dict(), "ended_s": time.monotonic()}

    def fails(self) -> None:
        """Raise what the group raises."""
        while True:
            one_of("allreduce")


def one_of(what: str) -> None:
    """Run an operation on all ranks; in a message, rank 0 receives from VICTIM."""
    rank, size = collective.get_rank(), collective.get_collective_group_size()
    x = np.ones(1000, np.float32)
    match what:
        case "allreduce":
            collective.allreduce(x)
        case "barrier":
            collective.barrier()
        case "allgather":
            collective.allgather([np.empty_like(x) for _ in range(size)], x)
        case "reducescatter":
            collective.reducescatter(x, [np.ones_like(x) for _ in range(size)])
        case "message" if rank == 0:
            collective.recv(x, VICTIM)
        case "message" if rank == VICTIM:
            collective.send(x, 0)
        case "message":
            collective.recv(x, 0)  # which never comes


SORTS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda x: x.copy(),
    "numpy strided": lambda x: np.asfortranarray(np.stack([x, x], -1))[..., 0],
    "torch": torch.from_numpy,
    "torch strided": lambda x: torch.from_numpy(x.T.copy()).T,
    "torch with grad": lambda x: torch.from_numpy(x).requires_grad_(),
}
DTYPES = ("uint8", "int32", "int64", "float16", "float32", "float64")


def every_operation(name: str) -> Any:
    """Run them; compare with NumPy; yield their names."""
    rank, size = collective.get_rank(name), collective.get_collective_group_size(name)

    def value(of: int, dtype: str = "int64") -> np.ndarray[Any, Any]:
        return (np.arange(6).reshape(2, 3) % 4 + 1 + of).astype(dtype)

    for sort, make in SORTS.items():
        for dtype in DTYPES:
            if "grad" in sort and not dtype.startswith("float"):
                continue
            all_values = np.stack([value(of, dtype) for of in range(size)])
            mine = make(value(rank, dtype))
            for op, call in CALLS.items():
                x = make(value(rank, dtype))
                collective.allreduce(x, name, op)
                same(x, call(all_values, axis=0).astype(dtype))
                x = make(value(rank, dtype))
                collective.reduce(x, size - 1, name, op)
                total = call(all_values, axis=0).astype(dtype)
                same(x, total if rank == size - 1 else value(rank, dtype))
                x = make(np.zeros((2, 3), dtype))
                collective.reducescatter(
                    x, [make(value(rank + place, dtype)) for place in range(size)], name, op
                )
                own = np.stack([value(of + rank, dtype) for of in range(size)])
                same(x, call(own, axis=0).astype(dtype))
            x = make(value(rank, dtype))
            collective.broadcast(x, size - 1, name)
            same(x, value(size - 1, dtype))
            found = [make(np.zeros((2, 3), dtype)) for _ in range(size)]
            collective.allgather(found, mine, name)
            for of in range(size):
                same(found[of], value(of, dtype))
            x = make(np.zeros((2, 3), dtype))
            for sender in range(size):
                receiver = (sender + 1) % size
                if rank == sender:
                    collective.send(mine, receiver, name)
                elif rank == receiver:
                    collective.recv(x, sender, name)
            same(x, value((rank - 1) % size, dtype))
            yield f"{sort} {dtype}"
    yield from odd_ones(name, rank, size)
    collective.barrier(name)


def odd_ones(name: str, rank: int, size: int) -> Any:
    """bfloat16 of both libraries, both libraries at once, and what comes from Ray's store."""
    ours = np.full(3, rank + 1, ml_dtypes.bfloat16)
    theirs = [torch.zeros(3, dtype=torch.bfloat16) for _ in range(size)]
    collective.allgather(theirs, ours, name)
    back = [np.zeros(3, ml_dtypes.bfloat16) for _ in range(size)]
    collective.allgather(back, theirs[rank], name)
    for of in range(size):
        assert float(theirs[of].sum()) == float(back[of].astype("f4").sum()) == 3.0 * (of + 1)
    mixed = [
        torch.zeros(2, dtype=torch.int64) if of % 2 else np.zeros(2, "i8") for of in range(size)
    ]
    collective.allgather(mixed, np.array([rank, -rank]), name)
    assert [int(each[1]) for each in mixed] == [-of for of in range(size)]
    stored = ray.get(ray.put(np.full(3, rank)))
    assert not stored.flags.writeable
    x = stored if rank == 0 else np.zeros(3, stored.dtype)
    collective.broadcast(x, 0, name)
    same(x, np.zeros(3, stored.dtype))
    yield "bfloat16, mixed, stored"


def same(x: Any, wanted: Any) -> None:
    """Check contents, dtype and shape."""
    found = x.detach().numpy() if isinstance(x, torch.Tensor) else x
    np.testing.assert_array_equal(found, wanted, strict=True)


def every_refusal() -> Any:
    """Make mistakes, the same on all ranks."""
    size = collective.get_collective_group_size()
    group = collective.get_group_handle()
    x = np.ones(2)
    mistakes: list[Callable[[], object]] = [
        lambda: collective.allreduce(ray.get(ray.put(x))),
        lambda: collective.allreduce(torch.zeros(2, device="meta")),
        lambda: collective.allreduce(np.zeros(2, "complex128")),
        lambda: collective.allreduce(torch.zeros(2).to_sparse()),
        lambda: collective.allgather([np.ones(3)] * size, x),
        lambda: group.allreduce([x, x]),
        lambda: group.allgather([[x] * (size + 1)], [x]),
        lambda: group.allreduce([[1.0]]),
        lambda: group.send([x], Pieces()),
    ]
    for mistake in mistakes:
        try:
            mistake()
        except (TypeError, ValueError) as error:
            yield f"{type(error).__name__}: {error}"
        else:
            yield "nothing"


class Pieces:
    """What Ray's send_multigpu() passes on."""

    dst_rank, dst_gpu_index, n_elements = 0, 1, 1


def actors(size: int) -> list[Any]:
    """Start them."""
    made: Any = Actor  # what the decorator makes of the class
    return [made.remote() for _ in range(size)]


def get(calls: list[Any]) -> list[Any]:
    """Wait for results."""
    found: list[Any] = ray.get(calls, timeout=LIMIT_S)
    return found


def operations(size: int) -> Any:
    """Form groups in each of Ray's three ways, and run everything."""
    ranks = actors(size)
    joined = get([each.join.remote(size, number) for number, each in enumerate(ranks)])
    ran = get([each.operations.remote() for each in ranks])
    refused = get([each.refusals.remote() for each in ranks])
    get([each.join.remote(size, size - 1 - n, "back") for n, each in enumerate(ranks)])
    sums = get([each.sum.remote(n, "back") for n, each in enumerate(ranks)])
    get([each.leave.remote("back") for each in ranks])
    # Ray's declared groups are made by their first operation.
    collective.create_collective_group(ranks, size, list(range(size)), "standfast", "declared")
    sums += get([each.sum.remote(n, "declared") for n, each in enumerate(ranks)])
    from ray.experimental import collective as experimental

    group = experimental.create_collective_group(ranks, "standfast")
    sums += get([each.sum.remote(n, group.name) for n, each in enumerate(ranks)])
    experimental.destroy_collective_group(group)
    get([each.leave.remote() for each in ranks])
    return {"joined": joined, "ran": ran, "refused": refused, "sums": sums}


def death(size: int) -> Any:
    """Kill a rank in the middle of each operation; form the group again under the same name."""
    story: dict[str, Any] = {"ends": {}}
    ranks = actors(size)
    for what in ("allreduce", "barrier", "allgather", "reducescatter", "message", "raises"):
        get([each.join.remote(size, number) for number, each in enumerate(ranks)])
        if what == "raises":
            story["raised"] = raised(ranks)
            break
        (victim,) = get([ranks[VICTIM].pid.remote()])
        calls = [each.until_it_fails.remote(what) for each in ranks]
        time.sleep(0.2)
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        ends = get([call for number, call in enumerate(calls) if number != VICTIM])
        story["ends"][what] = [{**end, "after_s": end["ended_s"] - killed_s} for end in ends]
        survivors = [each for number, each in enumerate(ranks) if number != VICTIM]
        get([each.leave.remote() for each in survivors])
        ranks[VICTIM] = actors(1)[0]
    return story


def raised(ranks: list[Any]) -> list[Any]:
    """Let actors raise what a group raises when one of them is killed by Ray."""
    calls = [each.fails.remote() for each in ranks]
    ray.kill(ranks[VICTIM])
    found = []
    for number, call in enumerate(calls):
        try:
            ray.get(call, timeout=LIMIT_S)
        except standfast.PeerDied as error:
            found.append([number, error.rank, error.host, str(error)])
        except ray.exceptions.RayActorError:
            found.append([number])
    return found


def main(scenario: str, size: int) -> None:
    """Run a scenario on a cluster of its own."""
    hook = {"worker_process_setup_hook": standfast.ray.register}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 << 20,
        logging_level="error",
        log_to_driver=False,
        runtime_env=hook if scenario == "operations" else None,
    )
    standfast.ray.register()
    print(json.dumps({"operations": operations, "death": death}[scenario](size)), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
