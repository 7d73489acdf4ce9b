"""Hints: every rank knows within 3 s who is frozen, late or wedged; nobody is ended by one.

Also the ranks that are in no operation; by hints(), by an event, and by a line on stderr.
"""

from __future__ import annotations

import itertools
import re

import pytest

from tests.death.harness import Case
from tests.death.processes import Nursery

HINT_S = 3.0

# Each rank tells of each hint once, as hints() has it and as an event, and of its end.
TELLING = """
    group = here.init(**here.args.get("limits", {}))
    told = set()
    def tell(name, **fields):
        if name not in told:
            told.add(name)
            here.say(name, **fields)
    def listener(event):
        tell(f"{event['kind']} {event['rank']}", text=event["text"], evidence=event["evidence"])
    def poll():
        while True:
            for hint in group.hints():
                tell(f"{hint.kind} {hint.rank}", text=str(hint), evidence=hint.evidence,
                     cause=hint.cause)
            time.sleep(0.01)
    group.barrier()
    group.add_listener(listener)
    threading.Thread(target=poll, daemon=True).start()
    here.say("ready")
    if here.rank in here.args["away"]:
        here.ask()
    attempt("all_sum", lambda: (do(group, "all_reduce", 0), group.barrier()))
    here.say("healthy", healthy=group.healthy(), hints=len(group.hints()))
    here.ask()
    group.close()
    """


def check_hint(case: Case, rank: int, about: int, kind: str, since_ns: int, words: str) -> None:
    """Assert that a rank knows, in both ways, within 3 s; and that its log has a line on it."""
    hint = case.wait(rank, f"{kind} {about}")
    assert words in hint["cause"], hint
    assert hint["evidence"], hint
    assert f"rank {about}" in hint["text"], hint
    case.prompt(f"hint, {kind}", since_ns, hint.ns, HINT_S)
    event = case.wait(rank, f"hint {about}")
    assert event["evidence"], event
    case.prompt(f"hint, {kind}, as an event", since_ns, event.ns, HINT_S)
    line = rf"standfast: rank {rank}: rank {about}( on \S+)?( \(this rank\))? is {kind}: "
    case.until("the log line", lambda: bool(re.search(line, case.text(rank))), 1.0)


@pytest.mark.parametrize("victim", [0, 1])
def test_frozen(nursery: Nursery, victim: int) -> None:
    """With the limits as they are by default, rank 2 waits, all others are in no operation."""
    args = {"code": TELLING, "away": [0, 1, 3]}
    with Case(nursery, 4, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(2)
        frozen_ns = case.freeze(victim)
        for rank in case.others(victim):
            check_hint(case, rank, victim, "frozen", frozen_ns, "no sign of life for ")
        case.thaw(victim)
        for rank in case.others(victim):
            case.wait(rank, f"hint_over {victim}", 3.0)
        for rank in (0, 1, 3):
            case.tell(rank)
        for rank in range(4):
            assert "error" not in case.wait(rank, "returned").fields, case.story()
            healthy = case.wait(rank, "healthy")
            assert healthy["healthy"], f"{healthy}\n{case.story()}"
            assert f"rank {victim} " in case.text(rank) or rank == victim, case.story()
        case.finish()


def test_late(nursery: Nursery) -> None:
    """One rank does not come to the operation that all others wait in."""
    args = {"code": TELLING, "away": [1]}
    with Case(nursery, 4, "program", args, quick_end=True) as case:
        since_ns = max(event.ns for event in case.wait_all("ready").values())
        for rank in range(4):
            check_hint(case, rank, 1, "late", since_ns, "it has not begun all_sum")
        case.tell(1)
        for rank in range(4):
            case.wait(rank, "hint_over 1", 3.0)
            assert "error" not in case.wait(rank, "returned").fields, case.story()
            assert case.wait(rank, "healthy")["healthy"], case.story()
        case.finish()


def test_wedged(nursery: Nursery) -> None:
    """One rank is in the operation, and stuck in it: a signal handler does not come back."""
    code = TELLING.replace(
        'here.say("ready")',
        """signal.signal(signal.SIGUSR2, lambda *_: (here.say("handling"), here.ask()))
    here.say("ready")""",
    )
    args = {"code": code, "away": [3]}
    with Case(nursery, 4, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 1, 2)
        case.signal(2, 12)
        since_ns = case.wait(2, "handling").ns
        case.tell(3)
        for rank in (0, 1, 3):
            check_hint(case, rank, 2, "wedged", since_ns, "does not get on")
        case.tell(2)
        for rank in range(4):
            assert "error" not in case.wait(rank, "returned").fields, case.story()
        case.finish()


def test_warnings(nursery: Nursery) -> None:
    """Who waits says for whom, in which operation, for how long; ever more rarely (R125)."""
    limits = {"heartbeat_s": 0.1, "hint_s": 0.4, "silence_s": 20.0, "progress_s": 60.0}
    args = {"code": TELLING, "away": [1, 3], "limits": limits}
    with Case(nursery, 4, "program", args, quick_end=True) as case:
        case.wait_all("ready")
        case.pause(4.0)
        for rank in (1, 3):
            case.tell(rank)
        for rank in range(4):
            assert "error" not in case.wait(rank, "returned").fields, case.story()
        pattern = r"standfast: rank 0: waiting for (.+) in all_sum float64\[8\] #2 for ([\d.]+) s"
        found = re.findall(pattern, case.text(0))
        assert found, case.story()
        assert found[-1][0] == "ranks [1, 3]", found
        times = [float(time) for _, time in found]
        assert 2 <= len(times) <= 6, found
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert pauses == sorted(pauses), found
        assert "waiting for" not in case.text(1), case.story()
        case.finish()
