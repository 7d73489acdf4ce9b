"""What ranks are told of the terminal that shows their output: they themselves write to pipes."""

from __future__ import annotations

import os


def size_variables(fd: int = 1) -> dict[str, str]:
    """Return COLUMNS and LINES of the terminal that `fd` is; nothing if it is none."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return {}
    return {"COLUMNS": str(size.columns), "LINES": str(size.lines)} if size.columns else {}
