"""Loads what needs the native core when it is first asked for; used by __init__.py alone.

So the `standfast` command, the settings and the errors work where the core cannot be loaded.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "Group": "standfast.group",
    "Handle": "standfast.handles",
    "Hint": "standfast.hints",
    "Watch": "standfast.watching",
    "Wire": "standfast.kinds",
    "as_wire": "standfast.arrays",
    "devices": "standfast.rdma",
    "empty": "standfast.memory",
    "init": "standfast.group",
    "watch": "standfast.watching",
}


def __getattr__(name: str) -> Any:
    """Return a name of the package that lives in a module above the core."""
    if name not in HOMES:
        raise AttributeError(f"module 'standfast' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
