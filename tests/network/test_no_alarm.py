"""Networks that are bad, but not broken: nothing is raised, and every result is right."""

from __future__ import annotations

import pytest

from tests.death.processes import Nursery
from tests.network.cluster import LIMITS, QUICK, Cluster, side_by_side
from tests.network.faults import OUT, Faults
from tests.network.hosts import NETWORKS, Hosts
from tests.network.judge import check_goes_on, check_well

SCENARIOS = {"idle": {}, "working": {"op": "all_reduce large"}}
SHORT_S = 0.6 * LIMITS["silence_s"]
"""TCP tries again 1.4 s after it first lost something, and then after 3 s."""


@pytest.mark.parametrize("host", [0, 2])
def test_short_cut(network: Faults, nursery: Nursery, host: int) -> None:
    """A host that is cut off for less than the silence limit goes on as if nothing had been."""
    with side_by_side(network.hosts, nursery, SCENARIOS) as cases:
        cut = network.cut(host, NETWORKS)
        cases["idle"].pause(SHORT_S)
        cut.took_effect()
        network.heal()
        # TCP tries again after growing pauses: some of this is its own.
        check_goes_on(cases["working"], 0.7 * LIMITS["silence_s"])
        for case in cases.values():
            check_well(case)


def test_short_cuts_again_and_again(network: Faults, nursery: Nursery) -> None:
    """Silences do not add up."""
    with Cluster(network.hosts, nursery, "idle", init=QUICK) as case:
        case.wait_all("ready")
        for turn in range(4):
            cut = network.cut(1 + turn % 2, NETWORKS)
            case.pause(0.4 * QUICK["silence_s"])
            cut.took_effect()
            network.heal()
            case.pause(0.2 * QUICK["silence_s"])
        check_well(case)


def test_loss(network: Faults, nursery: Nursery) -> None:
    """One packet of ten is lost, everywhere: default limits outlast the pauses of TCP."""
    scenarios = {"idle": {}, "working": {"op": "all_reduce"}}
    with side_by_side(network.hosts, nursery, scenarios, init={}) as cases:
        cut = network.lose(10)
        check_goes_on(cases["working"], 3.0)
        assert cut.stopped()[OUT] > 10, "the fault did not take effect"
        network.heal()
        for case in cases.values():
            check_well(case)


def test_delay(slow: Hosts, nursery: Nursery) -> None:
    """Every packet takes 200 ms: nothing is raised at the shortest silence limit there is."""
    scenarios = {"idle": {}, "working": {"op": "all_reduce"}}
    with side_by_side(slow, nursery, scenarios, init=QUICK) as cases:
        cases["idle"].pause(2.0 * QUICK["silence_s"])
        for case in cases.values():
            check_well(case)
