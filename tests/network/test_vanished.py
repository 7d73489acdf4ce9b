"""A host is gone from one moment to the next, without a word: PeerUnreachable, in time."""

from __future__ import annotations

import pytest

from tests.death.judge import check_aftermath
from tests.death.processes import Nursery
from tests.network.cluster import LIMITS, Cluster, side_by_side
from tests.network.faults import Faults
from tests.network.hosts import NETWORKS
from tests.network.judge import check_verdict
from tests.network.vanishing import check_given_up, check_hints, lose_power, scenarios


@pytest.mark.parametrize("victim", [0, 2])
def test_vanished(network: Faults, nursery: Nursery, victim: int) -> None:
    """A host loses power, rank 0's too: idle, in a wait and at work, all others name its rank."""
    with side_by_side(network.hosts, nursery, scenarios(victim)) as cases:
        cut = lose_power(network, cases, victim)
        check_hints(cases, victim, cut, LIMITS["hint_s"])
        check_given_up(cases, victim, cut, LIMITS["silence_s"])


def test_two_vanish(network: Faults, nursery: Nursery) -> None:
    """Two hosts lose power at once: the others all name the same rank of the two."""
    with Cluster(network.hosts, nursery, "working", {"op": "all_reduce"}) as case:
        case.wait_all("ready")
        cuts = [network.vanish(victim) for victim in (1, 3)]
        case.kill(1, 3)
        check_verdict(case, [0, 2], cuts[0].ns, "two vanish", named=[1, 3])
        for cut in cuts:
            cut.took_effect()
        check_aftermath(case, [0, 2])


@pytest.mark.parametrize("victim", [0, 2])
def test_cut_off(network: Faults, nursery: Nursery, victim: int) -> None:
    """A host that lives on alone: the others name its rank, and it does not hang either."""
    with Cluster(network.hosts, nursery, "idle") as case:
        case.wait_all("ready")
        cut = network.cut(victim, NETWORKS)
        others = case.others(victim)
        check_verdict(case, others, cut.ns, "cut off, the others", named=[victim])
        named = others if victim == 0 else [0]
        check_verdict(case, [victim], cut.ns, "cut off, itself", named=named)
        cut.took_effect()
        check_aftermath(case, case.others())


def test_partition(network: Faults, nursery: Nursery) -> None:
    """Two halves of two hosts: each names a rank of the other; rank 0 counts first."""
    with Cluster(network.hosts, nursery, "working", {"op": "all_reduce"}) as case:
        case.wait_all("ready")
        cut = network.partition([0, 1], [2, 3])
        check_verdict(case, [0, 1], cut.ns, "partition, rank 0's half", named=[2, 3])
        check_verdict(case, [2, 3], cut.ns, "partition, other half", named=[0])
        cut.took_effect()
        check_aftermath(case, case.others())
