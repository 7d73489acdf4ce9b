"""What ranks do in the tests of the side channel and of the eager functions."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import mlx.core as mx

import standfast
import standfast.mlx
from standfast.errors import StandfastError


def side_channel(arguments: dict[str, Any]) -> Any:
    """The side channel with these arguments of init(), and who this rank is."""
    rank, size = arguments.pop("rank"), arguments.pop("size")
    return standfast.mlx.all_gather_factory(**arguments), rank, size


def exchange(arguments: dict[str, Any]) -> list[bytes]:
    """Exchange as JACCL does: small blocks, large ones, and zeros as a barrier."""
    with_us, rank, size = side_channel(arguments)
    with with_us:
        gather = with_us(rank, size)
        found = [gather(bytes([rank]) * n, n) for n in (4, 1, 5000)]
        found.append(gather(bytes(4), 4))
        try:
            gather(b"abc", 4)
        except ValueError as error:
            found.append(str(error).encode())
        assert with_us.group.size == size
        with_us.check()
    return found


def lost_on_the_way(arguments: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 dies between two exchanges."""
    with_us, rank, size = side_channel(arguments)
    gather = with_us(rank, size)
    gather(b"1", 1)
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        gather(b"2", 1)
    except StandfastError as error:
        assert str(with_us.last_failure()) == str(error)  # noqa: PT017 - in a rank
        return error.to_dict()
    raise AssertionError("no error")


def late(arguments: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 never comes."""
    with_us, rank, size = side_channel({**arguments, "timeout_s": 1.0})
    if rank == 1:
        return {}
    began = time.monotonic()
    try:
        with_us(rank, size)
    except StandfastError as error:
        return {**error.to_dict(), "took_s": time.monotonic() - began}
    raise AssertionError("no error")


def through_mlx(arguments: dict[str, Any]) -> str:
    """What MLX's own init() does with it where JACCL finds no device, or is not there at all."""
    with_us, _, _ = side_channel(arguments)
    try:
        mx.distributed.init(strict=True, backend="jaccl", all_gather_factory=with_us)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def eagerly(group: standfast.Group) -> None:
    """The functions on a group of standfast.init(), without the native module."""
    functions, rank, size = standfast.mlx, group.rank, group.size
    x = mx.arange(4, dtype=mx.bfloat16).reshape(2, 2) + rank
    every = [mx.arange(4, dtype=mx.bfloat16).reshape(2, 2) + r for r in range(size)]
    results = (
        (functions.all_sum(x, group=group), sum(every[1:], every[0])),
        (functions.all_max(x, group=group), every[-1]),
        (functions.all_min(x, group=group), every[0]),
        (functions.all_gather(x, group=group), mx.concatenate(every)),
    )
    for found, expected in results:
        assert isinstance(found, mx.array)
        assert found.dtype == expected.dtype
        assert mx.array_equal(found, expected).item()
    wide = mx.ones((2 * size, 3))
    assert mx.array_equal(
        functions.sum_scatter(wide, group=group), mx.full((2, 3), float(size))
    ).item()
    if rank == 0:
        assert functions.send(x, 1, group=group) is x
        functions.send(x, 1, group=group)
    elif rank == 1:
        assert mx.array_equal(functions.recv_like(x, 0, group=group), every[0]).item()
        got = functions.recv((2, 2), mx.bfloat16, 0, group=group)
        assert mx.array_equal(got, every[0]).item()
