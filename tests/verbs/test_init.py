"""What keeps RDMA from being set up is the same FabricError on all ranks: code, device, words."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import StandfastError
from tests import emulated
from tests.emulated import Fabric, end
from tests.ranks import Job, Pool, run_ranks

Fields = dict[str, Any]


def attempt(arguments: dict[str, Any], fabric: str) -> Fields:
    """Form a group and add up; return what was raised, or {}."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    try:
        with standfast.init(**arguments) as group:
            total = group.all_sum(np.array([group.rank, 1]))
            assert list(total) == [group.size * (group.size - 1) / 2, group.size]
    except StandfastError as error:
        return error.to_dict()
    return {}


class Ranks:
    """Ranks on emulated Macs, which try to form a group."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __call__(self, size: int, fabric: Fabric, **init: Any) -> list[Fields]:
        """Return what each rank has raised."""
        given = {"fabric": "verbs", "timeout_s": 15.0, **init}
        args = (str(fabric.path),)
        ended = self.pool.run(size, attempt, *args, init=given, form=False, timeout_s=30)
        return [rank.value for rank in ended]


@pytest.fixture
def outcomes(pool: Pool) -> Ranks:
    """Processes that stay from test to test."""
    return Ranks(pool)


def same_everywhere(found: list[Fields], code: str, rank: int | None, *words: str) -> Fields:
    """Check that all ranks raised the same, with these words; return it."""
    for fields in found:
        assert fields.get("type") == "FabricError", found
        assert fields["code"] == code, found
        if rank is not None:
            assert fields["rank"] == rank, found
        for word in words:
            assert word in fields["message"], (word, fields["message"])
    assert len({fields["message"] for fields in found}) == 1, found
    return found[0]


def test_port_down(outcomes: Ranks) -> None:
    """A port without a cable is named on all ranks, with its state."""
    with Fabric() as fabric:
        fabric.command("cable c1-2-0 down")
        found = outcomes(3, fabric)
    fields = same_everywhere(
        found, "port_down", None, "couldn't allocate a protection domain", "port is DOWN"
    )
    assert fields["device"] in ("rdma_en1", "rdma_en2")
    assert "cable" in fields["hint"]


def test_no_such_device(outcomes: Ranks) -> None:
    """A name that the host does not have: the error says which there are."""
    matrix = emulated.matrix(2)
    matrix[1][0] = ["rdma_en9"]
    with Fabric() as fabric:
        found = outcomes(2, fabric, devices=matrix)
    same_everywhere(found, "no_such_device", 1, "no device rdma_en9", "rdma_en0")


def test_no_devices(outcomes: Ranks) -> None:
    """A host without RDMA."""
    with Fabric(emulated.fabric_text(1) + "host mac0\nhost mac1\n") as fabric:
        found = outcomes(2, fabric)
    same_everywhere(found, "no_devices", None, "RDMA is not available")


def test_no_library(outcomes: Ranks) -> None:
    """A system without a verbs library."""
    with Fabric() as fabric:
        found = outcomes(2, fabric, rdma_library="/nowhere/librdma.dylib")
    same_everywhere(found, "no_library", None, "/nowhere/librdma.dylib")


def test_library_unusable(outcomes: Ranks) -> None:
    """A library that lacks functions."""
    with Fabric() as fabric:
        found = outcomes(2, fabric, rdma_library="libc.so.6")
    same_everywhere(found, "library_unusable", None, "libc.so.6 has no function ibv_")


@pytest.mark.parametrize(
    ("call", "number", "code", "word"),
    [
        ("open_device", 5, "open_failed", "ibv_open_device"),
        ("query_device", 5, "call_failed", "ibv_query_device"),
        ("query_port", 5, "call_failed", "ibv_query_port"),
        ("alloc_pd", 12, "no_protection_domain", "ibv_alloc_pd"),
        ("reg_mr", 12, "no_memory_region", "ibv_reg_mr"),
        ("create_cq", 12, "no_completion_queue", "ibv_create_cq"),
        ("create_qp", 16, "queue_pairs_used_up", "all queue pairs of the device are in use"),
        ("create_qp", 102, "queue_pair_type", "does not offer this type"),
        ("modify_init", 22, "call_failed", "ibv_modify_qp"),
        ("modify_rtr", 22, "address_refused", "RTR on rdma_en0 towards rank 0"),
        ("modify_rtr", 60, "address_elsewhere", "60 (ETIMEDOUT on macOS), that address is not"),
        ("modify_rts", 16, "queue_pair_busy", "RTS on rdma_en0"),
        ("post_recv", 22, "call_failed", "ibv_post_recv"),
    ],
)
def test_every_call(outcomes: Ranks, call: str, number: int, code: str, word: str) -> None:
    """Each call that fails in setting up is named, with the device, on both ranks."""
    with Fabric() as fabric:
        fault = fabric.fault(f"fail at=mac1 call={call} count=all value={number}")
        found = outcomes(2, fabric)
        assert fabric.applied(fault) > 0
    fields = same_everywhere(found, code, 1, word, "rdma_en0")
    assert fields.get("error") == number


def test_calls_without_a_result(outcomes: Ranks) -> None:
    """A list of devices, or a table of addresses, that cannot be read: the call is named."""
    with Fabric() as fabric:
        fault = fabric.fault("fail at=mac1 call=get_device_list count=all value=5")
        found = outcomes(2, fabric)
        assert fabric.applied(fault) > 0
        same_everywhere(found, "no_devices", 1, "ibv_get_device_list: 5 (EIO)")
        fabric.command("clear")
        fault = fabric.fault("fail at=mac1 call=query_gid count=all value=5")
        found = outcomes(2, fabric, timeout_s=2.0)
        assert fabric.applied(fault) > 0
    words = ("no IPv4-mapped GID on rdma_en0", "ibv_query_gid failed with 5 (EIO)")
    same_everywhere(found, "no_gid", 1, *words)


@pytest.mark.parametrize("call", ["post_send", "poll_cq"])
def test_calls_of_the_first_message(outcomes: Ranks, call: str) -> None:
    """Queue pairs are connected, but cannot be used: call and device, on both ranks."""
    with Fabric() as fabric:
        fault = fabric.fault(f"fail at=mac1 call={call} count=all value=6")
        found = outcomes(2, fabric)
        assert fabric.applied(fault) > 0
    same_everywhere(found, "link_broken", 1, f"ibv_{call} failed", "rdma_en0 (")


def test_calls_at_the_end() -> None:
    """What cannot be given back does not matter any more, and crashes nothing."""
    calls = ("destroy_qp", "dereg_mr", "destroy_cq", "dealloc_pd", "close_device")
    init = emulated.arguments(2, {"fabric": "verbs"})
    with Fabric() as fabric:
        faults = [fabric.fault(f"fail at=mac1 call={each} count=all value=16") for each in calls]
        ended = run_ranks(2, attempt, init, str(fabric.path), form=False, fabric=fabric)
        assert all(fabric.applied(fault) for fault in faults)
    assert [each.value for each in ended] == [{}, {}]


def test_regions_used_up(outcomes: Ranks) -> None:
    """Others have all memory regions: what was asked for, and the number."""
    with Fabric() as fabric:
        fabric.command(f"budget {end(1, 0)} memory_regions 0")
        found = outcomes(2, fabric)
    same_everywhere(found, "no_memory_region", 1, "rdma_en0: ibv_reg_mr failed with 12 (ENOMEM)")


def test_no_address(outcomes: Ranks) -> None:
    """A port with no IPv4 address: table and remedy, once the time is up."""
    with Fabric() as fabric:
        fabric.command(f"gids {end(1, 0)} fe80")
        found = outcomes(2, fabric, timeout_s=2.0)
    fields = same_everywhere(found, "no_gid", 1, "no IPv4-mapped GID on rdma_en0", "fe80:")
    assert "networksetup" in fields["hint"]


def test_late_address() -> None:
    """An address that comes while the group is being formed is waited for."""
    init = emulated.arguments(2, {"fabric": "verbs", "timeout_s": 20.0})
    with Fabric() as fabric:
        fabric.command(f"gids {end(1, 0)} fe80")
        path = str(fabric.path)
        with Job(2, attempt, init, path, form=False, fabric=fabric) as job:
            job.wait_for(1, "no IPv4-mapped GID", "err")
            fabric.command(f"gids {end(1, 0)} fe80 none none 10.9.9.9")
            assert [rank.value for rank in job.wait()] == [{}, {}]


@pytest.mark.parametrize(
    ("slow", "table"), [((0, 1), "fe80 none none 10.0.0.2"), ((1, 0), "fe80 10.9.9.9")]
)
@pytest.mark.parametrize("cables", [1, 2])
def test_address_that_moves(slow: tuple[int, int], table: str, cables: int) -> None:
    """An address that moves between its reading and its use is looked for again, at both ends.

    It moves while its own end, or the other, is about to use it.
    """
    init = {"fabric": "verbs", "timeout_s": 20.0, "devices": emulated.matrix(2, cables)}
    args = (emulated.arguments(2, init),)
    with Fabric(emulated.fabric_text(2, cables=cables)) as fabric:
        fault = fabric.fault(f"slow at={end(*slow)} call=modify_rtr value=1500000000")
        with Job(2, attempt, *args, str(fabric.path), form=False, fabric=fabric) as job:
            while not fabric.applied(fault):
                assert time.monotonic() < job.deadline
                time.sleep(0.002)
            fabric.command(f"gids {end(0, 1)} {table}")
            ended = job.wait()
    assert [rank.value for rank in ended] == [{}, {}]
    assert any("looks for addresses again" in rank.stderr for rank in ended)


def test_address_that_never_fits(outcomes: Ranks) -> None:
    """An address that is refused is tried a second time, and no third."""
    with Fabric() as fabric:
        fault = fabric.fault(f"fail at={end(0, 1)} call=modify_rtr count=all value=22")
        found = outcomes(2, fabric)
        assert fabric.applied(fault) == 2
    same_everywhere(found, "address_refused", 0, "RTR on rdma_en1 towards rank 1")


@pytest.mark.parametrize("table", ["fe80 {}", "fe80 fe80 {}", "{} fe80", "none fe80 none {}"])
def test_address_anywhere(outcomes: Ranks, table: str) -> None:
    """Wherever the address is in the table, on either end, it is found and used."""
    with Fabric() as fabric:
        fabric.command(f"gids {end(0, 1)} {table.format('10.0.0.2')}")
        assert outcomes(2, fabric) == [{}, {}]


def test_ambiguous_address(outcomes: Ranks) -> None:
    """Two addresses and no reason to prefer one fail closed; a name in the device file decides."""
    matrix = emulated.matrix(2)
    with Fabric() as fabric:
        fabric.command(f"gids {end(0, 1)} fe80 10.0.0.2 10.0.7.7")
        found = outcomes(2, fabric)
        same_everywhere(found, "ambiguous_gid", 0, "10.0.0.2", "10.0.7.7")
        matrix[0][1] = ["rdma_en1@10.0.7.7"]
        assert outcomes(2, fabric, devices=matrix) == [{}, {}]


def test_budget_used_up(outcomes: Ranks) -> None:
    """What other processes have taken is said at creation, and not retried."""
    with Fabric() as fabric:
        fabric.command(f"budget {end(1, 0)} queue_pairs 0")
        began = time.monotonic()
        found = outcomes(2, fabric)
        assert time.monotonic() - began < 10
    same_everywhere(found, "queue_pairs_used_up", 1, "16 (EBUSY)", "rdma_en0")


def test_one_queue_pair_left(outcomes: Ranks) -> None:
    """One queue pair does: small messages carry everything."""
    with Fabric() as fabric:
        fabric.command(f"budget {end(1, 0)} queue_pairs 1")
        assert outcomes(2, fabric) == [{}, {}]


def test_starved_before_anything_is_made(outcomes: Ranks) -> None:
    """More ranks on one device than it can serve: need and offer, before any queue pair."""
    size, device = 4, "rdma_en0"
    hosts = [f"mac{i}" for i in range(size)]
    ends = " ".join(f"{host}:{device}:10.0.0.{i + 1}" for i, host in enumerate(hosts))
    text = f"limit queue_pairs 2\nlimit queue_pairs_told 2\ncable switch {ends} up\n"
    matrix = [[None if i == j else device for j in range(size)] for i in range(size)]
    with Fabric(text) as fabric:
        found = outcomes(size, fabric, devices=matrix)
        assert not fabric.command(f"held mac0:{device}")["queue_pairs"]
    same_everywhere(found, "too_few_queue_pairs", None, "needs 3 queue pairs, device offers 2")


def test_crossed_cables(outcomes: Ranks) -> None:
    """Two cables, named in another order at one end: the error names both cells."""
    matrix = emulated.matrix(2, cables=2)
    matrix[1][0].reverse()
    with Fabric(emulated.fabric_text(2, cables=2)) as fabric:
        found = outcomes(2, fabric, devices=matrix)
    text = "row 0, column 1 of devices: rdma_en1, rdma_en1_1"
    other = "row 1, column 0 of devices: rdma_en0_1, rdma_en0"
    same_everywhere(found, "address_elsewhere", None, text, other)


def test_dead_cable(outcomes: Ranks) -> None:
    """A cable over which nothing comes though its ports are up is found before the first use."""
    with Fabric() as fabric:
        fabric.command("cable c0-1-0 wedged")
        found = outcomes(2, fabric, timeout_s=3.0)
    same_everywhere(found, "silent_cable", None, "no message came over", "row 0, column 1")


def test_no_cable_between_two(outcomes: Ranks) -> None:
    """A pair without a cable: cells and hosts, and never a smaller group."""
    matrix = emulated.matrix(3)
    matrix[0][2] = matrix[2][0] = None
    with Fabric() as fabric:
        found = outcomes(3, fabric, devices=matrix)
    for fields in found:
        assert fields["type"] == "ConfigError", found
        assert "no cable between rank 0 on" in fields["message"]
        assert "row 0, column 2 of devices: null" in fields["message"]


def test_over_a_switch(outcomes: Ranks) -> None:
    """RoCE: one device per host, found without a device file; RC, by the later GID type."""
    ends = " ".join(f"mac{i}:mlx5_0:10.0.0.{i + 1}" for i in range(3))
    with Fabric(f"profile roce\ncable switch {ends} up\n") as fabric:
        found = outcomes(3, fabric, devices=None)
    assert found == [{}, {}, {}]


def test_again_and_again() -> None:
    """200 groups formed one after another leave nothing behind, in the order that Apple's wants."""
    with Fabric() as fabric:
        given = emulated.arguments(2, {"fabric": "verbs"})
        run_ranks(2, cycles, given, 200, form=False, fabric=fabric)
        held = fabric.command(f"held {end(0, 1)}")
        assert (held["queue_pairs"], held["memory_regions"]) == ([], 0)
        reports = fabric.path.with_suffix(".reports")
        assert not reports.exists() or not reports.read_text()


def cycles(init: dict[str, Any], count: int) -> None:
    """Form a group and close it, again and again; nothing grows."""
    # One coordinator for all: each group has a port of its own.
    with standfast.init(**init) as world:
        before = None
        for _ in range(count):
            group = world.split(0)
            assert group is not None
            with group:
                assert list(group.all_sum(np.ones(1))) == [2.0]
            # What the first has made for all that follow is no leak.
            before = before or held_here()
            assert held_here() == before


def held_here() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    descriptors = len(os.listdir("/dev/fd"))
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    return threads, descriptors
