"""How an operation of torch's runs on a standfast group: at once, or in the background as a Work.

Collectives and messages (collectives.py, exchanges.py) make plans; this runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from standfast.group import Group
from standfast.operations import Member, Plan
from standfast.torch.errors import torch_errors
from standfast.torch.works import Work

Finish = Callable[[], None]


class Step(NamedTuple):
    """One plan for the core, and what brings its result to its place."""

    plan: Plan
    finish: Finish | None = None


class Runner:
    """A rank's place in a torch group. Torch's methods are added by the classes below this one."""

    _group: Group

    def _adopt(self, group: Group, global_ranks: Sequence[int]) -> None:
        """Take over a group that has been formed.

        Args:
            group: closed by shutdown() or abort().
            global_ranks: by rank, the rank in the whole job; empty for the whole job's group.
        """
        self._group = group
        self._me = Member(group.rank, group.size)
        self._global_ranks = tuple(global_ranks)
        self._sequence = 0
        self._limit_s: float | None = None  # None: the group's own
        self._together: list[Work] | None = None  # since _start_coalescing()

    def _timeout_s(self, opts: Any) -> float | None:
        """Return the limit of an operation: its own, or that of set_timeout(), or the group's."""
        timeout = getattr(opts, "timeout", opts)
        if isinstance(timeout, timedelta) and timeout.total_seconds() > 0:
            return timeout.total_seconds()
        return self._limit_s

    def _run(
        self,
        steps: Sequence[Step],
        results: Sequence[Any],
        opts: Any = None,
        *,
        beside: bool = False,
        source: int = -1,
    ) -> Work:
        """Run steps, at once unless `opts` or coalescing want to have them in the background.

        Args:
            steps: in the order in which all ranks run them.
            results: the tensors that hold the result at the end.
            opts: torch's options of the operation; None for a message, which is never waited for
                here.
            beside: the steps need each other, so that one after the other would not end.
            source: from which rank this receives, if one is named.
        """
        in_background = self._together is not None or getattr(opts, "asyncOp", True)
        handles = []
        with torch_errors(self._global_ranks):
            if in_background or beside:
                handles = [self._group._submit(step.plan) for step in steps]
            else:
                for step in steps:
                    self._group._run(step.plan)
        finish = _all_of([step.finish for step in steps if step.finish is not None])
        work = Work(handles, finish, results, self._global_ranks, source)
        if self._together is not None:
            self._together.append(work)
        elif not in_background:
            work.wait()
        return work

    def _start_coalescing(self, device: Any = None) -> None:
        """Begin to collect operations that end together."""
        self._together = []

    def _end_coalescing(self, device: Any = None) -> Work:
        """Return one Work for all operations since _start_coalescing()."""
        works, self._together = self._together or [], None
        return Work.of_all(works, self._global_ranks)


def _all_of(calls: Sequence[Finish]) -> Finish | None:
    if len(calls) < 2:
        return calls[0] if calls else None

    def run() -> None:
        for call in calls:
            call()

    return run
