"""How the kernel looks after our connections: keepalive, and a limit for unacknowledged data."""

from __future__ import annotations

import pytest

from tests.death.processes import Nursery
from tests.network.cluster import Cluster
from tests.network.faults import Faults
from tests.network.hosts import CONTROL, DATA, address_of

CONTROL_MS_MIN = 20_000


@pytest.mark.parametrize("silence_s", [2.0, 25.0])
def test_options(network: Faults, nursery: Nursery, silence_s: float) -> None:
    """Each connection: idle for some seconds, then probes 3 s apart; control's with a limit (R14).

    Idle for 10 s, or half the silence limit; three probes, or as many as an outage of the length
    of the silence limit needs: the network may be away for so long.

    A shorter limit than 20 s is the watch's own business, and that of data always is: what is not
    acknowledged is evidence for it, and no reason for the kernel to end a connection by itself.
    """
    init = {"silence_s": silence_s}
    with Cluster(network.hosts, nursery, "connections", init=init) as case:
        for rank in case.others():
            found = case.wait(rank, "connections")["found"]
            control, data = (
                [one for one in found if one["near"] == address_of(rank, name)]
                for name in (CONTROL, DATA)
            )
            assert (len(control), len(data)) == (1 if rank else 3, 3), found
            for one in found:
                assert one["keepalive"], one
                probes = max(3, int(silence_s / 3) + 1)
                idle_s = max(1, min(10, int(silence_s / 2)))
                assert (one["idle_s"], one["interval_s"], one["probes"]) == (idle_s, 3, probes), one
            limits_ms = {one["user_timeout_ms"] for one in control}
            assert limits_ms == {max(CONTROL_MS_MIN, silence_s * 1000)}, control
            assert {one["user_timeout_ms"] for one in data} == {0}, data
        case.finish()
