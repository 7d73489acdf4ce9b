"""Hosts that are missing while a group is formed: one deadline, and the missing named."""

from __future__ import annotations

from tests.death.processes import Nursery
from tests.network.cluster import Cluster
from tests.network.faults import Faults
from tests.network.hosts import DATA, NETWORKS

DEADLINE_S = 1.5
SLACK_S = 1.0
CODE = """
    attempt("init", lambda: here.init(timeout_s=here.args["timeout_s"]))
    here.ask()
    """
PROGRAM = "tests.death.scenarios:program"
ARGS = {"code": CODE, "timeout_s": DEADLINE_S}


def check_missing(case: Cluster, ranks: list[int], missing: list[int]) -> None:
    """Assert that these ranks name the missing ones at the deadline."""
    for rank in ranks:
        event = case.error(rank)
        assert event.error["type"] == "RendezvousError", f"{event}\n{case.story()}"
        assert event.error["missing"] == missing, f"{event}\n{case.story()}"
        case.prompt("forming", case.began_ns, event.ns, DEADLINE_S + SLACK_S)


def test_never_joined(network: Faults, nursery: Nursery) -> None:
    """A rank of another host never starts: all others name it."""
    with Cluster(network.hosts, nursery, PROGRAM, ARGS, absent=[2]) as case:
        check_missing(case, case.others(), [2])
        case.finish()


def test_unreachable_coordinator(network: Faults, nursery: Nursery) -> None:
    """A host that can't reach rank 0 says so; those who can name its rank."""
    cut = network.cut(2, NETWORKS)
    with Cluster(network.hosts, nursery, PROGRAM, ARGS) as case:
        check_missing(case, case.others(2), [2])
        check_missing(case, [2], [0])
        error = case.error(2).error
        assert error["attempts"] >= 1, error
        assert error["address"] == case.address, error
        assert error["address"] in error["message"], error
        # Two hosts of a network have a route; the second look is cut off as the first one was.
        assert "there is a route from" in error["message"], error
        assert "a process of its own reaches it" not in error["message"], error
        assert any(cut.stopped().values()), "the fault did not take effect"
        case.finish()


def test_data_ports_unreachable(network: Faults, nursery: Nursery) -> None:
    """All have come to rank 0, but one host's data network is cut: its rank is named."""
    cut = network.cut(2, [DATA])
    with Cluster(network.hosts, nursery, PROGRAM, ARGS) as case:
        for rank in case.others():
            event = case.error(rank)
            assert event.error["type"] == "RendezvousError", f"{event}\n{case.story()}"
            assert event.error["rank"] == 2, f"{event}\n{case.story()}"
            assert "rank 2" in event.error["message"], event
            case.prompt("forming", case.began_ns, event.ns, DEADLINE_S + SLACK_S)
        assert any(cut.stopped().values()), "the fault did not take effect"
        case.finish()
