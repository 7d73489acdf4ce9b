"""A Case whose ranks form their group again, and to which newcomers come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.death.harness import Case
from tests.death.processes import Event, Nursery

# Limits with which a frozen rank is given up soon.
QUICK = {"heartbeat_s": 0.1, "hint_s": 0.4, "silence_s": 1.0}


class Generations(Case):
    """What is asked of ranks that do scenarios.work."""

    def formed(self, generation: int, *processes: int) -> list[Event]:
        """Wait until these processes are in a generation; return what they say, in its order."""
        events = [self.wait(one, f"formed {generation}") for one in processes]
        return sorted(events, key=lambda event: int(event["rank"]))

    def check(
        self, generation: int, processes: list[int], old_ranks: list[int | None]
    ) -> list[Event]:
        """Assert that these processes, in this order, are the ranks of a generation."""
        events = self.formed(generation, *processes)
        size = len(processes)
        assert [e["rank"] for e in events] == list(range(size)), self.story()
        for rank, process in enumerate(processes):
            told = self.wait(process, f"formed {generation}")
            assert told["rank"] == rank, self.story()
            assert told["size"] == size, self.story()
            assert told["old_ranks"] == old_ranks, self.story()
            assert told["old_rank"] == old_ranks[rank], self.story()
            assert told["id"] == events[0]["id"], self.story()
            assert told["states"] == events[0]["states"], self.story()
            assert told["sum"] == [int("1" * size)], self.story()
        return events


class ReformCase(Generations):
    """n ranks that work, and survive."""

    def __init__(
        self,
        nursery: Nursery,
        size: int,
        *,
        by_rank: dict[int, dict[str, Any]] | None = None,
        init: dict[str, Any] | None = None,
        scenario: str = "work",
        deadline_s: float = 40.0,
        **args: Any,
    ) -> None:
        """args: see scenarios.work; by_rank: what some ranks have besides."""
        self._own = by_rank or {}
        self._joins: dict[int, dict[str, Any]] = {}
        self._all_init = init or {}
        super().__init__(
            nursery,
            size,
            f"tests.reform.scenarios:{scenario}",
            lambda rank: {**args, **self._own.get(rank, {})},
            init=lambda rank: {**self._all_init, **self._joins.get(rank, {})},
            deadline_s=deadline_s,
            quick_end=True,
            forks=any(own.get("fork") for own in self._own.values()),
        )

    def newcomer(
        self, addresses: Iterable[str], args: dict[str, Any] | None = None, **init: Any
    ) -> int:
        """Start a process that asks at these addresses; return the number that it has here."""
        number = max(self.ranks) + 1
        self._joins[number] = {"join": ",".join(addresses), **init}
        self._own[number] = {"state": "new", **(args or {})}
        self._start(number)
        return number
