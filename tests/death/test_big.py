"""A rank that has touched much memory is killed: all survivors know before that memory is freed.

Without the beacon they know when the kernel is done with it: the same tests, with it turned off,
show that they can fail.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest

from tests.death.harness import Case
from tests.death.judge import check_aftermath, check_death
from tests.death.measures import MEASURES, allowance_s
from tests.death.processes import Nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the beacon is Linux's")

GIB = 1 << 30
SIZE = 4
# Aimed at is 10 ms; the machine that runs the tests may be loaded.
EARLY_S = 0.05
BEACON = "its beacon was passed on"

CODE = f"""
    import mmap
    from standfast.rendezvous import hello

    if here.rank in here.args["alone"]:
        hello.host_id = lambda: f"host-{{here.rank}}"
        hello.host_name = lambda: f"host-{{here.rank}}"
    group = here.init()
    if here.rank == here.args["victim"]:
        # Small pages, as most programs have them: the kernel frees them one by one.
        ballast = mmap.mmap(-1, {4 * GIB}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        ballast.madvise(mmap.MADV_NOHUGEPAGE)
        np.frombuffer(ballast, np.uint8)[:: mmap.PAGESIZE] = 1
    group.barrier()
    here.say("ready")
    if here.rank == here.args["victim"]:
        here.ask()
    attempt("barrier", group.barrier)
    aftermath(here, group)
    """


class Raised(NamedTuple):
    """What a survivor raised, when, when it was due, and when the dead process was gone."""

    after_s: float
    due_s: float
    gone_s: float
    error: dict[str, Any]


def kill_big(
    nursery: Nursery, victim: int, alone: list[int], label: str, **settings: Any
) -> list[Raised]:
    """Kill a rank with 4 GiB; return what each of the others raised."""
    args = {"code": CODE, "victim": victim, "alone": alone}
    with Case(nursery, SIZE, "program", args, init=settings, deadline_s=60.0) as case:
        case.wait_all("ready")
        survivors = case.others(victim)
        case.wait_asleep(*survivors)
        killed_ns = case.kill(victim)
        # Without a label: that would assert the promised second, which only the beacon keeps.
        errors = [check_death(case, rank, victim, killed_ns, None) for rank in survivors]
        after_s = [(case.error(rank).ns - killed_ns) / 1e9 for rank in survivors]
        gone_s = (case.ranks[victim].ended_ns - killed_ns) / 1e9
        allowed_s = EARLY_S + allowance_s(killed_ns)
        check_aftermath(case, survivors)
    for seconds in after_s:
        MEASURES.add(label, seconds)
    print(f"{label}: raised after {after_s} s, the process was gone after {gone_s} s")
    return [
        Raised(seconds, allowed_s, gone_s, error)
        for seconds, error in zip(after_s, errors, strict=True)
    ]


# Rank 2 has neighbours; rank 0 is the one that tells the others.
@pytest.mark.parametrize(
    ("victim", "alone"),
    [(2, []), (0, []), (0, [3]), (1, [1]), (0, [0]), (2, [0, 1, 2, 3])],
    ids=["neighbours", "rank-0", "rank-0-of-two-hosts", "alone", "rank-0-alone", "all-alone"],
)
def test_death_of_a_big_rank(nursery: Nursery, victim: int, alone: list[int]) -> None:
    """All survivors, on its host and elsewhere, name it at once, and say by which sign."""
    for raised in kill_big(nursery, victim, alone, "4 GiB, with beacon"):
        assert raised.after_s < min(raised.due_s, raised.gone_s), raised
        assert BEACON in raised.error["message"], raised


@pytest.mark.parametrize(
    ("alone", "settings"),
    [([], {"beacon": False}), ([2], {"sentinel": False})],
    ids=["no-beacon", "no-sentinel"],
)
def test_without_it_the_death_is_late(
    nursery: Nursery, alone: list[int], settings: dict[str, bool]
) -> None:
    """The fault is one: without the beacon, or the sentinel, nobody knows for a while."""
    for raised in kill_big(nursery, 2, alone, "4 GiB, without", **settings):
        assert raised.after_s > EARLY_S, raised
        assert BEACON not in raised.error["message"], raised
