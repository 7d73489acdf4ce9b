"""Hosts are lost, and the ranks on the others form their group again."""

from __future__ import annotations

from tests.death.processes import Nursery
from tests.network.cluster import LIMITS, Cluster
from tests.network.faults import Faults
from tests.network.hosts import DATA, NETWORKS, address_of
from tests.reform.harness import Generations

WORK = "tests.reform.scenarios:work"


class ReformCluster(Cluster, Generations):
    """Ranks on hosts of their own, which survive, and at most one newcomer, on host 0."""

    def newcomer(self, addresses: list[str]) -> int:
        """Start a process that asks at these addresses; return the number that it has here."""
        self._init = {
            **LIMITS,
            "data_address": address_of(0, DATA),
            "join": ",".join(addresses),
        }
        self._start(self.size)
        return self.size

    def host_of(self, rank: int) -> dict[str, str] | None:
        """Return the host on which a process lives."""
        return super().host_of(rank % self.size)


def test_the_coordinators_host_vanishes(network: Faults, nursery: Nursery) -> None:
    """Rank 0 is lost with its host: the others, on three hosts, find each other without it."""
    with ReformCluster(network.hosts, nursery, WORK, {"reform": {"timeout_s": 20.0}}) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        cut = network.vanish(0)
        case.kill(0)
        events = case.check(2, [1, 2, 3], [1, 2, 3])
        assert max(event["took_s"] for event in events) < 5, case.story()
        cut.took_effect()
        case.finish(0)


def test_a_host_is_cut_off_for_a_while(network: Faults, nursery: Nursery) -> None:
    """The others go on; when the cut-off rank is heard again, it is told that it came too late."""
    with ReformCluster(network.hosts, nursery, WORK, {"reform": {"timeout_s": 30.0}}) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        cut = network.cut(2, NETWORKS)
        case.check(2, [0, 1, 3], [0, 1, 3])
        case.wait(2, "raised 1")
        cut.took_effect()
        network.heal()
        out = case.wait(2, "out")
        assert out.error["type"] == "StaleGroup", case.story()
        case.finish()


def test_a_newcomer_from_another_host(network: Faults, nursery: Nursery) -> None:
    """Rank 0 dies, and its host gets a newcomer, which finds the others by the data network."""
    with ReformCluster(network.hosts, nursery, WORK, {"reform": {"wait_s": 30.0}}) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        addresses = case.wait(1, "formed 1")["addresses"]
        assert [text.rpartition(":")[0] for text in addresses] == [
            address_of(rank, DATA) for rank in range(4)
        ]
        case.kill(0)
        for rank in case.others(0):
            case.wait(rank, "raised 1")
        new = case.newcomer(addresses)
        case.check(2, [1, 2, 3, new], [1, 2, 3, None])
        case.finish(0)


def test_two_halves(network: Faults, nursery: Nursery) -> None:
    """A network cut in two leaves no two groups: no half is more than half, and both are told."""
    with ReformCluster(network.hosts, nursery, WORK, {"reform": {"timeout_s": 4.0}}) as case:
        case.check(1, [0, 1, 2, 3], [None] * 4)
        cut = network.partition([0, 1], [2, 3])
        for rank in range(4):
            out = case.wait(rank, "out")
            assert out.error["type"] == "RendezvousError", case.story()
            assert "3 of the 4 ranks are needed" in out.error["message"]
        cut.took_effect()
        case.finish()
