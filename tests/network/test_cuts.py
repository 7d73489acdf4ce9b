"""One network, one direction or one pair is cut: who is lost, and what nobody may be ended for."""

from __future__ import annotations

import pytest

from tests.death.judge import check_aftermath
from tests.death.nursery import now_ns
from tests.death.processes import Nursery
from tests.network.cluster import QUICK, Cluster
from tests.network.faults import BOTH, IN, OUT, Faults
from tests.network.hosts import CONTROL, DATA, NETWORKS
from tests.network.judge import (
    LOST,
    check_goes_on,
    check_verdict,
    check_well,
    hints_about,
)

# A data connection gets one more attempt, 1 s, and then a broken wire 0.3 s for its reason.
DATA_CUT_LIMIT_S = QUICK["silence_s"] + 1 + 0.3 + 2 * QUICK["heartbeat_s"] + 0.3
SEVERAL_LIMITS_S = 3.1 * QUICK["silence_s"]
WORKING = {"op": "all_reduce"}


CONTROL_CUTS: dict[str, list[tuple[int, tuple[str, ...]]]] = {
    "rank 0": [(0, BOTH)],
    "others": [(1, (IN,)), (2, BOTH), (3, (OUT,))],
}
"""Hosts and directions; the control links of all others lead to rank 0 alone."""


@pytest.mark.parametrize("which", CONTROL_CUTS)
def test_control_only(network: Faults, nursery: Nursery, which: str) -> None:
    """Control alone is cut, both ways or one, while data flows: a hint, and never a verdict."""
    with Cluster(network.hosts, nursery, "working", WORKING, init=QUICK) as case:
        case.wait_all("ready")
        cuts = [network.cut(host, [CONTROL], ways) for host, ways in CONTROL_CUTS[which]]
        check_goes_on(case, SEVERAL_LIMITS_S)
        for cut in cuts:
            cut.took_effect()
        network.heal()
        check_goes_on(case, 0.7)
        check_well(case)
        missed = {rank: {0} for rank in (1, 2)} if which == "rank 0" else {0: {2, 3}}
        for rank, wanted in missed.items():
            assert hints_about(case, rank) >= wanted, f"rank {rank}\n{case.story()}"


@pytest.mark.parametrize("victim", [0, 3])
def test_death_behind_a_cut(network: Faults, nursery: Nursery, victim: int) -> None:
    """A rank dies while another can't hear of it over control: that one does not wait either."""
    with Cluster(network.hosts, nursery, "working", WORKING) as case:
        case.wait_all("ready")
        cut = network.cut(2, [CONTROL])
        check_goes_on(case, 0.5)
        killed_ns = case.kill(victim)
        others = case.others(victim, 2)
        check_verdict(
            case, others, killed_ns, "death", types=["PeerDied"], named=[victim], limit_s=1.0
        )
        named = {0, victim}
        types = ("PeerDied", *LOST)
        check_verdict(case, [2], killed_ns, "death behind a cut", types=types, named=named)
        cut.took_effect()
        check_aftermath(case, [1, 2])


@pytest.mark.parametrize(
    ("op", "directions"),
    [
        ("all_reduce large", BOTH),
        ("all_reduce", BOTH),
        ("all_reduce", (IN,)),
        ("all_reduce", (OUT,)),
    ],
    ids=["large", "small", "in", "out"],
)
def test_data_only(network: Faults, nursery: Nursery, directions: tuple[str, ...], op: str) -> None:
    """The data network of one host alone is cut at work: all raise, about a connection of it."""
    with Cluster(network.hosts, nursery, "working", {"op": op}, init=QUICK) as case:
        case.wait_all("ready")
        cut = network.cut(2, [DATA], directions)
        error = check_verdict(
            case,
            case.others(),
            cut.ns,
            "data cut",
            types=LOST,
            limit_s=DATA_CUT_LIMIT_S,
            named=range(4),
        )
        assert "rank 2" in error["message"], f"{error}\n{case.story()}"
        cut.took_effect()
        check_aftermath(case, case.others())


def test_data_of_a_pair(network: Faults, nursery: Nursery) -> None:
    """Two hosts can't exchange data: all raise, about one of the two."""
    with Cluster(network.hosts, nursery, "working", WORKING, init=QUICK) as case:
        case.wait_all("ready")
        cut = network.cut(1, [DATA], peers=[3])
        check_verdict(
            case,
            case.others(),
            cut.ns,
            "data of a pair",
            types=LOST,
            limit_s=DATA_CUT_LIMIT_S,
            named=[1, 3],
        )
        cut.took_effect()
        check_aftermath(case, case.others())


def test_data_while_idle(network: Faults, nursery: Nursery) -> None:
    """Data that nobody sends is not missed; the next operation is lost in time."""
    with Cluster(network.hosts, nursery, "called", WORKING, init=QUICK) as case:
        case.wait_all("ready")
        cut = network.cut(2, [DATA])
        case.pause(1.3 * QUICK["silence_s"])
        for rank in case.others():
            assert case.ranks[rank].said("raised") is None, case.story()
            case.tell(rank)
        told_ns = now_ns()
        check_verdict(
            case,
            case.others(),
            told_ns,
            "data cut while idle",
            types=LOST,
            limit_s=DATA_CUT_LIMIT_S,
            named=range(4),
        )
        cut.took_effect()
        check_aftermath(case, case.others())


@pytest.mark.parametrize("direction", BOTH)
def test_one_direction(network: Faults, nursery: Nursery, direction: str) -> None:
    """A host that is not heard, or does not hear, in either network: the others name its rank."""
    with Cluster(network.hosts, nursery, "working", WORKING) as case:
        case.wait_all("ready")
        cut = network.cut(2, NETWORKS, [direction])
        others = case.others(2)
        check_verdict(case, others, cut.ns, f"only {direction}, the others", named=[2])
        check_verdict(
            case, [2], cut.ns, f"only {direction}, itself", types=LOST, named=[0, 1, 2, 3]
        )
        cut.took_effect()
        check_aftermath(case, case.others())
