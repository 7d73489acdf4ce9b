"""Survivors form their group again in process, with real processes that die, freeze and join."""

from __future__ import annotations

import signal

import pytest

from tests import emulated
from tests.death.measures import MEASURES, allowance_s
from tests.death.processes import Nursery
from tests.reform.harness import QUICK, ReformCase

REFORM_S_MAX = 0.1
LINK = {"shm": "shm", "tcp": "tcp", "verbs": "rdma_en"}
"""What the texts of links have in them, by fabric."""


@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
@pytest.mark.parametrize("victim", [0, 2, 3])
def test_any_rank_dies(nursery: Nursery, victim: int, fabric: str) -> None:
    """The others go on in their old order, rank 0 or not; the old group is stale."""
    with ReformCase(nursery, 4, init={"fabric": fabric}) as case:
        first = case.check(1, [0, 1, 2, 3], [None] * 4)
        assert first[0]["states"] == ["fresh"] * 4
        left = case.others(victim)
        case.kill(victim)
        events = case.check(2, left, list(left))
        assert events[0]["id"] == first[0]["id"]
        assert events[0]["states"] == ["after 1"] * 3
        assert all(LINK[fabric] in text for text in events[0]["links"].values())
        for rank, event in zip(left, events, strict=True):
            raised = case.wait(rank, "raised 1")
            assert (raised.error["type"], raised.error["rank"]) == ("PeerDied", victim)
            MEASURES.add("reform", event["took_s"])
            stale = case.wait(rank, "stale 1").error
            assert (stale["type"], stale["generation"]) == ("StaleGroup", 1)
            assert "this process is in generation 2" in stale["message"]
            assert case.wait(rank, "twice 1").error["type"] == "StaleGroup"
        case.finish(victim)


def test_it_takes_under_100_ms(nursery: Nursery) -> None:
    """Four ranks of one machine form again in 100 ms: all of it, at the slowest rank, at best."""
    with ReformCase(nursery, 4, scenario="often") as case:
        told = case.wait_all("took")
        rounds = zip(*(event["seconds"] for event in told.values()), strict=True)
        best = min(max(seconds) for seconds in rounds)
        MEASURES.add("reform, best of ten", best)
        assert best < REFORM_S_MAX, case.story()
        # The thread at the stand-by port has a bell (two) and a selector.
        assert all(event["opened"] <= 3 for event in told.values()), case.story()
        case.finish()


def test_again_and_again(nursery: Nursery) -> None:
    """Each death is one more generation, down to the majority of the last."""
    with ReformCase(nursery, 5) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(1)
        case.check(2, [0, 2, 3, 4], [0, 2, 3, 4])
        case.kill(0)
        case.check(3, [2, 3, 4], [1, 2, 3])
        case.kill(3)
        case.check(4, [2, 4], [0, 2])
        case.finish(0, 1, 3)


def test_two_die_at_once(nursery: Nursery) -> None:
    """One verdict names one rank; that the other is gone, too, shows when nobody answers."""
    with ReformCase(nursery, 5) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(0, 3)
        case.check(2, [1, 2, 4], [1, 2, 4])
        case.finish(0, 3)


def test_all_but_one_die(nursery: Nursery) -> None:
    """With min_size=1 the last one goes on alone."""
    with ReformCase(nursery, 4, reform={"min_size": 1}) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        case.kill(0, 1, 3)
        case.check(2, [2], [2])
        case.finish(0, 1, 3)


def test_too_few_are_left(nursery: Nursery) -> None:
    """Without min_size half of the ranks are too few: an error at once, and the port is closed."""
    with ReformCase(nursery, 4) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        case.kill(0, 1)
        for rank in (2, 3):
            out = case.wait(rank, "out")
            assert out.error["type"] == "RendezvousError"
            assert "3 of the 4 ranks are needed" in out.error["message"]
            assert {0, 1} <= set(out.error["missing"])
            assert out["took_s"] < 5 + allowance_s(case.began_ns)
        case.finish(0, 1)


def test_the_one_that_serves_dies_meanwhile(nursery: Nursery) -> None:
    """While others wait for a busy rank, the one that serves them dies, and the next one."""
    with ReformCase(nursery, 5, by_rank={2: {"slow": True}}, reform={"min_size": 2}) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(4)
        for rank in case.others(4):
            case.wait(rank, "raised 1")
        case.wait_asleep(0, 1, 3)
        case.kill(0)
        case.wait_asleep(1, 3)
        case.kill(1)
        case.wait_asleep(3)
        case.tell(2)
        case.check(2, [2, 3], [2, 3])
        case.finish(0, 1, 4)


def test_the_one_that_serves_freezes_meanwhile(nursery: Nursery) -> None:
    """It is given up, also by a rank that came to it late; when it wakes, it is told so."""
    wish = {"min_size": 2, "timeout_s": 4.0}
    with ReformCase(nursery, 5, by_rank={2: {"slow": True}}, reform=wish) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(4)
        for rank in case.others(4):
            case.wait(rank, "raised 1")
        case.wait_asleep(0, 1, 3)
        case.freeze(0)
        case.tell(2)
        case.check(2, [1, 2, 3], [1, 2, 3])
        case.thaw(0)
        assert case.wait(0, "out").error["type"] == "StaleGroup"
        case.finish(4)


def test_the_one_that_serves_is_interrupted(nursery: Nursery) -> None:
    """Ctrl-C at the rank that serves ends its part, and nobody else's."""
    with ReformCase(nursery, 4, by_rank={2: {"slow": True}}, reform={"min_size": 2}) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        case.kill(3)
        for rank in case.others(3):
            case.wait(rank, "raised 1")
        case.wait_asleep(0, 1)
        case.signal(0, signal.SIGINT)
        assert case.wait(0, "out").error["type"] == "KeyboardInterrupt"
        case.tell(2)
        case.check(2, [1, 2], [1, 2])
        case.finish(3)


@pytest.mark.parametrize("second", [0, 1, 3])
def test_one_dies_as_the_new_group_forms(nursery: Nursery, second: int) -> None:
    """When all know who they are, one dies before it is there: the others try again without it."""
    with ReformCase(nursery, 5, by_rank={second: {"die": True}}, reform={"min_size": 2}) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(2)
        left = case.others(2, second)
        case.check(3, left, list(left))
        case.finish(2, second)


def test_a_forked_child_does_not_stand_in_for_a_dead_rank(nursery: Nursery) -> None:
    """A child made by os.fork() lives on with all that its parent had, but not with its port."""
    with ReformCase(nursery, 5, by_rank={1: {"fork": True}}) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(3, 1)
        events = case.check(2, [0, 2, 4], [0, 2, 4])
        assert max(e["took_s"] for e in events) < 5 + allowance_s(case.began_ns)
        case.finish(1, 3)


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_newcomer_takes_the_place(nursery: Nursery, victim: int, fabric: str) -> None:
    """The survivors wait, as asked, for a newcomer; all learn who holds which state."""
    with ReformCase(nursery, 4, init={"fabric": fabric}, reform={"wait_s": 30.0}) as case:
        first = case.check(1, [0, 1, 2, 3], [None] * 4)
        case.kill(victim)
        left = case.others(victim)
        for rank in left:
            case.wait(rank, "raised 1")
        case.wait_asleep(*left)
        new = case.newcomer(first[0]["addresses"])
        events = case.check(2, [*left, new], [*left, None])
        assert events[0]["states"] == ["after 1"] * 3 + ["new"]
        assert events[0]["id"] == first[0]["id"]
        case.finish(victim)


def test_a_newcomer_that_comes_late(nursery: Nursery) -> None:
    """The group went on with fewer; it takes the newcomer in when its ranks call reform() again."""
    with ReformCase(nursery, 3) as case:
        case.check(1, [0, 1, 2], [None] * 3)
        case.kill(0)
        events = case.check(2, [1, 2], [1, 2])
        new = case.newcomer(events[0]["addresses"])
        case.wait_asleep(new)
        case.tell(1, "grow")
        grown = case.check(3, [1, 2, new], [0, 1, None])
        assert grown[0]["states"] == ["after 2", "after 2", "new"]
        case.finish(0)


def test_a_newcomer_that_dies_is_replaced(nursery: Nursery) -> None:
    """A newcomer dies when it has been told who it is: the others meet again, and take the next."""
    with ReformCase(nursery, 3, reform={"wait_s": 30.0}) as case:
        first = case.check(1, [0, 1, 2], [None] * 3)
        case.kill(2)
        for rank in (0, 1):
            case.wait(rank, "raised 1")
        dies = case.newcomer(first[0]["addresses"], {"die": True})
        assert case.wait_end(dies) == -signal.SIGKILL
        new = case.newcomer(first[0]["addresses"])
        case.check(3, [0, 1, new], [0, 1, None])
        case.finish(2, dies)


def test_a_newcomer_of_another_kind(nursery: Nursery) -> None:
    """Who is set up otherwise is refused, with the reason; the others go on without it."""
    with ReformCase(nursery, 3, reform={"wait_s": 30.0}) as case:
        first = case.check(1, [0, 1, 2], [None] * 3)
        case.kill(1)
        for rank in (0, 2):
            case.wait(rank, "raised 1")
        case.wait_asleep(0, 2)
        wrong = case.newcomer(first[0]["addresses"], silence_s=77.0)
        assert case.wait_end(wrong) == 78
        assert "silence_s=77.0" in case.text(wrong)
        new = case.newcomer(first[0]["addresses"])
        case.check(2, [0, 2, new], [0, 2, None])
        case.finish(1, wrong)


def test_a_newcomer_needs_the_key(nursery: Nursery) -> None:
    """A group with a key takes nobody in without it, or with another one, and says so."""
    key = "a key of this group alone"
    with ReformCase(nursery, 3, init={"key": key}, reform={"wait_s": 30.0}) as case:
        first = case.check(1, [0, 1, 2], [None] * 3)
        case.kill(0)
        for rank in (1, 2):
            case.wait(rank, "raised 1")
        case.wait_asleep(1, 2)
        wrong = case.newcomer(first[0]["addresses"], key="a key of another group")
        assert case.wait_end(wrong) == 78
        assert "has another key than a rank of the group that forms again" in case.text(wrong)
        new = case.newcomer(first[0]["addresses"])
        case.check(2, [1, 2, new], [1, 2, None])
        case.finish(0, wrong)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_frozen_rank_wakes(nursery: Nursery, victim: int) -> None:
    """The group goes on without it; when it wakes, it is told so, and disturbs nobody."""
    with ReformCase(nursery, 3, init=QUICK, reform={"min_size": 1}) as case:
        case.check(1, [0, 1, 2], [None] * 3)
        case.freeze(victim)
        left = case.others(victim)
        case.check(2, left, list(left))
        case.thaw(victim)
        out = case.wait(victim, "out")
        assert out.error["type"] == "StaleGroup"
        assert (
            "went on without this rank: its generation is 2 now, of 2 ranks" in out.error["message"]
        )
        assert out["took_s"] < 2 + allowance_s(case.began_ns)
        case.finish()


def test_two_that_should_serve_freeze_one_after_the_other(nursery: Nursery) -> None:
    """Each is given up in its turn, and the third serves; the two are told when they wake."""
    wish = {"min_size": 2, "timeout_s": 12.0}
    with ReformCase(nursery, 6, by_rank={2: {"slow": True}}, reform=wish) as case:
        case.check(1, [0, 1, 2, 3, 4, 5], [None] * 6)
        case.kill(5)
        for rank in case.others(5):
            case.wait(rank, "raised 1")
        case.wait_asleep(0, 1, 3, 4)
        case.freeze(0)
        case.freeze(1)
        case.tell(2)
        case.check(2, [2, 3, 4], [2, 3, 4])
        for rank in (0, 1):
            case.thaw(rank)
            assert case.wait(rank, "out").error["type"] == "StaleGroup"
        case.finish(5)


def test_too_few_come_because_two_freeze(nursery: Nursery) -> None:
    """The error tells who is gone, and who is there and did not go on."""
    wish = {"min_size": 4, "timeout_s": 6.0}
    with ReformCase(nursery, 5, by_rank={2: {"slow": True}}, reform=wish) as case:
        case.check(1, [0, 1, 2, 3, 4], [None] * 5)
        case.kill(4)
        for rank in case.others(4):
            case.wait(rank, "raised 1")
        case.wait_asleep(0, 1, 3)
        case.freeze(0)
        case.freeze(1)
        case.tell(2)
        for rank in (2, 3):
            error = case.wait(rank, "out").error
            assert error["type"] == "RendezvousError", error
            assert "rank 4 is gone: ended, or closed its group" in error["message"]
            for frozen in (0, 1):
                assert f"rank {frozen} is there, but given up" in error["message"]
        case.thaw(0)
        case.thaw(1)
        for rank in (0, 1):
            case.wait(rank, "out")
        case.finish(4)


def test_a_newcomer_that_the_device_matrix_does_not_have(nursery: Nursery) -> None:
    """It alone ends, with what to do; the others do not wait for it, though they were asked to."""
    init = {"fabric": "verbs", "devices": emulated.matrix(3)}
    with ReformCase(nursery, 3, init=init, reform={"wait_s": 60.0}) as case:
        first = case.check(1, [0, 1, 2], [None] * 3)
        case.kill(1)
        case.check(2, [0, 2], [0, 2])
        new = case.newcomer(first[0]["addresses"])
        assert case.wait_end(new) == 78
        assert "the RDMA devices of this group are given by a matrix" in case.text(new)
        assert "let all ranks end and start again" in case.text(new)
        case.finish(1, new)
