"""SIGKILL of every position of 4 ranks, in a wait and at work, in every operation.

Every survivor raises PeerDied that names the dead rank, within 1 s, while all survivors live on.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath, check_death
from tests.death.operations import MAIN, MIXED, OPS, waits_in
from tests.death.processes import Nursery

SIZE = 4
FABRICS = ("shm", "tcp", "verbs")
TOPOLOGIES = ("mesh", "ring")


def kill_away(nursery: Nursery, op: str, fabric: str, topology: str, victim: int) -> None:
    """All wait in the operation for a rank that stays away from it; it is killed."""
    args = {"op": op, "peer": victim, "idle": [victim]}
    with _case(nursery, "blocked", args, fabric, topology) as case:
        case.wait_all("ready")
        survivors = case.others(victim)
        case.wait_asleep(*survivors)
        killed_ns = case.kill(victim)
        for rank in survivors:
            error = check_death(case, rank, victim, killed_ns, f"{op} {fabric} {topology}")
            if waits_in(op, rank, victim, SIZE):
                assert error["op"] == OPS[op].name, error
        check_aftermath(case, survivors)


def kill_waiting(nursery: Nursery, op: str, fabric: str, topology: str, victim: int) -> None:
    """A rank that waits in the operation is killed; one that is late for it hears, too."""
    late = (victim + 1) % SIZE
    args = {"op": op, "peer": late, "idle": [late]}
    with _case(nursery, "blocked", args, fabric, topology) as case:
        case.wait_all("ready")
        waiting = case.others(late)
        case.wait_asleep(*waiting)
        killed_ns = case.kill(victim)
        for rank in case.others(late, victim):
            check_death(case, rank, victim, killed_ns, f"{op} {fabric} {topology}")
        case.tell(late)
        error = case.error(late)
        assert error["took_s"] < case.allowed_s(0.5), f"the late rank waited\n{case.story()}"
        check_death(case, late, victim, killed_ns, None, began=False)
        check_aftermath(case, case.others(victim))


def kill_busy(nursery: Nursery, op: str, fabric: str, topology: str, victim: int) -> None:
    """All ranks are at work, none waits for long; one is killed. What came before was right."""
    args = {"op": op}
    with _case(nursery, "busy", args, fabric, topology) as case:
        case.wait_all("ready")
        killed_ns = case.kill(victim)
        survivors = case.others(victim)
        for rank in survivors:
            label = f"{op} {fabric} {topology}"
            check_death(case, rank, victim, killed_ns, label, began=False)
        check_aftermath(case, survivors)


def kill_mixed(
    nursery: Nursery, op: str, fabric: str, topology: str, victim: int, delay_s: float
) -> None:
    """As kill_busy, but at any moment of all operations."""
    with _case(nursery, "busy", {"op": op}, fabric, topology) as case:
        case.wait_all("ready")
        case.pause(delay_s)
        killed_ns = case.kill(victim)
        survivors = case.others(victim)
        for rank in survivors:
            check_death(case, rank, victim, killed_ns, f"{op} {fabric} {topology}", began=False)
        check_aftermath(case, survivors)


def _case(
    nursery: Nursery, scenario: str, args: dict[str, Any], fabric: str, topology: str
) -> Case:
    init = {"fabric": fabric, "topology": topology}
    return Case(nursery, SIZE, scenario, args, init=init, quick_end=True)


# Over RDMA, which is emulated, each operation in one topology.
PLACES = [
    place
    for turn, place in enumerate(itertools.product(OPS, FABRICS, TOPOLOGIES))
    if place[1] != "verbs" or turn // len(TOPOLOGIES) % 2 == turn % len(TOPOLOGIES)
]


@pytest.mark.parametrize(("op", "fabric", "topology"), PLACES)
def test_every_position(nursery: Nursery, op: str, fabric: str, topology: str) -> None:
    """Whoever is killed, wherever it stands: every survivor raises PeerDied within 1 s."""
    turn = list(itertools.product(OPS, FABRICS, TOPOLOGIES)).index((op, fabric, topology))
    away = range(SIZE)
    if op not in MAIN:  # each position once per fabric
        away = range(TOPOLOGIES.index(topology), SIZE, 2)
    for victim in away:
        kill_away(nursery, op, fabric, topology, victim)
    kill_waiting(nursery, op, fabric, topology, (turn // 4 + turn % 4) % SIZE)
    kill_busy(nursery, op, fabric, topology, (turn // 4 + turn % 4 + 2) % SIZE)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("fabric", FABRICS)
def test_mixed(nursery: Nursery, fabric: str, topology: str) -> None:
    """The ranks go through all operations, one after the other; one is killed at any moment."""
    for victim in range(SIZE):
        delay_s = random.uniform(0.0, 0.05)
        print(f"rank {victim} after {delay_s} s")
        kill_mixed(nursery, MIXED, fabric, topology, victim, delay_s)


@pytest.mark.parametrize("fabric", FABRICS)
def test_ring_of_six(nursery: Nursery, fabric: str) -> None:
    """Ranks that exchange no data with the dead one hear of it like its neighbours (R07)."""
    args = {"op": "all_reduce large", "peer": 3, "idle": [3]}
    init = {"fabric": fabric, "topology": "ring"}
    with Case(nursery, 6, "blocked", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(3))
        killed_ns = case.kill(3)
        for rank in case.others(3):
            error = check_death(case, rank, 3, killed_ns, f"ring of six {fabric}")
            assert error["waiting_for"] in ((rank - 1) % 6, (rank + 1) % 6), error
        check_aftermath(case, case.others(3))


def test_eight_ranks(nursery: Nursery) -> None:
    """8 ranks on shared memory, one killed in the reduction: 7 raise, and burn no core (R06)."""
    with Case(nursery, 8, "busy", {"op": "all_reduce large"}, init={"fabric": "shm"}) as case:
        case.wait_all("ready")
        killed_ns = case.kill(5)
        for rank in case.others(5):
            check_death(case, rank, 5, killed_ns, "eight ranks shm", began=False)
        before = {rank: case.cpu_s(rank) for rank in case.others(5)}
        case.pause(1.0)
        for rank, cpu_s in before.items():
            assert case.cpu_s(rank) - cpu_s < 0.2, f"rank {rank} spins on\n{case.story()}"
        check_aftermath(case, case.others(5))


def test_rank_with_much_memory(nursery: Nursery) -> None:
    """Linux frees memory before it closes sockets: a rank with 1 GiB is missed in time."""
    code = """
        group = here.init()
        ballast = np.ones(1 << 27) if here.rank == 2 else None
        group.barrier()
        here.say("ready")
        if here.rank == 2:
            here.ask()
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 4, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(2))
        killed_ns = case.kill(2)
        for rank in case.others(2):
            check_death(case, rank, 2, killed_ns, "rank with 1 GiB")
        check_aftermath(case, case.others(2))


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", ["all_reduce", "recv", "send", "barrier"])
def test_two_threads(nursery: Nursery, op: str, fabric: str) -> None:
    """Two threads of a rank in one group: the one that waits and the one behind it both raise."""
    args = {"op": op, "peer": 1, "idle": [1]}
    with Case(nursery, 3, "threads", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(1))
        killed_ns = case.kill(1)
        for rank in case.others(1):
            for name in ("raised a", "raised b"):
                event = case.wait(rank, name)
                assert event.error["type"] == "PeerDied", event
                assert event.error["rank"] == 1, event
                case.prompt(f"two threads {fabric}", killed_ns, event.ns, PROMISE_S)
        case.finish(1)
