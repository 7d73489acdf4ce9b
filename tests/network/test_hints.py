"""Who is silent is named on every rank long before anybody is given up."""

from __future__ import annotations

import pytest

from tests.death.harness import Case
from tests.death.nursery import now_ns
from tests.death.processes import Nursery
from tests.network.cluster import side_by_side
from tests.network.faults import Faults
from tests.network.hosts import NETWORKS
from tests.network.judge import HINT_SLACK_S, check_well

LIMITS = {"heartbeat_s": 0.3, "hint_s": 0.9, "silence_s": 6.0}

SCENARIOS = {"idle": {}, "working": {"op": "all_reduce"}}
KINDS = {"cut": {"silent", "unreachable"}, "freeze": {"frozen"}}


def wait_for_kind(case: Case, rank: int, kinds: set[str]) -> None:
    """Wait for a hint of one of these kinds: who is silent in an operation is late at first."""

    def has_come() -> bool:
        hints = [event for event in case.ranks[rank].events if event.name == "hint"]
        return any(hint["kind"] in kinds and hint["rank"] == 2 for hint in hints)

    case.until(f"rank {rank} has a hint of {kinds}", has_come, limit_s=1.0)


@pytest.mark.parametrize("fault", KINDS)
def test_hint(network: Faults, nursery: Nursery, fault: str) -> None:
    """A host that is cut off, or a rank that is frozen, is hinted at; then all is well."""
    with side_by_side(network.hosts, nursery, SCENARIOS, init=LIMITS) as cases:
        since_ns = now_ns()
        if fault == "cut":
            network.cut(2, NETWORKS)
        else:
            for case in cases.values():
                case.freeze(2)
        for case in cases.values():
            for rank in case.others(2):
                hint = case.wait(rank, "hint", limit_s=LIMITS["hint_s"] + 2.0)
                assert hint["rank"] == 2, f"{hint}\n{case.story()}"
                assert "rank 2" in hint["text"], hint
                case.prompt(f"hint, {fault}", since_ns, hint.ns, LIMITS["hint_s"] + HINT_SLACK_S)
        for case in cases.values():
            for rank in case.others(2):
                wait_for_kind(case, rank, KINDS[fault])
        if fault == "cut":
            network.heal()
        else:
            for case in cases.values():
                case.thaw(2)
        for case in cases.values():
            check_well(case)
