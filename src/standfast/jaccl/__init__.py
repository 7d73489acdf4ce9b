"""JACCL's world: groups that speak the protocol of MLX's JACCL, with stock ranks or without.

    import standfast.jaccl

    group = standfast.jaccl.init()          # as MLX would: from JACCL_* or MLX_* variables
    total = group.all_sum(x)

A stock rank neither notices nor tells that a peer is gone; ours notice, and raise. What the
protocol is, and what can be known in such a group: docs/design/jaccl.md.
"""

from standfast.jaccl.config import Config, Options, from_env
from standfast.jaccl.group import Group, init
from standfast.rdma import devices

__all__ = ["Config", "Group", "Options", "devices", "from_env", "init"]
