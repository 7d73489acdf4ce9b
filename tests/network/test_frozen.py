"""A rank stands still while its host answers: it stalled, and its network is not to blame."""

from __future__ import annotations

import pytest

from tests.death.judge import check_aftermath
from tests.death.processes import Nursery
from tests.network.cluster import Cluster, side_by_side
from tests.network.faults import Faults
from tests.network.hosts import Hosts
from tests.network.judge import SLACK_S, check_verdict

SCENARIOS = {"idle": {}, "working": {"op": "all_reduce"}}


@pytest.mark.parametrize("victim", [0, 2])
def test_frozen(network: Faults, nursery: Nursery, victim: int) -> None:
    """SIGSTOP: PeerStalled on all others; once it goes on, the stopped rank raises as well."""
    with side_by_side(network.hosts, nursery, SCENARIOS) as cases:
        frozen_ns = {scenario: case.freeze(victim) for scenario, case in cases.items()}
        for scenario, case in cases.items():
            check_verdict(
                case,
                case.others(victim),
                frozen_ns[scenario],
                f"frozen, {scenario}",
                types=["PeerStalled"],
                named=[victim],
            )
        for case in cases.values():
            case.thaw(victim)
            assert case.error(victim, limit_s=5.0).error["type"], case.story()
            check_aftermath(case, case.others())


def test_frozen_far_away(slow: Hosts, nursery: Nursery) -> None:
    """The same where every packet takes 200 ms, and something is always under way."""
    with Cluster(slow, nursery, "idle", init={"silence_s": 1.5}) as case:
        case.wait_all("ready")
        frozen_ns = case.freeze(2)
        check_verdict(
            case,
            case.others(2),
            frozen_ns,
            "frozen, far away",
            types=["PeerStalled"],
            named=[2],
            limit_s=1.5 + SLACK_S,
        )
        case.thaw(2)
        check_aftermath(case, case.others())
