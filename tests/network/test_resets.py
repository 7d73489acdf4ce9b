"""One TCP connection is reset while both of its ends live: all ranks raise, about one of them."""

from __future__ import annotations

import pytest

from tests.death.judge import check_aftermath
from tests.death.nursery import now_ns
from tests.death.processes import Nursery
from tests.network.cluster import Cluster
from tests.network.faults import Faults
from tests.network.hosts import CONTROL, DATA
from tests.network.judge import RESET_S, check_verdict

TYPES = ("LinkLost", "PeerDied")


@pytest.mark.parametrize("scenario", ["working", "idle"])
@pytest.mark.parametrize(("host", "peer"), [(2, 0), (0, 2)])
def test_control(network: Faults, nursery: Nursery, host: int, peer: int, scenario: str) -> None:
    """A control link is reset: all others lose that rank, and it loses rank 0."""
    args = {"op": "all_reduce large"}
    with Cluster(network.hosts, nursery, scenario, args) as case:
        case.wait_all("ready")
        since_ns = network.reset(host, CONTROL, peer)
        for ranks, named in (([0, 1, 3], 2), ([2], 0)):
            check_verdict(
                case, ranks, since_ns, "reset, control", types=TYPES, named=[named], limit_s=RESET_S
            )
        check_aftermath(case, case.others())


@pytest.mark.parametrize("scenario", ["working", "called"])
def test_data(network: Faults, nursery: Nursery, scenario: str) -> None:
    """A data connection is reset, at work or before it is used: all name the same end of it."""
    args = {"op": "all_reduce large"}
    with Cluster(network.hosts, nursery, scenario, args) as case:
        case.wait_all("ready")
        since_ns = network.reset(1, DATA, 2)
        if scenario == "called":
            case.pause(0.5)
            assert not any(one.said("raised") for one in case.ranks.values()), case.story()
            since_ns = now_ns()
            for rank in case.others():
                case.tell(rank)
        check_verdict(
            case,
            case.others(),
            since_ns,
            f"reset, data, {scenario}",
            types=["LinkLost"],
            named=[1, 2],
            limit_s=RESET_S,
        )
        check_aftermath(case, case.others())
