"""The network tests can fail: a watch that hears of nothing in time is noticed."""

from __future__ import annotations

import pytest

from tests.death.harness import Late
from tests.death.processes import Nursery
from tests.network.cluster import LIMITS, Cluster
from tests.network.faults import Faults
from tests.network.judge import SLACK_S, check_verdict

BLIND = {**LIMITS, "hint_s": 20.0, "silence_s": 40.0}


def test_blind(network: Faults, nursery: Nursery) -> None:
    """With limits that never come a vanished host is missed by nobody, and the check says so."""
    deadline_s = LIMITS["silence_s"] + SLACK_S
    with Cluster(network.hosts, nursery, "idle", init=BLIND, deadline_s=deadline_s) as case:
        case.wait_all("ready")
        cut = network.vanish(2)
        case.kill(2)
        with pytest.raises(Late):
            check_verdict(case, case.others(2), cut.ns, "blind", named=[2])
        assert not [event for one in case.ranks.values() for event in one.events[1:]], case.story()
        cut.took_effect()
