"""The live table of a job: who runs, who is ready, what was told. Events and the status come of it.

It decides nothing: the job's intent is its spec, and stays what it is whatever happens here. Pure:
events go to `emit`, and `record()` is what `standfast status` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.launch.records import RankEnd

Emit = Callable[[dict[str, Any]], None]


@dataclass
class Row:
    """A rank of the current generation."""

    rank: int
    host: str = ""
    pid: int = 0
    state: str = "started"
    ended: str | None = None

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
        group_generation: the number of the group that was formed last; ranks that form it again
            count on from the launcher's.
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
    group_generation: int = 0
    changed: bool = True
    ready_generations: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _untold: bool = False

    def started(self, generation: int, ranks: Mapping[int, tuple[str, int]]) -> None:
        """All ranks of a generation were started; by rank: host and pid."""
        self.generation = generation
        self.rows = {rank: Row(rank, host, pid) for rank, (host, pid) in ranks.items()}
        self._lost = set()
        self.joined, self.left = {}, {}
        self.group_generation = max(self.group_generation, generation)
        self.reason = ""
        self._become("started")
        self._untold = True
        self.located({})

    def located(self, pids: Mapping[int, int]) -> None:
        """Ranks on other hosts have their processes now; the event waits until all have."""
        if not self._untold:
            return
        for rank, pid in pids.items():
            self.rows[rank].pid = pid
        if all(row.pid for row in self.rows.values()):
            self._tell_started()

    def _tell_started(self) -> None:
        if self._untold:
            self._untold = False
            self.changed = True
            shown = [{"rank": r.rank, "host": r.host, "pid": r.pid} for r in self.rows.values()]
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
                self.joined[rank] = generation
                self._ready(row)
            elif kind == "reform":
                self.left[rank] = generation
                self._reform(row)
            elif kind == "beat":
                self.beats[rank] = max(int(told["step"]), self.beats.get(rank, 0))
            elif kind == "fault":
                self._fault(rank, told)
        except (ValueError, KeyError, TypeError):
            return

    def is_ready(self, rank: int) -> bool:
        """Whether a rank has joined its group."""
        return rank in self.rows and self.rows[rank].state == "ready"

    def went_on(self, running: Iterable[int], lost: Iterable[int]) -> bool:
        """Whether all of these have left the last group of the lost ones, to form it again.

        Numbers decide, since the notices may come before or after the end that they are about.
        """
        last = [self.joined.get(rank) for rank in lost]
        if any(generation is None for generation in last):
            return False
        newest = max((generation for generation in last if generation is not None), default=0)
        return all(self.left.get(rank, -1) >= newest for rank in running)

    @property
    def all_ready(self) -> bool:
        """Whether this generation's group was formed."""
        return self.generation in self.ready_generations

    def ended(self, end: RankEnd) -> None:
        """A rank's process has ended."""
        row = self.rows.get(end.rank)
        if row is None:
            return
        row.state, row.ended = "ended", end.words()
        self.changed = True
        if end.status != 0 and not end.stopped:
            self._fail(f"rank {end.rank}: {end.words()}")
            if end.status != 75:
                self._peer_lost(end.rank, end.words())

    def failed(self, rank: int | None, reason: str, status: int) -> None:
        """The generation is over, and its first cause is known."""
        if rank is not None:
            self._peer_lost(rank, reason)
        self._fail(reason)
        self._tell("group_failed", **self._who(rank), reason=reason, status=status)

    def restarting(self, generation: int, restart: int, limit: int, after_s: float) -> None:
        """Another generation will be started."""
        self.restarts = restart
        self._become("restarting")
        self._tell(
            "restarting", next_generation=generation, restart=restart, of=limit, after_s=after_s
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

    def _ready(self, row: Row) -> None:
        if row.state not in ("started", "reforming"):
            return
        again = row.state == "reforming"
        row.state = "ready"
        self.changed = True
        left = [r for r in self.rows.values() if not (again and r.state == "ended")]
        waiting = self.state == "started" or (again and self.state == "failed")
        if waiting and all(each.state == "ready" for each in left):
            self.ready_generations.add(self.generation)
            self.reason = ""
            self._become("ready")
            self._tell("ready", size=len(left), group_generation=self.group_generation)

    def _reform(self, row: Row) -> None:
        if row.state == "ready":
            row.state = "reforming"
            self._fail("a rank forms its group again")
            self.changed = True

    def _fault(self, rank: int, told: Mapping[str, Any]) -> None:
        self._fail(str(told["reason"]))
        if told["lost"] is not None and int(told["lost"]) != rank:
            self._peer_lost(int(told["lost"]), str(told["reason"]))

    def _fail(self, reason: str) -> None:
        if self.state in ("started", "ready"):
            self.reason = reason
            self._become("failed")

    def _peer_lost(self, rank: int, reason: str) -> None:
        if rank in self.rows and rank not in self._lost:
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
