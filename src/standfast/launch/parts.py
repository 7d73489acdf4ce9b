"""Chooses the platform's file. Both offer the same names; nobody else asks for the platform."""

from __future__ import annotations

import sys

if sys.platform == "darwin":
    from standfast.launch.parts_macos import (
        ExitWatch,
        adopt_orphans,
        die_with_parent,
        group_lives,
        is_stopped,
        process_start,
        reap_strays,
    )
else:
    from standfast.launch.parts_linux import (
        ExitWatch,
        adopt_orphans,
        die_with_parent,
        group_lives,
        is_stopped,
        process_start,
        reap_strays,
    )

__all__ = [
    "ExitWatch",
    "adopt_orphans",
    "die_with_parent",
    "group_lives",
    "is_stopped",
    "process_start",
    "reap_strays",
]
