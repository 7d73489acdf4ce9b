"""What an operation returns: torch's Work, over handles of the core.

A failure is raised by the methods here and never put into a Future: torch takes a Future's
exception for a value, and DDP crashes on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from standfast.errors import NoProgress, StandfastError
from standfast.handles import Handle
from standfast.torch.errors import torch_errors


class Work(dist.Work):  # type: ignore[misc] # torch's classes are Any where it is not installed
    """An operation of the backend standfast, under way or done.

    Until it is done, its tensors must not be touched. A failed one raises the same error from each
    call of wait().
    """

    def __init__(
        self,
        handles: Sequence[Handle[Any]],
        finish: Callable[[], None] | None,
        results: Sequence[Any],
        global_ranks: Sequence[int] = (),
        source: int = -1,
    ) -> None:
        """Not for users.

        Args:
            handles: what the core runs; none if all is done.
            finish: brings the results to where the caller wants them, once all is done.
            results: the tensors that hold them then.
            global_ranks: by rank of the group, for messages.
            source: from which rank something comes, if it is known before.
        """
        super().__init__()
        self._handles = handles
        self._finish = finish
        self._results = list(results)
        self._global_ranks = global_ranks
        self._source = source
        self._lock = threading.Lock()  # guards _finish
        self._future: Any = None

    @classmethod
    def of_all(cls, works: Sequence[Work], global_ranks: Sequence[int]) -> Work:
        """Return one Work that ends with the last of several."""

        def settle() -> None:
            for work in works:
                work._settle()

        handles = [handle for work in works for handle in work._handles]
        results = [result for work in works for result in work._results]
        return cls(handles, settle, results, global_ranks)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end.

        Args:
            timeout: how long this call waits; without it, as long as the operation may take.

        Raises:
            StandfastError: the operation failed, or the time ran out (NoProgress; the operation
                goes on). Also a DistBackendError.
        """
        limit_s = timeout.total_seconds() if timeout is not None else 0.0
        with torch_errors(self._global_ranks):
            self._wait(limit_s if limit_s > 0 else None)
        return True

    def _wait(self, limit_s: float | None) -> None:
        began = time.monotonic()
        for handle in self._handles:
            left_s = None if limit_s is None else max(0.0, limit_s - (time.monotonic() - began))
            if not handle.wait(left_s):
                raise NoProgress(
                    f"wait() ran out of time after {limit_s:g} s; the operation goes on: {handle}"
                )
        self._settle()

    def _settle(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def is_completed(self) -> bool:
        """Tell whether the operation has ended, well or not. The results are there then."""
        if not all(handle.done() for handle in self._handles):
            return False
        if self.exception() is None:
            self._settle()
        return True

    def is_success(self) -> bool:
        """Tell whether the operation has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return what a failed operation raises; None while it is under way."""
        try:
            with torch_errors(self._global_ranks):
                for handle in self._handles:
                    if handle.done():
                        handle.wait()
        except StandfastError as error:
            return error
        return None

    def result(self) -> list[Any]:
        """Wait, and return the tensors with the results."""
        self.wait()
        return self._results

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank from which something was received, once it is."""
        return self._source if self._source >= 0 else self._handles[-1].source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Wait, and return a Future that holds the results.

        It is done already: so DDP, which asks for it in the backward pass, gets a failure there as
        the exception that it is.
        """
        self.wait()
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(self._results)
        return self._future
