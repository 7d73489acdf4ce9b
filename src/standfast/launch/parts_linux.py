"""What the launcher needs of Linux: pidfd, and two settings of prctl(2) for parent and child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import sys
from collections.abc import Callable, Collection

assert sys.platform == "linux"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class ExitWatch:
    """Calls `tell(pid)` when a watched child has ended; it is still to be reaped then."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[[int], None]) -> None:
        self._selector = selector
        self._tell = tell
        self._descriptors: dict[int, int] = {}

    def add(self, pid: int) -> None:
        """Watch a child that was not reaped yet; it may have ended already."""
        descriptor = os.pidfd_open(pid)
        self._descriptors[pid] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._ended(pid))

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._descriptors.values():
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._descriptors.clear()

    def _ended(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._tell(pid)


def adopt_orphans() -> None:
    """Become the parent of what dead ranks leave behind: process 1 of a container may not reap."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """In a new child: be killed when the thread that forked us ends, the launcher's only one.

    The setting survives exec, except of a setuid program, and is not inherited by children of ours.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still after SIGSTOP or the like; not if a debugger holds it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def process_start(pid: int) -> str:
    """Return what tells a process from an earlier one with its number; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def group_lives(group: int) -> bool:
    """Whether a process group still has members, after reaping those that are ours to reap."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def reap_strays(*, keep: Collection[int]) -> None:
    """Reap adopted orphans that had left their group and ended; `keep`: other children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in keep:
                return
            os.waitpid(ended.si_pid, 0)
