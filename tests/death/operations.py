"""Every operation as the death tests call it: who waits for whom, what to send, what is right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

SMALL = 8
LARGE = 64 * 1024
HUGE = 2 * 1024 * 1024
"""Elements of float64: 64 bytes, half a MiB (two phases, several frames), and 16 MiB, which no
socket's or ring's buffers hold, so that its sender waits."""


class Op(NamedTuple):
    """An operation.

    name: of the error's op. call(group, peer, elements, **more) does it: peer is the rank that all
    wait for, more may hold timeout_s. elements: per rank.
    """

    name: str
    call: Callable[..., Any]
    elements: int = SMALL


def content(rank: int, count: int) -> np.ndarray[Any, Any]:
    """Return what a rank contributes: it encodes rank and index, and adds up exactly."""
    return np.arange(count, dtype=np.float64) + 1000.0 * (rank + 1)


def _all_reduce(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.all_reduce(content(group.rank, count), "sum", **more)


def _all_sum_async(group: Any, peer: int, count: int, **more: Any) -> Any:
    handle = group.all_reduce_async(content(group.rank, count), "sum", **more)
    handle.wait()
    return handle.result()


def _all_sum_awaited(group: Any, peer: int, count: int, **more: Any) -> Any:
    async def main() -> Any:
        return await group.all_reduce_async(content(group.rank, count), "sum", **more)

    return asyncio.run(main())


def _all_gather(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.all_gather(content(group.rank, count), **more)


def _reduce_scatter(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.reduce_scatter(content(group.rank, count * group.size), "max", **more)


def _broadcast(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.broadcast(content(group.rank, count), root=peer, **more)


def _all_to_all(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.all_to_all(content(group.rank, count * group.size), **more)


def _gather(group: Any, peer: int, count: int, **more: Any) -> Any:
    """The next rank collects, and waits for the peer; the others wait in a barrier, for all."""
    found = group.gather(content(group.rank, count), root=(peer + 1) % group.size, **more)
    group.barrier(**more)
    return found


def _gather_bytes(group: Any, peer: int, count: int, **more: Any) -> Any:
    found = group.gather(bytes([group.rank]) * count, root=(peer + 1) % group.size, **more)
    group.barrier(**more)
    return found


def _scatter(group: Any, peer: int, count: int, **more: Any) -> Any:
    x = content(group.rank, count * group.size) if group.rank == peer else None
    return group.scatter(x, root=peer, **more)


def _send(group: Any, peer: int, count: int, **more: Any) -> Any:
    """All send to the peer, which receives from all, in the order of ranks."""
    if group.rank != peer:
        group.send(content(group.rank, count), peer, tag=7, **more)
        return None
    others = [rank for rank in range(group.size) if rank != peer]
    return np.concatenate([group.recv(count, np.float64, rank, tag=7, **more) for rank in others])


def _recv(group: Any, peer: int, count: int, **more: Any) -> Any:
    """All receive from the peer."""
    if group.rank != peer:
        return group.recv(count, np.float64, peer, tag=3, **more)
    for rank in range(group.size):
        if rank != peer:
            group.send(content(peer, count), rank, tag=3, **more)
    return None


def _recv_async(group: Any, peer: int, count: int, **more: Any) -> Any:
    if group.rank != peer:
        return group.recv_async(count, np.float64, peer, tag=3, **more).result()
    return _recv(group, peer, count, **more)


def _recv_bytes(group: Any, peer: int, count: int, **more: Any) -> Any:
    if group.rank != peer:
        return group.recv(None, bytes, peer, **more)
    for rank in range(group.size):
        if rank != peer:
            group.send(bytes(count), rank, **more)
    return None


def _barrier(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.barrier(**more)


def _barrier_async(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.barrier_async(**more).result()


def _agree(group: Any, peer: int, count: int, **more: Any) -> Any:
    return group.agree(True, **more)


OPS: dict[str, Op] = {
    "all_reduce": Op("all_sum", _all_reduce),
    "all_reduce large": Op("all_sum", _all_reduce, LARGE),
    "all_reduce async": Op("all_sum", _all_sum_async),
    "all_reduce await": Op("all_sum", _all_sum_awaited, LARGE),
    "all_gather": Op("all_gather", _all_gather),
    "all_gather large": Op("all_gather", _all_gather, LARGE),
    "reduce_scatter": Op("reduce_scatter", _reduce_scatter),
    "broadcast": Op("broadcast", _broadcast),
    "all_to_all": Op("all_to_all", _all_to_all),
    "gather": Op("gather", _gather),
    "gather bytes": Op("gather", _gather_bytes),
    "scatter": Op("scatter", _scatter),
    "send": Op("send", _send, HUGE),
    "recv": Op("recv", _recv),
    "recv async": Op("recv", _recv_async),
    "recv bytes": Op("recv", _recv_bytes),
    "barrier": Op("barrier", _barrier),
    "barrier async": Op("barrier", _barrier_async),
    "agree": Op("agree", _agree),
}


def waits_in(key: str, rank: int, peer: int, size: int) -> bool:
    """Tell whether this rank is sure to wait in the operation itself while the peer stays away."""
    if key in ("gather", "gather bytes"):
        return rank == (peer + 1) % size
    return rank != peer


MIXED = "mixed"
"""Stands for all operations, one after the other."""

MAIN = (
    "all_reduce",
    "all_reduce large",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "agree",
)
"""The others run alike in mesh and ring (core/collective/choose.cpp), or as these do."""


def right(key: str, rank: int, peer: int, size: int, count: int) -> Any:
    """Return the operation's right result."""
    everybody = [content(other, count) for other in range(size)]
    whole = [content(other, count * size) for other in range(size)]
    mine = slice(rank * count, (rank + 1) * count)
    if key.startswith("all_reduce"):
        return np.sum(everybody, axis=0)
    if key.startswith("all_gather"):
        return np.concatenate(everybody)
    if key == "reduce_scatter":
        return whole[-1][mine]
    if key == "broadcast":
        return everybody[peer]
    if key == "all_to_all":
        return np.concatenate([other[mine] for other in whole])
    if key == "gather":
        return np.concatenate(everybody) if rank == (peer + 1) % size else None
    if key == "gather bytes":
        root = rank == (peer + 1) % size
        return [bytes([other]) * count for other in range(size)] if root else None
    if key == "scatter":
        return whole[peer][mine]
    if key == "send":
        others = [everybody[other] for other in range(size) if other != peer]
        return np.concatenate(others) if rank == peer else None
    if key.startswith("recv") and rank != peer:
        return bytes(count) if key == "recv bytes" else everybody[peer]
    return True if key == "agree" else None


def is_right(key: str, value: Any, rank: int, peer: int, size: int, count: int) -> bool:
    """Tell whether a result is right, to the bit."""
    wanted = right(key, rank, peer, size, count)
    if isinstance(wanted, np.ndarray):
        return isinstance(value, np.ndarray) and bool(np.array_equal(value, wanted))
    return bool(value == wanted)
