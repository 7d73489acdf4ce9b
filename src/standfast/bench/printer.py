"""Rows as they come: pairs the two halves of a row, and puts a header above each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from standfast.bench import table
from standfast.bench.plan import Cell
from standfast.bench.table import Result

BAR = 24


class Rows:
    """The table of one job, fed with results in the order of its cells."""

    def __init__(self, cells: Sequence[Cell], description: str, *, time_key: str) -> None:
        self._description, self._time_key = description, time_key
        self._expected = list(cells)
        self._waiting: Result | None = None
        self._op = ""

    def add(self, result: Result) -> Iterator[str]:
        """Yield the lines that are complete with this result."""
        self._expected.pop(0)
        following = self._expected[0] if self._expected else None
        if result["op"] != self._op:
            self._op = result["op"]
            yield from table.header(self._op, self._description)
        if self._waiting is None and following is not None and following.in_place:
            self._waiting = result
            return
        first, self._waiting = self._waiting, None
        if first is None:
            yield table.row(result, None, time_key=self._time_key)
        else:
            yield table.row(first, result, time_key=self._time_key)


class Progress:
    """A line on a terminal that says how far we are; silent anywhere else."""

    def __init__(self, total: int, write: Callable[[str], Any] | None) -> None:
        self._total, self._write, self._done = max(1, total), write, 0

    def step(self, what: str) -> None:
        """Say that one more is done, and what comes now."""
        self._done += 1
        self.show(what)

    def show(self, what: str) -> None:
        """Draw the line."""
        if self._write is not None:
            full = BAR * min(self._done, self._total) // self._total
            bar = "#" * full + "." * (BAR - full)
            self._write(f"\r\x1b[K[{bar}] {self._done}/{self._total} {what}")

    def clear(self) -> None:
        """Take the line away, before something else is written."""
        if self._write is not None:
            self._write("\r\x1b[K")
