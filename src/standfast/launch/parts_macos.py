"""What the launcher needs of macOS: kqueue. The guardian stands in for a parent-death signal."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import selectors
import subprocess
import sys
from collections.abc import Callable, Collection

assert sys.platform == "darwin"

# <sys/proc_info.h>: struct proc_bsdinfo begins with pbi_flags and pbi_status, 32 bits each.
PROC_PIDTBSDINFO = 3
BSD_INFO_BYTES = 136
SSTOP = 4
_libproc = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)


class ExitWatch:
    """Calls `tell(pid)` when a watched child has ended; it is still to be reaped then."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[[int], None]) -> None:
        self._selector = selector
        self._tell = tell
        self._queue = select.kqueue()
        selector.register(self._queue.fileno(), selectors.EVENT_READ, self._ended)

    def add(self, pid: int) -> None:
        """Watch a child that was not reaped yet; it may have ended already."""
        change = select.kevent(
            pid,
            filter=select.KQ_FILTER_PROC,
            flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
            fflags=select.KQ_NOTE_EXIT,
        )
        try:
            self._queue.control([change], 0, 0)
        except ProcessLookupError:
            self._tell(pid)

    def close(self) -> None:
        """Stop watching."""
        self._selector.unregister(self._queue.fileno())
        self._queue.close()

    def _ended(self) -> None:
        for event in self._queue.control(None, 64, 0):
            self._tell(event.ident)


def adopt_orphans() -> None:
    """Nothing to do: launchd reaps what dead ranks leave behind."""


def die_with_parent(parent: int) -> None:
    """In a new child: end at once if the launcher is gone; later the guardian sees to it."""
    if os.getppid() != parent:
        os._exit(137)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still after SIGSTOP or the like."""
    info = ctypes.create_string_buffer(BSD_INFO_BYTES)
    got = _libproc.proc_pidinfo(pid, PROC_PIDTBSDINFO, ctypes.c_uint64(0), info, BSD_INFO_BYTES)
    if got != BSD_INFO_BYTES:
        return False
    status = int.from_bytes(info.raw[4:8], sys.byteorder)
    return status == SSTOP


def process_start(pid: int) -> str:
    """Return what tells a process from an earlier one with its number; empty if there is none."""
    shown = subprocess.run(
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, check=False, text=True
    )
    return shown.stdout.strip()


def group_lives(group: int) -> bool:
    """Whether a process group still has members; one of zombies only gives EPERM here."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap_strays(*, keep: Collection[int]) -> None:
    """Nothing to do: launchd does."""
