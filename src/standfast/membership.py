"""What Group and Watch have in common: a core that watches, a first cause, who is told, one end.

Any thread may call.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Self

from standfast import _core, hooks, messages, notices, reports, torch_report
from standfast.errors import GroupClosed, StandfastError
from standfast.herald import Event, Herald
from standfast.hints import Hint, hint_of
from standfast.joining import Seat
from standfast.messages import Place

logger: logging.Logger = logging.getLogger("standfast")

TRACEBACK_LINES = 20


class Source:
    """The core in words of this package, for whoever asks from another thread.

    Knows no group or watch: those are freed when the last reference goes, and not later.
    """

    def __init__(self, core: _core.Group, place: Place) -> None:
        self._core = core
        self._place = place

    def await_news(self, seen: int, timeout_s: float) -> int:
        """Sleep until there is news after `seen`; return the counter of news."""
        return self._core.await_news(seen, timeout_s)

    def hints(self) -> list[Hint]:
        """Return the hints of the moment."""
        now_ns = reports.now_ns()
        return [hint_of(seen, self._place.hosts, now_ns) for seen in self._core.hints()]

    def verdict(self) -> StandfastError | None:
        """Return what ended the group, or None."""
        failure = self._core.failure()
        return None if failure is None else messages.error_of(failure, self._place)


class Membership:
    """This rank's place among ranks that watch each other."""

    _again = "form a new group with standfast.init()"

    def __init__(self, seat: Seat, title: str) -> None:
        """Not for users. `title`: the name that messages and threads have."""
        self._core = seat.core
        self._who = seat.who
        self._settings = seat.settings
        self._formation = seat.formation
        self._title = title
        self._world_rank = seat.world_rank
        self._place = seat.place()
        self._pid = os.getpid()
        self._source = Source(seat.core, self._place)
        self._herald = Herald(self._source, title)
        self._lock = threading.Lock()  # guards all below
        self._cause: StandfastError | None = None
        self._was_told = False
        self._over: StandfastError | None = None
        self._closed = False
        self._ended = ""
        self._reported = False

    # --- who and how --------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self._who.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._who.size

    @property
    def generation(self) -> int:
        """How often the job's group was formed again before this one."""
        return self._who.generation

    def healthy(self) -> bool:
        """Tell whether it is open and has not failed, as far as this rank knows."""
        return not self._closed and self._cause is None and self._core.healthy()

    def last_failure(self) -> StandfastError | None:
        """Return what ended it, or None. Asking is not handling: nothing else changes."""
        if self._cause is not None:
            return copy.copy(self._cause)
        failure = None if self._closed else self._core.failure()
        return None if failure is None else messages.error_of(failure, self._place)

    def hints(self) -> list[Hint]:
        """Return which ranks are suspect at the moment, and why: frozen, silent, late, wedged, ...

        A hint may pass, and ends nobody. All ranks know the same ones, within hint_s; also those
        that wait for nothing.
        """
        if self._closed or self._is_a_child():
            return []
        return self._source.hints()

    # --- who wants to be told -----------------------------------------------------------------

    def add_abort_hook(self, hook: Callable[[], object]) -> None:
        """Run `hook()` as soon as a fault has ended this, before the process may be ended.

        For whatever must be cut loose by force: ``watch.add_abort_hook(ring.abort)``. Each hook
        runs once, in a thread of its own, at once if the fault is there already; what it raises is
        logged. With exit_on_fault the process ends exit_grace_s + 2 s after the fault, whatever
        the hooks do.
        """
        self._must_be_callable(hook, "an abort hook")
        self._herald.add_abort_hook(hook)

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        """Call `listener(event)` for each hint, each hint that is over, and the verdict.

        An event is a dict: kind ("hint", "hint_over", "verdict"), rank, host, text (a sentence),
        evidence (a list of sentences), since_s (for how long it is known); a verdict has its
        error, too. Listeners run one after the other in a thread of this object's.
        """
        self._must_be_callable(listener, "a listener")
        self._herald.add_listener(listener)

    def _must_be_callable(self, given: object, what: str) -> None:
        if not callable(given):
            raise TypeError(f"{what} must be callable; this is a {type(given).__name__}")
        if self._closed or self._is_a_child():
            raise self._closed_error()

    # --- the end ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Close; after an exception the peers are told of it."""
        if error is None:
            self._leave()
        elif isinstance(error, GeneratorExit) or _is_good_exit(error):
            self.end("orderly")
        elif isinstance(error, KeyboardInterrupt) or _is_cancelled(error):
            self.end("interrupted")
        else:
            self.report_failure(error)
            self.end("failed")

    def _leave(self) -> None:
        """Close in good order."""
        self.end("orderly")

    @property
    def reports_failure(self) -> bool:
        """Tell whether an uncaught exception is told to the peers."""
        return self._settings.excepthook

    @property
    def owner_pid(self) -> int:
        """The process that joined."""
        return self._pid

    def report_failure(self, error: BaseException) -> None:
        """Tell the peers that this rank's program raised, unless a fault of a peer came first."""
        if self._closed or self._cause is not None:
            return
        lines = "".join(traceback.format_exception(error)).splitlines()
        texts = (type(error).__name__, _text_of(error), "\n".join(lines[-TRACEBACK_LINES:]))
        self._reported = True
        self._core.fail(*map(printable, texts))

    def end(self, how: str) -> str:
        """Close; the one way to do so, for close(), interpreter exit and failures alike.

        Args:
            how: "orderly", "interrupted" or "failed".

        Returns:
            "orderly", "failed" (an error with every peer up), or "peer_fault" (a peer is gone).
            A second call returns the same; in a forked child, to which nothing of this belongs,
            it is "orderly".
        """
        with self._lock:
            if self._closed:
                return self._ended or "orderly"
            self._closed = True
            if self._over is None:
                self._over = self._closed_error()
        hooks.closed(self)
        if self._is_a_child():
            return "orderly"
        self._herald.stop()
        ended = self._core.close("failed" if self._reported else how)
        if ended == "orderly" and how == "failed":
            ended = "failed"
        self._ended = ended
        self._herald.join()
        logger.debug("%s closed: %s", self._title, ended)
        return ended

    def _is_a_child(self) -> bool:
        """Tell whether this process was forked from the one to which all of this belongs."""
        return os.getpid() != self._pid

    def _closed_error(self) -> GroupClosed:
        title, own = self._title, not self._is_a_child()
        return GroupClosed(
            f"the {title} was closed"
            if own
            else f"the {title} belongs to process {self._pid}, of which this is a forked child",
            hint=self._again,
            here=self.rank,
            generation=self.generation,
        )

    # --- the first cause ----------------------------------------------------------------------

    def first_cause(self, failure: _core.Failure, name: str = "", what: str = "") -> StandfastError:
        """Return the first cause as an exception, made from this failure if it is the first.

        Args:
            failure: from the core.
            name: the operation that met it, as the user knows it.
            what: that operation's array.
        """
        with self._lock:
            first = self._cause is None
            if self._cause is None:
                self._cause = messages.error_of(failure, self._place, name, what)
            if self._over is None:
                self._over = self._cause
            error = copy.copy(self._cause)
        if first and not isinstance(error, GroupClosed):
            hooks.note_fault()
            logger.info("%s", error)  # raised next: it needs no second line on stderr
            if self._settings.torch_error_file is not None:
                torch_report.write(self._settings.torch_error_file, self.rank, error)
            if self._settings.report_dir is not None:
                directory, rank = self._settings.report_dir, self._world_rank
                reports.write(directory, rank, self.generation, error)
                notices.tell_fault(directory, rank, self.generation, error)
        return error

    def told(self) -> None:
        """The program has the error: it decides from here on, and the core's exit timer is off."""
        self._was_told = True
        self._core.taken()


def _text_of(error: BaseException) -> str:
    """Return an exception's text, whatever its class does when asked for it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's class raises; its type's name is told anyway
        return "<its str() failed>"


def printable(text: str) -> str:
    """Return a text that can be sent: what is no Unicode character is shown as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_good_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _is_cancelled(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)
