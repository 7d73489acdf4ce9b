"""MLX on standfast: a real ``mlx.core.distributed.Group`` in which a lost peer is a prompt error.

    import mlx.core as mx
    import standfast.mlx

    group = standfast.mlx.init()
    total = mx.distributed.all_sum(gradients, group=group)   # lazy, under mx.compile, with grad
    mx.eval(total)                                           # RuntimeError if a peer is lost
    group.last_failure()                                     # the same as a PeerDied with fields

``init()`` needs the distribution standfast-mlx, which is native and tied to MLX's version
(``why_not()`` says what is missing). The functions of this module work without it, too, on MLX
arrays and a group of ``standfast.init()``: eagerly, at once. docs/how-to/mlx.md.
"""

from standfast.mlx.extension import why_not
from standfast.mlx.functions import (
    all_gather,
    all_max,
    all_min,
    all_sum,
    recv,
    recv_like,
    send,
    sum_scatter,
)
from standfast.mlx.group import Group, init, last_failure
from standfast.mlx.sidechannel import SideChannel, all_gather_factory

__all__ = [
    "Group",
    "SideChannel",
    "all_gather",
    "all_gather_factory",
    "all_max",
    "all_min",
    "all_sum",
    "init",
    "last_failure",
    "recv",
    "recv_like",
    "send",
    "sum_scatter",
    "why_not",
]
