"""The handle of an operation under way, and the one descriptor per group by which asyncio waits.

A handle belongs to the thread or task that made it; several may ask it at the same time. The
operation itself runs in the core's threads, in the order of submission.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from standfast._core import Failure, Pending
from standfast.errors import StandfastError
from standfast.operations import Plan

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
FOREVER_S = 1e9


class Owner(Protocol):
    """What a handle needs of its group."""

    def fault(self, failure: Failure, plan: Plan) -> StandfastError:
        """Return the group's first cause as an exception, made from this failure if it is first."""

    def told(self) -> None:
        """The program has seen the group's error."""

    def settled(self, handle: Handle[Any]) -> None:
        """The operation ended well, and nothing needs to look after it any more."""

    def abort(self, reason: str) -> None:
        """End the operation on all ranks."""

    @property
    def completions(self) -> Completions:
        """The group's descriptor for asyncio."""

    def left_behind(self) -> StandfastError | None:
        """Return what to raise in a forked child, where no operation ever ends, or else None."""


class Handle(Generic[T]):
    """An operation under way. Await it, or call ``wait()`` or ``result()``.

    Until it is done, do not touch the arrays that were passed; they are kept alive. A failed
    operation raises the same error from ``wait()``, ``result()`` and ``await``, each time.
    """

    def __init__(self, owner: Owner, pending: Pending, plan: Plan) -> None:
        self._owner = owner
        self._pending = pending
        self._plan = plan
        self._lock = threading.Lock()  # guards _settled, _value, _error
        self._settled = False
        self._value: T | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """Tell whether the operation has ended, well or not; in a forked child it has."""
        return self._settled or self._owner.left_behind() is not None or self._pending.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; signals are served meanwhile.

        Args:
            timeout_s: how long this call waits, in seconds; without it, until the operation ends.
                The operation goes on, under its own limit.

        Returns:
            False if the time ran out first.

        Raises:
            StandfastError: the operation failed.
        """
        if timeout_s is not None and timeout_s < 0:
            raise ValueError(f"timeout_s is {timeout_s}; it must not be negative")
        if not self._settled:
            self._check_here()
            if not self._pending.wait(FOREVER_S if timeout_s is None else float(timeout_s)):
                return False
        self._raise_error()
        return True

    def result(self) -> T:
        """Wait for the end and return what the operation's plain form would.

        Raises:
            StandfastError: the operation failed.
        """
        self.wait()
        return cast(T, self._value)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait within asyncio. Cancelling the await aborts the group: half a sum helps nobody.

        A cancelled await returns when nothing writes into the arrays any more, on all ranks at
        about the same time.
        """
        if not self.done():
            yield from self._until_done()
        return self.result()

    def _until_done(self) -> Generator[Any, None, None]:
        import asyncio

        cancelled: asyncio.CancelledError | None = None
        while not self._pending.done():
            try:
                yield from self._owner.completions.future_of(self).__await__()
            except asyncio.CancelledError as error:
                if cancelled is None and not self._pending.done():
                    self._owner.abort(f"await of {self._plan.name} was cancelled")
                cancelled = cancelled or error
        if cancelled is not None:
            if self._settle() is not None:
                self._owner.told()  # whoever cancels knows
            raise cancelled

    def _check_here(self) -> None:
        error = self._owner.left_behind()
        if error is not None:
            raise error

    @property
    def source(self) -> int:
        """From which rank a receive from any rank took its message, once it is done; else -1."""
        return self._pending.source

    def ended(self) -> bool:
        """Tell whether the operation has ended, in the process that began it."""
        return self._pending.done()

    def ended_well(self) -> bool:
        """Tell whether the operation has ended, and well. Takes no lock."""
        return self._pending.done() and self._pending.failure() is None

    def finish(self) -> None:
        """Wait for the end without raising the operation's error: nobody has asked for it yet."""
        self._pending.wait(FOREVER_S)
        self._settle()

    def _raise_error(self) -> None:
        error = self._settle()
        if error is not None:
            self._owner.told()
            raise error.with_traceback(None)

    def _settle(self) -> Exception | None:
        """Take the outcome over, once; the memory is free from then on."""
        with self._lock:
            if self._settled:
                return self._error
            failure = self._pending.failure()
            if failure is not None:
                self._error = self._owner.fault(failure, self._plan)
            else:
                self._deliver()
            self._settled = True
            self._plan.keep = ()
        if failure is None:
            self._owner.settled(self)
        return self._error

    def _deliver(self) -> None:
        blob = self._pending.blob() if self._plan.blob else None
        try:
            self._value = self._plan.deliver(blob)
        except Exception as error:  # noqa: BLE001 - raised to whoever asks
            self._error = error

    def __repr__(self) -> str:
        state = "under way"
        if self.done():
            state = "failed" if self._error is not None else "done"
        return f"<standfast.Handle {self._plan.name} {state}>"


class Completions:
    """Wakes the event loops that await handles of one group.

    A loop watches the group's completion descriptor from its first await on, until the group is
    closed: a duplicate of it, so that a number is never free while a loop still watches it.
    Whichever loop wakes looks after the handles of all.
    """

    def __init__(self, descriptor: int, drain: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._drain = drain
        self._lock = threading.Lock()  # guards _loops and _waiting
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}
        self._waiting: list[tuple[Handle[Any], asyncio.Future[None]]] = []

    def future_of(self, handle: Handle[Any]) -> asyncio.Future[None]:
        """Return a future of the running loop that ends with the handle's operation."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiting.append((handle, future))
            if loop not in self._loops:
                self._watch_from(loop)
        if handle.ended():  # it may have ended before the reader was there
            self._wake()
        return future

    def _watch_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a loop watch; forget those that were closed, as asyncio.run() does with its own."""
        for closed in [each for each in self._loops if each.is_closed()]:
            os.close(self._loops.pop(closed))
        descriptor = os.dup(self._descriptor)
        self._loops[loop] = descriptor
        loop.add_reader(descriptor, self._wake)

    def _wake(self) -> None:
        """End the futures whose operations have ended. Runs in a loop's own thread."""
        import asyncio

        self._drain()
        ended: list[tuple[Handle[Any], asyncio.Future[None]]] = []
        waiting: list[tuple[Handle[Any], asyncio.Future[None]]] = []
        with self._lock:
            for entry in self._waiting:
                (ended if entry[0].ended() else waiting).append(entry)
            self._waiting = waiting
        here = asyncio.get_running_loop()
        for _, future in ended:
            loop = future.get_loop()
            if loop is here:
                _finish(future)
            else:
                _in_loop(loop, _finish, future)

    def close(self) -> None:
        """Stop watching. All operations have ended."""
        with self._lock:
            loops, self._loops = self._loops, {}
            ended, self._waiting = self._waiting, []
        for _, future in ended:
            _in_loop(future.get_loop(), _finish, future)
        for loop, descriptor in loops.items():
            if not _in_loop(loop, _unwatch, loop, descriptor):
                os.close(descriptor)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> bool:
    """Make a call in a loop's own thread; False if the loop is closed."""
    import asyncio

    try:
        if loop is asyncio.get_running_loop():
            call(*args)
            return True
    except RuntimeError:
        pass  # no loop runs in this thread
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        return False
    return True


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _unwatch(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    loop.remove_reader(descriptor)
    os.close(descriptor)
