"""herald.py: hooks and listeners are told once, in time, whatever they do. With a made-up core."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast.errors import PeerDied, StandfastError
from standfast.herald import Herald
from standfast.hints import Hint, changes, hint_of

LIMIT_S = 10.0


class Source:
    """A core that a test plays."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.count = 0
        self.shown: list[Hint] = []
        self.error: StandfastError | None = None

    def await_news(self, seen: int, timeout_s: float) -> int:
        with self.news:
            self.news.wait_for(lambda: self.count != seen, timeout_s)
            return self.count

    def hints(self) -> list[Hint]:
        with self.news:
            return list(self.shown)

    def verdict(self) -> StandfastError | None:
        with self.news:
            return self.error

    def show(self, *hints: Hint) -> None:
        with self.news:
            self.shown = list(hints)
        self.ring()

    def decide(self) -> None:
        with self.news:
            self.error = PeerDied("rank 2 on h died", rank=2, host="h", evidence=("seen",))
        self.ring()

    def ring(self) -> None:
        with self.news:
            self.count += 1
            self.news.notify_all()


class Stage:
    """A herald with its source, and what it has told."""

    def __init__(self) -> None:
        self.source = Source()
        self.herald = Herald(self.source, "test")
        self.told: list[dict[str, Any]] = []

    def listen(self, event: dict[str, Any]) -> None:
        self.told.append(event)

    def kinds(self) -> list[tuple[str, Any]]:
        return [(event["kind"], event["rank"]) for event in self.told]

    def close(self) -> None:
        self.herald.stop()
        self.source.ring()
        self.herald.join()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()
    assert not heralds(), "the herald's thread outlives it"


def heralds() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "test-herald"]


def until(happened: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def hint(rank: int, kind: str = "frozen", since_s: float = 1.0) -> Hint:
    return Hint(kind, rank, "h", 0, "no beat for 3 s", ("last beat 3 s ago",), since_s)


def test_nobody_listens_and_no_thread_runs(stage: Stage) -> None:
    """The thread starts with the first listener, not before."""
    assert not heralds()
    stage.herald.add_listener(stage.listen)
    assert len(heralds()) == 1
    stage.herald.add_abort_hook(lambda: None)
    assert len(heralds()) == 1


def test_hints_come_and_go(stage: Stage) -> None:
    """Each hint is told once when it begins and once when it is over."""
    stage.herald.add_listener(stage.listen)
    stage.source.show(hint(2))
    until(lambda: len(stage.told) == 1)
    stage.source.show(hint(2, since_s=2.0), hint(3, "late"))
    until(lambda: len(stage.told) == 2)
    stage.source.show(hint(3, "late"))
    until(lambda: len(stage.told) == 3)
    assert stage.kinds() == [("hint", 2), ("hint", 3), ("hint_over", 2)]
    assert stage.told[0] == {
        "kind": "hint",
        "rank": 2,
        "host": "h",
        "text": "rank 2 on h is frozen: no beat for 3 s (seen by rank 0)",
        "evidence": ["last beat 3 s ago"],
        "since_s": 1.0,
    }


def test_the_verdict_runs_hooks_then_listeners(stage: Stage) -> None:
    """Each hook runs once in a thread of its own; the callable and the listeners hear the error."""
    names: list[str] = []
    over: list[StandfastError] = []
    for _ in range(2):
        stage.herald.add_abort_hook(lambda: names.append(threading.current_thread().name))
    stage.herald.when_over(over.append)
    stage.herald.add_listener(stage.listen)
    stage.source.decide()
    until(lambda: len(stage.told) == 1 and len(names) == 2)
    assert names == ["test-abort-hook"] * 2
    assert [error.rank for error in over] == [2]
    assert stage.told[0]["error"].rank == 2
    assert stage.told[0]["text"] == "rank 2 on h died"
    stage.source.ring()
    until(lambda: not heralds())
    assert (len(names), len(over), len(stage.told)) == (2, 1, 1)


def test_a_hook_that_blocks_holds_nobody(stage: Stage) -> None:
    """Nor does one that raises: all others are told."""
    free = threading.Event()

    def fails() -> None:
        raise ZeroDivisionError

    done: list[int] = []
    for hook in (free.wait, fails, lambda: done.append(1)):
        stage.herald.add_abort_hook(hook)
    stage.herald.add_listener(stage.listen)
    stage.source.decide()
    until(lambda: bool(done and stage.told))
    assert stage.herald.wait_for_hooks(0.01)
    free.set()
    assert stage.herald.wait_for_hooks(LIMIT_S)


def test_a_listener_that_raises_hides_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are told all the same, later events too, and the exception is logged."""

    def broken(event: dict[str, Any]) -> None:
        raise KeyError("broken")

    stage.herald.add_listener(broken)
    stage.herald.add_listener(stage.listen)
    stage.source.show(hint(1))
    until(lambda: len(stage.told) == 1)
    stage.source.decide()
    until(lambda: len(stage.told) == 2)
    assert stage.kinds() == [("hint", 1), ("verdict", 2)]
    assert "a listener of test failed" in caplog.text


def test_who_comes_late_is_told_at_once(stage: Stage) -> None:
    """A hook or a listener that is added after the verdict is not too late."""
    stage.herald.add_listener(stage.listen)
    stage.source.decide()
    until(lambda: len(stage.told) == 1)
    done = threading.Event()
    stage.herald.add_abort_hook(done.set)
    assert done.wait(LIMIT_S)
    late: list[dict[str, Any]] = []
    stage.herald.add_listener(late.append)
    assert [event["kind"] for event in late] == ["verdict"]


def test_stopped_means_silent(stage: Stage) -> None:
    """After stop() nobody is told of anything, not even of a verdict, and the thread ends."""
    stage.herald.add_listener(stage.listen)
    stage.herald.add_abort_hook(lambda: stage.told.append({}))
    stage.herald.stop()
    stage.source.decide()
    stage.herald.join()
    assert not heralds()
    assert stage.told == []


def test_a_listener_may_stop_the_herald(stage: Stage) -> None:
    """close() from within a listener does not wait for itself."""
    ended = threading.Event()

    def close(event: dict[str, Any]) -> None:
        stage.herald.stop()
        stage.herald.join()
        ended.set()

    stage.herald.add_listener(close)
    stage.source.show(hint(1))
    assert ended.wait(LIMIT_S)


def test_stop_does_not_wait_for_a_listener(stage: Stage) -> None:
    """A listener that does not return delays the close by half a second, and no more."""
    inside, free = threading.Event(), threading.Event()

    def hold(event: dict[str, Any]) -> None:
        inside.set()
        free.wait()

    stage.herald.add_listener(hold)
    stage.source.show(hint(1))
    assert inside.wait(LIMIT_S)
    began_s = time.monotonic()
    stage.herald.stop()
    stage.herald.join()
    assert time.monotonic() - began_s < LIMIT_S
    free.set()


# --- hints ----------------------------------------------------------------------------------------


class Seen:
    """A hint of the core's."""

    kind = "late"
    rank = 1
    reporter = 0
    cause = "ranks 0, 2 wait for it in barrier #4"
    evidence: tuple[str, ...] = ("it was in no operation",)
    since_ns = 2_000_000_000


def test_a_hint_is_one_sentence() -> None:
    """It has all fields, and says who, where, what, why, and who saw it."""
    made = hint_of(Seen(), ["a", "b"], 3_500_000_000)  # type: ignore[arg-type] # a tuple will do
    assert (made.kind, made.rank, made.host, made.reporter) == ("late", 1, "b", 0)
    assert (made.evidence, made.since_s) == (("it was in no operation",), 1.5)
    assert str(made) == (
        "rank 1 on b is late: ranks 0, 2 wait for it in barrier #4 (seen by rank 0)"
    )


@pytest.mark.parametrize("kind", ["silent", "frozen", "unreachable", "late", "wedged", "cut", "x"])
def test_each_kind_has_words(kind: str) -> None:
    """Also one that this version does not know."""
    text = str(hint(4, kind))
    assert text.startswith("rank 4 on h ")
    assert ("suspect" in text) == (kind == "x")


def test_what_has_changed() -> None:
    """The same suspicion of the same rank is the same hint, whatever its age and evidence."""
    before = [hint(1), hint(2)]
    after = [hint(2, since_s=9.0), hint(2, "late"), hint(3)]
    began, ended = changes(before, after)
    assert [(each.kind, each.rank) for each in began] == [("late", 2), ("frozen", 3)]
    assert [(each.kind, each.rank) for each in ended] == [("frozen", 1)]
    assert changes(after, after) == ([], [])
