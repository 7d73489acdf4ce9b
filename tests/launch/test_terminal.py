"""Ranks learn how wide the terminal is."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from standfast.launch.terminal import size_variables


def test_a_terminal_has_a_size() -> None:
    """Columns and lines as the terminal says, and nothing of what is none or does not know."""
    ours, theirs = os.openpty()
    try:
        assert size_variables(theirs) == {}
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
        assert size_variables(theirs) == {"COLUMNS": "120", "LINES": "40"}
    finally:
        os.close(ours)
        os.close(theirs)
    with open(os.devnull, "rb") as file:
        assert size_variables(file.fileno()) == {}
