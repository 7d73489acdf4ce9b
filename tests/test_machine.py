"""The watch's rules, driven by hypothesis: whatever comes in whatever order, some things hold."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from standfast._core import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 1_000_000_000
LIMITS = {
    "heartbeat": SECOND // 2,
    "hint": 3 * SECOND,
    "silence": 20 * SECOND,
    "progress": 60 * SECOND,
}
NEVER = 2**63 - 1
RANKS = st.integers(0, 4)
# What a report may say of another rank, and whether it is no more than a suspicion.
REPORTS = st.sampled_from(
    [
        ("died", True),
        ("link_lost", True),
        ("failed", False),
        ("aborted", False),
        ("left", False),
        ("mismatch", False),
        ("message_mismatch", False),
        ("no_progress", False),
        ("stalled", False),
        ("unreachable", False),
        ("internal", False),
    ]
)


@dataclasses.dataclass
class Waiting:
    """What this rank does: collectives begun, and whom it waits for since when."""

    started: int = 0
    on: int = -1
    since: int = 0


class AnyEvents(RuleBasedStateMachine):
    """A machine, and a twin that is told the same."""

    @initialize(rank=st.integers(0, 2), size=st.integers(2, 5))
    def begin(self, rank: int, size: int) -> None:
        """Make the group's machine for this rank."""
        self.rank = rank % size
        self.size = size
        self.now = 1000 * SECOND
        self.twins = [Machine(rank=self.rank, size=size, **LIMITS) for _ in range(2)]
        self.verdicts: list[tuple[str, int]] = []
        self.orderly: set[int] = set()
        self.awaited: set[int] = set()
        self.hinted: set[int] = set()
        self.ended: set[int] = set()
        self.waiting = Waiting()
        self.acked = [self.now] * size
        self.data = [0] * size
        self.tick()

    def tell(self, kind: str, **event: Any) -> None:
        """Step both machines, and look at the answer."""
        answers = [twin.step(kind, self.now, **event) for twin in self.twins]
        assert answers[0] == answers[1]
        sends, verdict, hints, over = answers[0]
        if verdict is not None:
            self.verdicts.append(verdict)
            name, about = verdict
            assert 0 <= about < self.size
            if about in self.orderly and name != "left":
                assert about in self.awaited
        if len(self.verdicts) == 1 and verdict is None and kind != "tick":
            assert all(frame != "verdict" for _, frame, _, _ in sends)
        for to, frame, _, about in sends:
            assert 0 <= to < self.size
            assert to != self.rank
            assert self.rank == 0 or to == 0
            assert frame != "verdict" or (self.rank == 0 and verdict is not None)
            assert frame != "left" or to != about
        self.hinted |= {about for _, about in hints}
        assert set(over) <= self.hinted
        self.hinted -= set(over)
        for twin in self.twins:
            # Ticks come when they are asked for: the time of the next is never over.
            assert kind != "tick" or twin.wakes_at() > self.now

    def tick(self) -> None:
        """Look at the world, as the thread does when the machine wants it to."""
        waited = self.now - self.waiting.since if self.waiting.on >= 0 else 0
        status = (self.waiting.started, self.waiting.on, waited)
        due = self.twins[0].is_review_due(self.now)
        sights = list(zip(self.data, self.acked, strict=True)) if due else []
        self.tell("tick", status=status if due else (0, -1, 0), sights=sights)

    def peer(self, number: int) -> int:
        """Return a rank that has a link to this one."""
        return 0 if self.rank != 0 else 1 + number % (self.size - 1)

    @rule(spans=st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=60))
    def time_passes(self, spans: list[int]) -> None:
        """Tick whenever the machine asks for it, sometimes late."""
        for span in spans:
            wakes_at = self.twins[0].wakes_at()
            self.now = max(self.now, min(wakes_at, self.now + SECOND)) + span // 10
            self.tick()

    @rule(span=st.integers(1, 100 * SECOND))
    def nothing_runs(self, span: int) -> None:
        """The thread is late, or the machine was suspended."""
        self.now += span
        verdicts = len(self.verdicts)
        self.tick()
        # Nobody could be heard meanwhile, so nobody is accused of silence for it.
        assert self.awaited or all(name != "unreachable" for name, _ in self.verdicts[verdicts:])

    @rule(number=RANKS, started=st.integers(0, 3), on=st.integers(-1, 4))
    def beat(self, number: int, started: int, on: int) -> None:
        """A peer lives, and says what it does."""
        rank = self.peer(number)
        if rank in self.ended:
            return
        waits = on % self.size if on >= 0 else -1
        self.tell("frame", rank=rank, frame="beat", status=(started, waits, SECOND))

    @rule(number=RANKS, interrupted=st.booleans())
    def goodbye(self, number: int, interrupted: bool) -> None:
        """A peer leaves."""
        rank = self.peer(number)
        if rank in self.ended:
            return
        if not interrupted:
            self.orderly.add(rank)
        said = "left" if interrupted else "none"
        self.tell("frame", rank=rank, frame="goodbye", verdict=said, about=rank)

    @rule(number=RANKS, expired=st.booleans())
    def link_ends(self, number: int, expired: bool) -> None:
        """A control link is no more."""
        rank = self.peer(number)
        if rank in self.ended:
            return
        self.ended.add(rank)
        self.tell("link_expired" if expired else "link_ended", rank=rank)

    @rule(number=RANKS)
    def process_gone(self, number: int) -> None:
        """A process of this host is no more."""
        rank = number % self.size
        if rank != self.rank:
            self.tell("process_gone", rank=rank)

    @rule(number=RANKS, about=RANKS, report=REPORTS)
    def report(self, number: int, about: int, report: tuple[str, bool]) -> None:
        """This rank, or a peer, tells what it saw of another."""
        kind, suspicion = report
        accused = about % self.size
        local = number % 2 == 0
        rank = self.rank if local else self.peer(number)
        if not local and rank in self.ended:
            return
        if kind != "died":
            self.awaited.add(accused)
        self.tell(
            "local" if local else "frame",
            rank=rank,
            frame="report",
            verdict=kind,
            about=accused,
            suspicion=suspicion,
        )

    @precondition(lambda self: self.rank != 0 and 0 not in self.ended)
    @rule(number=RANKS, frame=st.sampled_from(["verdict", "left", "hint", "hint_over", "ask"]))
    def rank_0_says(self, number: int, frame: str) -> None:
        """Rank 0 tells what it decided, or heard."""
        about = number % self.size
        if frame == "left":
            self.orderly.add(about)
        if frame == "verdict":
            self.awaited.add(about)
        self.tell("frame", rank=0, frame=frame, verdict="died", about=about)

    @rule(number=RANKS)
    def data_comes(self, number: int) -> None:
        """Data of a rank, which counts as life."""
        self.data[number % self.size] = self.now

    @rule(number=RANKS)
    def host_answers(self, number: int) -> None:
        """A host has acknowledged everything."""
        self.acked[number % self.size] = self.now

    @rule(on=st.integers(-1, 4))
    def wait(self, on: int) -> None:
        """This rank begins a collective, and waits in it."""
        self.waiting = Waiting(
            self.waiting.started + 1, on % self.size if on >= 0 else -1, self.now
        )

    @invariant()
    def there_is_one_verdict(self) -> None:
        """The first verdict is the last, and the machine knows of it."""
        if hasattr(self, "twins"):
            assert len(self.verdicts) <= 1
            for twin in self.twins:
                assert twin.is_decided() == bool(self.verdicts)


AnyEvents.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyEvents = AnyEvents.TestCase


def run(machine: Machine, seconds: int, each: Callable[[int], None]) -> tuple[str, int] | None:
    """Beat by beat, until there is a verdict."""
    now = 1000 * SECOND
    for _ in range(2 * seconds):
        now += SECOND // 2
        each(now)
        _, verdict, _, _ = machine.step("tick", now, sights=[(0, now)] * 3)
        if verdict is not None:
            return verdict
    return None


def test_a_rank_that_beats_is_well() -> None:
    """Hours of beats make no verdict; a rank that stops is named."""
    machine = Machine(rank=0, size=3, **LIMITS)

    def all_beat(now: int) -> None:
        for rank in (1, 2):
            machine.step("frame", now, rank=rank, frame="beat")

    def one_beats(now: int) -> None:
        machine.step("frame", now, rank=1, frame="beat")

    assert run(machine, 3600, all_beat) is None
    machine = Machine(rank=0, size=3, **LIMITS)
    assert run(machine, 60, one_beats) == ("stalled", 2)
