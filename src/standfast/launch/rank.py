"""What the launcher knows of a rank that was started, here or on another host, until it is over."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Protocol

from standfast.launch.clock import now_ns
from standfast.launch.lines import Tail
from standfast.launch.records import RankEnd


class Stream(Protocol):
    """The rank's stdout or stderr, on its way to the launcher's."""

    open: bool


class Rank:
    """A rank: when it started and ended, how, and what it was told.

    `ended_ns`: the leader's end. `gone` becomes True when nothing of its process group is left.
    `lost` says why nobody could see its end, if so.
    """

    def __init__(self, rank: int, *, pid: int, host: str, tail: Tail) -> None:
        self.rank: int = rank
        self.pid: int = pid
        self.host: str = host
        self.started_ns: int = now_ns()
        self.ended_ns: int | None = None
        self.gone: bool = False
        self.killed_ns: int | None = None
        self.streams: Sequence[Stream] = ()
        self._tail = tail
        self._status = 0
        self._lost = ""
        self._told: tuple[int, int] | None = None

    @property
    def running(self) -> bool:
        """Whether the leader has not ended."""
        return self.ended_ns is None

    @property
    def drained(self) -> bool:
        """Whether all its output was passed on."""
        return not any(stream.open for stream in self.streams)

    def end(self, now: int) -> RankEnd:
        """Return how it ended; `now` is the end of a process that could not be killed."""
        number, told_ns = self._told or (None, None)
        return RankEnd(
            rank=self.rank,
            pid=self.pid,
            started_ns=self.started_ns,
            ended_ns=now if self.ended_ns is None else self.ended_ns,
            status=-signal.SIGKILL if self.ended_ns is None else self._status,
            told_signal=number,
            told_ns=told_ns,
            last_lines=self._tail.lines(),
            hung=self.ended_ns is None and self.killed_ns is not None,
            host=self.host,
            lost=self._lost,
        )

    def _note(self, number: signal.Signals) -> None:
        """Remember a signal that is about to be sent: the first one while the leader runs."""
        if self.running and self._told is None:
            self._told = (number, now_ns())
        if number is signal.SIGKILL:
            self._note_kill()

    def _note_kill(self) -> bool:
        """Remember when it was first to be killed; whether that is now."""
        is_first = self.killed_ns is None
        if is_first:
            self.killed_ns = now_ns()
        return is_first

    def _note_start(self, pid: int, at_ns: int) -> None:
        self.pid, self.started_ns = pid, at_ns

    def _note_end(self, status: int, at_ns: int, lost: str = "") -> None:
        """Remember the leader's end. lost: why nobody could see it, if so."""
        self._status, self.ended_ns, self._lost = status, at_ns, lost

    def _take_place(self, rank: int) -> None:
        self.rank = rank

    def _note_gone(self) -> None:
        self.gone = True
