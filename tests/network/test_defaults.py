"""Limits as they are without any setting: a hint after 3 s, the verdict after 20 s.

This takes its time, so three sets of hosts suffer different faults at once.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from tests.death.nursery import now_ns
from tests.death.processes import Nursery
from tests.network.cluster import Cluster, side_by_side
from tests.network.faults import Faults
from tests.network.hosts import CONTROL, NETWORKS, Hosts
from tests.network.judge import check_goes_on, check_well, hints_about
from tests.network.vanishing import check_given_up, check_hints, lose_power, scenarios

HINT_S = 3.0
SILENCE_S = 20.0
SHORT_S = 14.0
"""Without a bound on its pauses, TCP does not try between 12.6 s and 25.4 s."""
LATER_S = 3.0
"""The kernel gives up a control link at the silence limit; all shall be well beyond."""

TCP_RTO_MAX_MS = 44
MORE: dict[str, Any] = {"init": {}, "deadline_s": 50.0}


def bounds_pauses() -> bool:
    """Tell whether this kernel can bound the pauses between TCP's attempts (Linux 6.15)."""
    with socket.socket() as sock, contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, 1000)
        return True
    return False


def test_default_limits(network: Faults, nursery: Nursery) -> None:
    """A vanished host is hinted at, then given up. Short cuts, and cuts of control alone, are not.

    In detail: on hosts of their own, a host is cut off for less than the limit, and another loses
    control until the kernel has given its links up; both then go on.
    """
    with contextlib.ExitStack() as stack:
        briefly = Faults(stack.enter_context(Hosts(2)))
        without = Faults(stack.enter_context(Hosts(2)))
        both = {"idle": {}, "working": {"op": "all_reduce large"}}
        patient = stack.enter_context(side_by_side(briefly.hosts, nursery, both, **MORE))
        working = stack.enter_context(
            Cluster(without.hosts, nursery, "working", {"op": "all_reduce"}, **MORE)
        )
        cases = stack.enter_context(side_by_side(network.hosts, nursery, scenarios(2), **MORE))
        working.wait_all("ready")

        short = briefly.cut(1, NETWORKS)
        control = without.cut(1, [CONTROL])
        gone = lose_power(network, cases, 2)
        check_hints(cases, 2, gone, HINT_S)
        working.pause(SHORT_S - (now_ns() - short.ns) / 1e9)
        short.took_effect()
        briefly.heal()
        check_given_up(cases, 2, gone, SILENCE_S)
        check_goes_on(working, LATER_S)
        control.took_effect()

        check_well(working)
        assert 1 in hints_about(working, 0), working.story()
        if not bounds_pauses():
            pytest.skip("this kernel knows no TCP_RTO_MAX_MS: short cuts are not judged")
        check_goes_on(patient["working"], 0.0)
        for case in patient.values():
            check_well(case)
