"""Collective communication that never hangs: a lost peer is a prompt, precise error on every rank.

    import standfast

    with standfast.init() as group:
        total = group.all_sum(gradients)

A shop window: everything here is made elsewhere, and importing it does nothing. What needs the
native core comes by way of lazy.py, when it is first asked for; __init__.pyi shows its types.
"""

from standfast.errors import (
    CollectiveMismatch,
    ConfigError,
    DigestMismatch,
    FabricError,
    GroupAborted,
    GroupClosed,
    InternalError,
    LinkLost,
    MessageMismatch,
    NoProgress,
    PeerDied,
    PeerError,
    PeerLeft,
    PeerStalled,
    PeerUnreachable,
    RemoteFailure,
    RendezvousError,
    StaleGroup,
    StandfastError,
)
from standfast.lazy import __getattr__ as __getattr__

__all__ = [
    "CollectiveMismatch",
    "ConfigError",
    "DigestMismatch",
    "FabricError",
    "Group",
    "GroupAborted",
    "GroupClosed",
    "Handle",
    "Hint",
    "InternalError",
    "LinkLost",
    "MessageMismatch",
    "NoProgress",
    "PeerDied",
    "PeerError",
    "PeerLeft",
    "PeerStalled",
    "PeerUnreachable",
    "RemoteFailure",
    "RendezvousError",
    "StaleGroup",
    "StandfastError",
    "Watch",
    "Wire",
    "as_wire",
    "devices",
    "empty",
    "init",
    "watch",
]
