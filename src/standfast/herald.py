"""The herald: tells the program of hints and of the verdict while its own threads are elsewhere.

One daemon thread per group or watch, started when somebody first wants to be told. It sleeps in the
core without the GIL. Each abort hook runs in a thread of its own, so that one that blocks holds
nobody. membership.py owns it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from standfast.errors import StandfastError
from standfast.hints import Hint, changes, event_of

logger: logging.Logger = logging.getLogger("standfast")

Hook = Callable[[], object]
Event = dict[str, Any]
Listener = Callable[[Event], object]

# An upper bound of one sleep, should the core ever fail to ring.
SLEEP_S = 60.0
# How long stop() waits for the thread: it may be in a listener of the program's.
STOP_S = 0.5


class Source(Protocol):
    """What the herald asks: the core, in words of this package."""

    def await_news(self, seen: int, timeout_s: float) -> int:
        """Sleep until there is news after `seen`; return the counter of news."""

    def hints(self) -> Sequence[Hint]:
        """Return the hints of the moment."""

    def verdict(self) -> StandfastError | None:
        """Return what ended the group, or None."""


class Herald:
    """Hooks and listeners of one group, and the thread that serves them."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name
        self._lock = threading.Lock()  # guards all below
        self._hooks: list[Hook] = []
        self._listeners: list[Listener] = []
        self._on_verdict: Callable[[StandfastError], None] | None = None
        self._running: list[threading.Thread] = []
        self._verdict: StandfastError | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add_abort_hook(self, hook: Hook) -> None:
        """Run `hook()` once the group is over by a fault: at once, if it is already."""
        with self._lock:
            late = self._verdict is not None
            if not late:
                self._hooks.append(hook)
        if late:
            self._run_hook(hook)
        else:
            self._start()

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(event)` for each change from here on; of the end in any case."""
        with self._lock:
            self._listeners.append(listener)
            error = self._verdict
        if error is not None:
            self._guarded(listener, verdict_event(error), "a listener")
        else:
            self._start()

    def when_over(self, call: Callable[[StandfastError], None]) -> None:
        """Call `call(error)` in the herald's thread, when the hooks have been started."""
        with self._lock:
            self._on_verdict = call
        self._start()

    def wait_for_hooks(self, limit_s: float) -> bool:
        """Wait until all hooks that were started have ended; False if there was none."""
        end_s = time.monotonic() + limit_s
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join(max(0.0, end_s - time.monotonic()))
        return bool(running)

    def stop(self) -> None:
        """Tell nothing from here on. The core's close, which wakes the thread, comes next.

        Whom to tell is forgotten: it often refers to the group or watch that has this herald.
        """
        with self._lock:
            self._stopped = True
            self._hooks, self._listeners, self._on_verdict = [], [], None

    def join(self) -> None:
        """Wait until the thread has ended, but not for a listener that does not return."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_S)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped:
                return
            thread = threading.Thread(target=self._run, name=f"{self._name}-herald", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        seen, known = 0, list[Hint]()
        while not self._stopped:
            known = self._tell_hints(known)
            error = self._source.verdict()
            if error is not None and not self._stopped:
                self._tell_verdict(error)
                return
            seen = self._source.await_news(seen, SLEEP_S)

    def _tell_hints(self, known: Sequence[Hint]) -> list[Hint]:
        current = list(self._source.hints())
        began, ended = changes(known, current)
        for kind, hints in (("hint", began), ("hint_over", ended)):
            for hint in hints:
                self._tell(event_of(kind, hint))
        return current

    def _tell_verdict(self, error: StandfastError) -> None:
        with self._lock:
            self._verdict = error
            hooks, self._hooks = self._hooks, []
            call, listeners = self._on_verdict, list(self._listeners)
        for hook in hooks:
            self._run_hook(hook)
        if call is not None:
            self._guarded(call, error, "what on_fault calls")
        for listener in listeners:
            self._guarded(listener, verdict_event(error), "a listener")

    def _tell(self, event: Event) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            self._guarded(listener, dict(event), "a listener")

    def _run_hook(self, hook: Hook) -> None:
        def run() -> None:
            try:
                hook()
            except Exception:  # the program's own code: the other hooks still run
                logger.exception("an abort hook of %s failed", self._name)

        thread = threading.Thread(target=run, name=f"{self._name}-abort-hook", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: late is better than never
            logger.warning("an abort hook of %s gets no thread of its own: %s", self._name, error)
            run()
            return
        with self._lock:
            self._running.append(thread)

    def _guarded(self, call: Callable[[Any], object], argument: object, what: str) -> None:
        try:
            call(argument)
        except Exception:  # the program's own code: whoever else listens is told all the same
            logger.exception("%s of %s failed", what, self._name)


def verdict_event(error: StandfastError) -> Event:
    """Return what a listener is told of the end."""
    return {
        "kind": "verdict",
        "rank": error.rank,
        "host": error.host,
        "text": error.message,
        "evidence": list(error.evidence),
        "since_s": 0.0,
        "error": error,
    }
