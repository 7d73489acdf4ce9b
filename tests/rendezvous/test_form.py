"""Groups form whatever the order and the addresses: several processes over loopback."""

from __future__ import annotations

import itertools
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import ConfigError, RendezvousError
from tests.rendezvous.processes import Ranks, assert_formed, free_address

KEY = b"sixteen bytes or more"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ranks_come_in_any_order(ranks: Ranks, order: tuple[int, ...]) -> None:
    """Every start order forms the group, and no byte of later traffic is lost."""
    started = {rank: ranks.start(rank, 3, talk=True) for rank in order}
    assert_formed([started[rank] for rank in range(3)])


@pytest.mark.parametrize("fabric", ["auto", "tcp"])
@pytest.mark.parametrize("key", [None, KEY])
def test_every_pair_gets_a_wire(ranks: Ranks, fabric: str, key: bytes | None) -> None:
    """With and without a key, each pair is joined by the fabric that was asked for."""
    team = ranks.start_all(5, fabric=fabric, key=key, talk=True)
    for outcome in assert_formed(team):
        expected = "tcp" if fabric == "tcp" else "shm"
        assert set(outcome.wires.values()) == {expected}
        assert all(link.startswith(expected) for link in outcome.links.values())
        assert outcome.ranks_here == 5
        assert all(peer.same_host for peer in outcome.peers)


def test_the_native_core_makes_the_segments(ranks: Ranks) -> None:
    """Without a stand-in, shared memory is the core's own, and none of it keeps its name."""
    pytest.importorskip("standfast._core")
    team = ranks.start_all(3, native=True, fabric="shm", talk=True)
    for outcome in assert_formed(team):
        assert set(outcome.wires.values()) == {"shm"}
    pids = {str(rank.pid) for rank in team}
    assert not [path for path in Path("/dev/shm").glob("sf-*") if path.name.split("-")[1] in pids]


def test_a_late_rank_is_waited_for(ranks: Ranks) -> None:
    """Ranks that came early join the last one whenever it comes, promptly."""
    early = [ranks.start(rank, 3) for rank in (0, 1)]
    early[1].reached("joined")
    late = ranks.start(2, 3)
    outcomes = assert_formed([*early, late])
    assert outcomes[2].seconds < 5


def test_a_late_coordinator_is_waited_for(ranks: Ranks) -> None:
    """The others knock until rank 0 listens."""
    early = [ranks.start(rank, 3) for rank in (1, 2)]
    time.sleep(0.1)  # Lets them be refused a few times; nothing is asserted about how often.
    assert_formed([ranks.start(0, 3), *early])


def test_a_group_of_one_needs_nobody(ranks: Ranks) -> None:
    """Size 1 works without a coordinator and opens nothing."""
    outcome = ranks.start(0, 1, coordinator=None).outcome()
    assert outcome.error is None, outcome.traceback
    assert (outcome.control, outcome.wires, outcome.ranks_here) == ((), {}, 1)


def test_two_hosts_are_joined_by_tcp(ranks: Ranks) -> None:
    """Shared memory joins the ranks of one host, tcp those of different ones."""
    team = [ranks.start(rank, 4, host="ab"[rank // 2], talk=True) for rank in range(4)]
    outcomes = assert_formed(team)
    assert outcomes[0].wires == {1: "shm", 2: "tcp", 3: "tcp"}
    assert outcomes[3].wires == {0: "tcp", 1: "tcp", 2: "shm"}
    assert [outcome.ranks_here for outcome in outcomes] == [2, 2, 2, 2]
    assert [peer.host for peer in outcomes[0].peers] == ["a", "a", "b", "b"]
    assert [peer.same_host for peer in outcomes[2].peers] == [False, False, True, True]


@pytest.mark.parametrize("broken", ["create", "attach"])
def test_tcp_takes_over_where_memory_cannot_be_shared(ranks: Ranks, broken: str) -> None:
    """With fabric=auto both ends of a pair fall back to tcp, on the same connection."""
    team = [
        ranks.start(rank, 3, broken=(broken,) if rank == 1 else (), talk=True) for rank in range(3)
    ]
    outcomes = assert_formed(team)
    # The lower rank makes the segment, the higher attaches it.
    (a, b), (c, d) = ((1, 2), (0, 2)) if broken == "create" else ((0, 1), (1, 2))
    assert outcomes[a].wires[b] == outcomes[b].wires[a] == "tcp"
    assert outcomes[c].wires[d] == outcomes[d].wires[c] == "shm"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_the_coordinator_may_be_given_in_any_form(ranks: Ranks, host: str) -> None:
    """IPv4, IPv6 and names lead to the same group."""
    port = ranks.address.rpartition(":")[2]
    text = free_address("::1") if host == "::1" else f"{host}:{port}"
    assert_formed(ranks.start_all(2, coordinator=text, fabric="tcp", talk=True))


def test_a_link_local_address_names_its_interface(ranks: Ranks) -> None:
    """A scoped address reaches the coordinator and, with the same scope, the data ports."""
    scoped = [
        f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))}%{words[5]}"
        for words in map(str.split, Path("/proc/net/if_inet6").read_text().splitlines())
        if words[3] == "20"
    ]
    if not scoped:
        pytest.skip("no interface has a link-local address")
    port = ranks.address.rpartition(":")[2]
    text = f"[{scoped[0]}]:{port}"
    team = [ranks.start(rank, 3, coordinator=text, host=f"h{rank}", talk=True) for rank in range(3)]
    outcomes = assert_formed(team)
    assert scoped[0].partition("%")[2] in outcomes[2].links[1]


def test_rank_0_may_bind_all_addresses(ranks: Ranks) -> None:
    """0.0.0.0:port is a bind address for rank 0; ranks that reach it differently still meet."""
    port = ranks.address.rpartition(":")[2]
    first = ranks.start(0, 3, coordinator=f"0.0.0.0:{port}", talk=True)
    others = [ranks.start(rank, 3, talk=True) for rank in (1, 2)]
    assert_formed([first, *others])


def test_a_bind_address_is_of_no_use_to_others(ranks: Ranks) -> None:
    """A rank that would have to connect to 0.0.0.0 is told so at once."""
    outcome = ranks.start(1, 2, coordinator="0.0.0.0:29500").outcome()
    assert isinstance(outcome.error, ConfigError)
    assert "only rank 0" in str(outcome.error)


def test_a_name_is_looked_up_until_it_exists(ranks: Ranks) -> None:
    """Rank 0 listens on all addresses for a name; the others look it up."""
    port = ranks.address.rpartition(":")[2]
    names = {"coordinator.example": "127.0.0.1"}
    text = f"coordinator.example:{port}"
    assert_formed(ranks.start_all(2, coordinator=text, lookups=names, talk=True))


@pytest.mark.parametrize("way", ["object", "fd"])
def test_a_listener_may_be_handed_over(ranks: Ranks, way: str) -> None:
    """Rank 0 takes a given listener, which serves the next generation as well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for generation in (1, 2):
            early = ranks.start(1, 2, coordinator=address, generation=generation, talk=True)
            given: dict[str, Any] = {"listener": way, "generation": generation, "talk": True}
            first = ranks.start(0, 2, coordinator=None, fds=(listener,), **given)
            assert_formed([first, early])


def test_a_descriptor_that_does_not_listen_is_refused(ranks: Ranks) -> None:
    """listen_fd must be a listening socket."""
    with socket.socket() as sock:
        outcome = ranks.start(0, 2, listener="fd", fds=(sock,)).outcome()
    assert isinstance(outcome.error, ConfigError)
    assert "STANDFAST_LISTEN_FD" in str(outcome.error)


def test_only_rank_0_listens(ranks: Ranks) -> None:
    """A listener for another rank is a mistake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outcome = ranks.start(1, 2, listener="object", fds=(listener,)).outcome()
    assert isinstance(outcome.error, ConfigError)


def test_a_port_in_use_is_named(ranks: Ranks) -> None:
    """Rank 0 says which port another process holds, after a short while."""
    host, _, port = ranks.address.rpartition(":")
    with socket.create_server((host, int(port))):
        outcome = ranks.start(0, 2).outcome()
    assert isinstance(outcome.error, RendezvousError)
    assert outcome.error.address == ranks.address
    assert "EADDRINUSE" in str(outcome.error)
    assert f"port {port}" in str(outcome.error)
    assert outcome.leaked == []
    assert outcome.seconds < 10


def test_a_port_that_becomes_free_is_taken(ranks: Ranks) -> None:
    """The last generation's listener may take a moment to go."""
    host, _, port = ranks.address.rpartition(":")
    holder = socket.create_server((host, int(port)))
    team = [ranks.start(0, 2), ranks.start(1, 2)]
    time.sleep(0.2)
    holder.close()
    assert_formed(team)


def test_an_address_of_another_machine_is_named(ranks: Ranks) -> None:
    """Rank 0 on the wrong machine is told so."""
    outcome = ranks.start(0, 2, coordinator="203.0.113.7:29500").outcome()
    assert isinstance(outcome.error, RendezvousError)
    assert "EADDRNOTAVAIL" in str(outcome.error)
    assert "not an address of this machine" in str(outcome.error)


@pytest.mark.parametrize("wanted", ["127.0.0.1", "lo", "127.0.0.0/8"])
def test_the_data_address_can_be_chosen(ranks: Ranks, wanted: str) -> None:
    """An address, an interface or a subnet says where a rank listens for data."""
    team = ranks.start_all(2, data_address=wanted, fabric="tcp", talk=True)
    outcomes = assert_formed(team)
    assert re.fullmatch(r"tcp 127\.0\.0\.1:\d+", outcomes[1].links[0])


def test_a_data_address_that_is_not_here_is_refused(ranks: Ranks) -> None:
    """An address of no interface is a mistake of the caller, named with its variable."""
    for wanted in ("203.0.113.7", "nosuch0"):
        outcome = ranks.start(0, 2, data_address=wanted).outcome()
        assert isinstance(outcome.error, ConfigError)
        assert "STANDFAST_DATA_ADDRESS" in str(outcome.error)
        assert wanted in str(outcome.error)
        assert outcome.leaked == []
