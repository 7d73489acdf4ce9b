"""The live table of a job: who runs, who is ready, what was told. Events and the status come of it.

It decides nothing: the job's intent is its spec, and stays what it is whatever happens here. Pure:
events go to `emit`, and `record()` is what `standfast status` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from standfast.launch.records import RankEnd

Emit = Callable[[dict[str, Any]], None]
GIVEN_UP = frozenset({"PeerStalled", "PeerUnreachable"})
"""Errors about a rank that may still run, and is in no group any more."""


@dataclass
class Row:
    """A rank of the current generation."""

    rank: int
    host: str = ""
    pid: int = 0
    state: str = "started"
    ended: str | None = None
    newcomer: bool = False

    def shown(self) -> dict[str, Any]:
        """Return it as status shows it."""
        return {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "state": self.state,
            "ended": self.ended,
        }


@dataclass
class Ledger:
    """What is known of a job at this moment.

    Fields:
        state: "starting" (hosts), "started", "ready", "failed", "restarting" or "finished".
        beats: the highest step that each rank has told, over all generations.
        joined, left: by rank, the last group that it has joined, and the last one that it has
            left to form it again by itself, with group.reform().
        addresses: by rank, where newcomers find it while it forms its group again.
        group_generation: the highest number used; ranks that form their group again count on from
            the launcher's.
        formed: whether a group was formed since ranks were started last.
    """

    job_id: str
    command: tuple[str, ...]
    owner: Mapping[str, Any]
    emit: Emit
    state: str = "starting"
    generation: int = 0
    restarts: int = 0
    reason: str = ""
    since: float = field(default_factory=time.time)
    rows: dict[int, Row] = field(default_factory=dict)
    beats: dict[int, int] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    group_generation: int = 0
    formed: bool = False
    changed: bool = True
    ready_generations: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _untold: list[int] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    _seats: dict[tuple[int, int], int] = field(default_factory=dict)
    _ready_told: int = 0
    _forsaken: set[int] = field(default_factory=set)

    def started(self, generation: int, ranks: Mapping[int, tuple[str, int]]) -> None:
        """All ranks of a generation were started; by rank: host and pid."""
        self.generation = generation
        self.rows = {rank: Row(rank, host, pid) for rank, (host, pid) in ranks.items()}
        self._lost = set()
        self.joined, self.left, self.addresses = {}, {}, {}
        self._sizes, self._seats, self._forsaken = {}, {}, set()
        self._ready_told, self.formed = generation - 1, False
        self.group_generation = max(self.group_generation, generation)
        self.reason = ""
        self._become("started")
        self._untold = sorted(self.rows)
        self.located({})

    def replaced(self, number: int, places: Mapping[int, tuple[str, int]]) -> None:
        """Newcomers were started in the places of lost ranks; by rank: host and pid.

        Args:
            number: of this attempt; it tells each from whoever had its rank before.
            places: where they are; a pid of 0 is told later.
        """
        self.group_generation = max(self.group_generation, number)
        self.formed = False
        for rank, (host, pid) in places.items():
            self.rows[rank] = Row(rank, host, pid, "joining", newcomer=True)
            self.joined.pop(rank, None)
            self.left.pop(rank, None)
        self._lost -= places.keys()
        self._forsaken -= places.keys()
        self.changed = True
        self._untold = sorted({*self._untold, *places})
        self.located({})

    def located(self, pids: Mapping[int, int]) -> None:
        """Ranks on other hosts have their processes now; the event waits until all have."""
        if not self._untold:
            return
        for rank in self._untold:
            self.rows[rank].pid = pids.get(rank, self.rows[rank].pid)
        if all(self.rows[rank].pid for rank in self._untold):
            self._tell_started()

    def _tell_started(self) -> None:
        if self._untold:
            rows = [self.rows[rank] for rank in self._untold]
            self._untold = []
            self.changed = True
            shown = [{"rank": row.rank, "host": row.host, "pid": row.pid} for row in rows]
            self._tell("started", size=len(self.rows), ranks=shown)

    def noticed(self, line: bytes) -> None:
        """A rank of ours said something; what makes no sense, or is of the past, is ignored."""
        import json  # not needed to start ranks

        try:
            told = json.loads(line)
            kind, rank, generation = told["kind"], int(told["rank"]), int(told["generation"])
            row = self.rows.get(rank)
            if row is None or generation < self.generation:
                return
            self.group_generation = max(self.group_generation, generation)
            if kind == "ready":
                self._joins(row, generation, told)
            elif kind == "reform":
                self.left[rank] = generation
                self.addresses[rank] = str(told.get("address", ""))
                self._reform(row)
            elif kind == "beat":
                self.beats[rank] = max(int(told["step"]), self.beats.get(rank, 0))
            elif kind == "fault":
                self._fault(rank, generation, told)
        except (ValueError, KeyError, TypeError):
            return

    def is_ready(self, rank: int) -> bool:
        """Whether a rank has joined its group."""
        return rank in self.rows and self.rows[rank].state == "ready"

    def went_on(self, running: Iterable[int], lost: Iterable[int]) -> bool:
        """Whether all of these have left the last group of the lost ones, to form it again.

        Numbers decide, since the notices may come before or after the end that they are about.
        Newcomers that were in no group yet count neither here nor there. What a lost rank has said
        may be lost with its agent: who has joined a group proves that all have, so its last one is
        taken for the newest that those who stay were in.
        """
        staying = [rank for rank in running if not self.is_joining(rank)]
        proven = max((self.joined[rank] for rank in staying if rank in self.joined), default=None)
        last = [self.joined.get(rank, 0 if self._came_new(rank) else proven) for rank in lost]
        if not staying or any(generation is None for generation in last):
            return False
        newest = max((generation for generation in last if generation is not None), default=0)
        return all(self.left.get(rank, -1) >= newest for rank in staying)

    def is_joining(self, rank: int) -> bool:
        """Whether a rank is a newcomer that was in no group yet."""
        return rank in self.rows and self.rows[rank].state == "joining"

    def _came_new(self, rank: int) -> bool:
        return rank in self.rows and self.rows[rank].newcomer

    def waits(self, running: Iterable[int]) -> bool:
        """Whether these form their group again at this moment, so that newcomers may join them."""
        staying = [rank for rank in running if not self.is_joining(rank)]
        return bool(staying) and all(self.rows[rank].state == "reforming" for rank in staying)

    def forsaken(self, running: Iterable[int]) -> list[int]:
        """Return who runs and does nothing any more, and is gone on without by all the others."""
        running = set(running)
        given_up = running & self._forsaken
        others = running - given_up
        return sorted(given_up) if given_up and self.went_on(others, given_up) else []

    @property
    def all_ready(self) -> bool:
        """Whether this generation's group was formed."""
        return self.generation in self.ready_generations

    def ended(self, end: RankEnd) -> None:
        """A rank's process has ended."""
        row = self.rows.get(end.rank)
        if row is None:
            return
        needed = self.state != "ready" or row.state != "joining"
        row.state, row.ended = "ended", end.words()
        self.changed = True
        if end.status != 0 and not end.stopped:
            if needed:
                self._fail(f"rank {end.rank}: {end.words()}")
            if end.status != 75:
                self._peer_lost(end.rank, end.words())

    def spare_ended(self, end: RankEnd, what: str) -> None:
        """A spare has ended before it had a place; the ranks do not need it."""
        self._tell("spare_lost", host=end.host, pid=end.pid, reason=what)

    def failed(self, rank: int | None, reason: str, status: int) -> None:
        """The generation is over, and its first cause is known."""
        if rank is not None:
            self._peer_lost(rank, reason)
        self._fail(reason)
        was_ready = self.all_ready
        self._tell(
            "group_failed", **self._who(rank), reason=reason, status=status, was_ready=was_ready
        )

    def restarting(
        self,
        generation: int,
        restart: int,
        limit: int,
        after_s: float,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Another generation will be started; or only these ranks, for those that go on."""
        self.restarts = restart
        self._become("restarting")
        more = {} if ranks is None else {"ranks": list(ranks)}
        self._tell(
            "restarting",
            next_generation=generation,
            restart=restart,
            of=limit,
            after_s=after_s,
            **more,
        )

    def finished(self, status: int, reason: str) -> None:
        """The job is over."""
        self.reason = reason
        self._become("finished")
        self._tell("finished", status=status, reason=reason)

    def record(self) -> dict[str, Any]:
        """Return what status shows."""
        return {
            "job_id": self.job_id,
            **self.owner,
            "state": self.state,
            "generation": self.generation,
            "size": len(self.rows),
            "since": self.since,
            "restarts": self.restarts,
            "reason": self.reason,
            "command": list(self.command),
            "ranks": [row.shown() for row in self.rows.values()],
        }

    def _joins(self, row: Row, generation: int, told: Mapping[str, Any]) -> None:
        """A rank has joined a group; `told` has how many that has, and which of them it is."""
        self.joined[row.rank] = generation
        self._seats[generation, int(told.get("seat", row.rank))] = row.rank
        left = [each for each in self.rows.values() if each.state != "ended"]
        self._sizes[generation] = int(told.get("size", len(self.rows)))
        if row.state == "ended":
            return
        row.state = "ready"
        self.changed = True
        there = [each for each in left if self.joined.get(each.rank) == generation]
        if generation > self._ready_told and len(there) >= self._sizes[generation]:
            self._tell_ready(generation)

    def _tell_ready(self, generation: int) -> None:
        self._ready_told = generation
        self.formed = True
        self.ready_generations.add(self.generation)
        self.reason = ""
        self._become("ready")
        self._tell("ready", size=self._sizes[generation], group_generation=generation)

    def _complete_ready(self) -> None:
        """Before a loss is told: tell of the group that it is a loss to.

        One rank that has joined is proof enough that it was formed: none returns before all have
        said that they are there. The others' words may be on their way, or never come.
        """
        newest = max(self.joined.values(), default=0)
        if self.state == "failed" and newest <= self.generation:
            return  # a loss was told before any rank had said that it was there
        if newest > self._ready_told:
            self._tell_ready(newest)

    def _reform(self, row: Row) -> None:
        if row.state == "ready":
            row.state = "reforming"
            self._fail("a rank forms its group again")
            self.changed = True

    def _fault(self, rank: int, generation: int, told: Mapping[str, Any]) -> None:
        self._fail(str(told["reason"]))
        if told["lost"] is None:
            return
        # Ranks of a group that was formed again are not those that the launcher has given.
        lost = self._seats.get((generation, int(told["lost"])))
        if lost is None and generation == self.generation:
            lost = int(told["lost"])
        if lost is not None and lost != rank:
            self._peer_lost(lost, str(told["reason"]))
            if told.get("error") in GIVEN_UP:
                self._forsaken.add(lost)

    def _fail(self, reason: str) -> None:
        self._complete_ready()
        if self.state in ("started", "ready", "restarting"):
            self.reason = reason
            self._become("failed")

    def _peer_lost(self, rank: int, reason: str) -> None:
        if rank in self.rows and rank not in self._lost:
            self._complete_ready()
            self._lost.add(rank)
            self._tell("peer_lost", **self._who(rank), reason=reason)

    def _who(self, rank: int | None) -> dict[str, Any]:
        host = self.rows[rank].host if rank in self.rows else ""
        return {"rank": rank, "host": host}

    def _become(self, state: str) -> None:
        self.state = state
        self.since = time.time()
        self.changed = True

    def _tell(self, event: str, **more: Any) -> None:
        self._tell_started()  # first, if it waited for a rank that did not come
        self.emit(
            {
                "event": event,
                "time": round(time.time(), 6),
                "job_id": self.job_id,
                "generation": self.generation,
                **more,
            }
        )
