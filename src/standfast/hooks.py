"""What happens to open groups when the program ends: by an uncaught exception, or in peace.

Installed by the first init(). The main thread runs all of it: Python calls sys.excepthook for an
exception that nobody caught, and then the functions registered with atexit.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from types import TracebackType
from typing import Protocol

from standfast import torch_report
from standfast.errors import StandfastError

logger: logging.Logger = logging.getLogger("standfast")


class Open(Protocol):
    """What the hooks need of a group."""

    @property
    def reports_failure(self) -> bool:
        """The group's peers want to hear of an uncaught exception (settings.excepthook)."""

    @property
    def owner_pid(self) -> int:
        """The process that formed the group: after a fork it is not ours to close."""

    def report_failure(self, error: BaseException) -> None:
        """Tell the peers that this rank's program raised."""

    def end(self, how: str) -> str:
        """Close the group; never raises an error of the group."""


_lock = threading.Lock()  # guards _open, _installed, _previous and _explained
_open: list[Open] = []
_installed = False
_previous = sys.excepthook
_enabled = True
_explained: tuple[BaseException, StandfastError] | None = None
_expected: StandfastError | None = None  # the latest counts: no lock
_fault_noted = False  # set once, never cleared: no lock


def install(enabled: bool = True) -> None:
    """Chain into sys.excepthook and atexit, once.

    Args:
        enabled: False leaves uncaught exceptions to Python alone, exit status included.
    """
    global _installed, _previous, _enabled  # noqa: PLW0603 - one process has one excepthook
    with _lock:
        _enabled = enabled
        if not _installed:
            _previous, sys.excepthook = sys.excepthook, _on_uncaught
            atexit.register(close_all, "orderly")
            os.register_at_fork(after_in_child=_forget)
            _installed = True


def _forget() -> None:
    """In a forked child: no group is its own, and a lock may have been held by another thread."""
    global _lock  # noqa: PLW0603 - replaced, not shared
    _lock = threading.Lock()
    _open.clear()


def opened(group: Open) -> None:
    """Look after a group until closed() is called."""
    with _lock:
        _open.append(group)


def closed(group: Open) -> None:
    """Forget a group."""
    with _lock:
        if group in _open:
            _open.remove(group)


def explain(error: BaseException, cause: StandfastError) -> None:
    """Note that an exception of the program comes from this fault: in its traceback, and status."""
    global _explained  # noqa: PLW0603 - a process ends once
    error.add_note(f"standfast: this is a consequence: {cause}")
    with _lock:
        _explained = (error, cause)


def expect(cause: StandfastError) -> None:
    """Note that foreign code will raise an exception of its own with this error's text."""
    global _expected  # noqa: PLW0603 - a process ends once
    _expected = cause


def note_fault() -> None:
    """Note that a group of this process has met a fault."""
    global _fault_noted  # noqa: PLW0603 - a process's past is one
    _fault_noted = True


def fault_noted() -> bool:
    """Tell whether any group of this process ever met a fault."""
    return _fault_noted


def open_groups() -> list[Open]:
    """Return the groups of this process that are open, the latest first."""
    with _lock:
        return [group for group in reversed(_open) if group.owner_pid == os.getpid()]


def close_all(how: str) -> None:
    """Close what is still open. Bounded by each group's own limits."""
    for group in open_groups():
        try:
            group.end(how)
        except Exception:  # the program is ending: the others must be closed all the same
            logger.exception("closing a group at exit failed")


def _on_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Tell the peers, print as usual, and end with the error's own exit status.

    Raising SystemExit is the one way in which an excepthook sets the exit status such that atexit
    functions and flushing still happen (CPython: _PyErr_PrintEx calls handle_system_exit). At an
    interactive prompt an exception ends nothing, so there it is only printed.
    """
    ends = _enabled and not (hasattr(sys, "ps1") or sys.flags.interactive)
    if ends:
        _tell(error)
        torch_report.again()
    _previous(kind, error, traceback)
    status = _status_of(error) if ends else None
    if status is not None:
        raise SystemExit(status)


def _status_of(error: BaseException) -> int | None:
    """Return the exit status of our own errors and of what they have caused; else None."""
    if isinstance(error, StandfastError):
        return error.exit_code
    for link in _chain(error):
        if _expected is not None and str(_expected).splitlines()[0] in str(link):
            return _expected.exit_code
    with _lock:
        explained = _explained
    if explained is not None and explained[0] in _chain(error):
        return explained[1].exit_code
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """List an exception and what it was raised from."""
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in found:
        found.append(link)
        link = link.__cause__ or link.__context__
    return found


def _tell(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        close_all("interrupted")
        return
    for group in open_groups():
        if not group.reports_failure:
            continue
        try:
            group.report_failure(error)
        except Exception:  # the traceback that is about to be printed matters more
            logger.exception("telling the peers about an uncaught exception failed")
