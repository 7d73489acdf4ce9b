"""The functions of mx.distributed, on groups of MLX's and of standfast.init() alike.

On a group of MLX's they are MLX's own: lazy. On one of standfast's they are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from standfast import group as groups

AnyGroup = Any  # mx.distributed.Group | standfast.Group; MLX ships no types for it


def all_sum(x: Any, *, group: AnyGroup, stream: Any = None) -> Any:
    """Add up x of all ranks; array of x's shape and dtype."""
    if isinstance(group, groups.Group):
        return group.all_sum(_array(x))
    return mx.distributed.all_sum(x, group=group, stream=stream)


def all_max(x: Any, *, group: AnyGroup, stream: Any = None) -> Any:
    """Find the largest of all ranks, per element."""
    if isinstance(group, groups.Group):
        return group.all_max(_array(x))
    return mx.distributed.all_max(x, group=group, stream=stream)


def all_min(x: Any, *, group: AnyGroup, stream: Any = None) -> Any:
    """Find the smallest of all ranks, per element."""
    if isinstance(group, groups.Group):
        return group.all_min(_array(x))
    return mx.distributed.all_min(x, group=group, stream=stream)


def all_gather(x: Any, *, group: AnyGroup, stream: Any = None) -> Any:
    """Concatenate x of all ranks along axis 0; array of shape (size * n, ...)."""
    if isinstance(group, groups.Group):
        return group.all_gather(_array(x))
    return mx.distributed.all_gather(x, group=group, stream=stream)


def sum_scatter(x: Any, *, group: AnyGroup, stream: Any = None) -> Any:
    """Add up x of all ranks, (size * n, ...), and keep this rank's share of axis 0, (n, ...)."""
    if isinstance(group, groups.Group):
        return group.sum_scatter(_array(x))
    return mx.distributed.sum_scatter(x, group=group, stream=stream)


def send(x: Any, dst: int, *, group: AnyGroup, stream: Any = None) -> Any:
    """Send an array to one rank; returns it, as MLX does."""
    if isinstance(group, groups.Group):
        group.send(_array(x), dst)
        return x
    return mx.distributed.send(x, dst, group=group, stream=stream)


def recv(shape: Sequence[int], dtype: Any, src: int, *, group: AnyGroup, stream: Any = None) -> Any:
    """Receive an array of this shape and dtype (of MLX's) from one rank."""
    if isinstance(group, groups.Group):
        return group.recv(shape, dtype, src)
    return mx.distributed.recv(shape, dtype, src, group=group, stream=stream)


def recv_like(x: Any, src: int, *, group: AnyGroup, stream: Any = None) -> Any:
    """Receive an array of x's shape and dtype from one rank."""
    if isinstance(group, groups.Group):
        return group.recv_like(_array(x), src)
    return mx.distributed.recv_like(x, src, group=group, stream=stream)


def _array(x: Any) -> Any:
    return x if isinstance(x, mx.array) else mx.array(x)
