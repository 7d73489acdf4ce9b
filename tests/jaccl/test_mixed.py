"""Groups of our ranks and independent ones over the emulator: every result is right, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.testing.emulator import Emulator
from standfast.testing.topology import Topology, mesh, ring
from tests.jaccl.mixed import ranks

Make = Callable[..., Topology]

OPERATIONS = (
    *(f"all_sum:{count}" for count in (1, 3, 1000, 8192, 8193, 100_001)),
    *("all_max:50000", "all_min:3", "barrier"),
    *(f"all_gather:{count}" for count in (1, 3333, 70_001)),
    *(f"sum_scatter:{count}" for count in (1, 5000, 40_001)),
    *("send:0:1:1", "send:1:0:300001", "all_sum:1000000"),
)
FORMS = [(mesh, 1), (ring, 1), (ring, 2)]
REGIMES = {"26.3": "new", "4k": "old"}


@pytest.mark.parametrize("kinds", ["of", "fo", "fof", "ofo", "offo"])
@pytest.mark.parametrize(("make", "cables"), FORMS)
def test_with_independent_ranks(make: Make, cables: int, kinds: str) -> None:
    """Ours as rank 0 or as any other, mesh and ring: all operations, in both frame sizes."""
    for frames, regime in REGIMES.items():
        if frames == "4k" and len(kinds) > 2:
            continue  # more ranks do not add to what two show of frames
        with (
            Emulator(make(len(kinds), cables=cables)) as fabric,
            ranks(
                fabric, kinds, OPERATIONS, ours=["--frames", frames], foreign=["--regime", regime]
            ) as group,
        ):
            group.all_right()
            assert fabric.reports() == []
            for port in (port for cable in fabric.topology.cables for port in cable.ports):
                assert fabric.counters(port)["frame_mismatch"] == 0


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("make", "cables"), [*FORMS, (ring, 4)])
def test_the_order_of_additions(make: Make, cables: int, size: int) -> None:
    """Floats are added in one fixed order, which is stock's where stock has one; in place, too."""
    counts = [1, 8192, 8193, 30_001]
    with (
        Emulator(make(size, cables=cables)) as fabric,
        ranks(fabric, "o" * size, [f"order:{count}:{cables}" for count in counts]) as group,
    ):
        group.all_right()


@pytest.mark.parametrize(("make", "cables", "size"), [(mesh, 1, 3), (ring, 2, 4)])
def test_what_else_ours_can_do(make: Make, cables: int, size: int) -> None:
    """Dtypes, handles, exchanges, empty arrays, and what JACCL has not."""
    operations = ["rest", "dtypes:5000", "exchange:300000", "exchange:1", "rest"]
    with (
        Emulator(make(size, cables=cables)) as fabric,
        ranks(fabric, "o" * size, operations, ours=["--in-place"]) as group,
    ):
        group.all_right()
        assert fabric.reports() == []


@pytest.mark.parametrize(("make", "size"), [(mesh, 4), (ring, 2)])
def test_in_place(make: Make, size: int) -> None:
    """A result may go where the input was, with independent ranks too."""
    operations = ["all_sum:8000", "all_sum:200003", "all_max:200003", "all_min:7"]
    with (
        Emulator(make(size)) as fabric,
        ranks(fabric, "fo" * (size // 2), operations, ours=["--in-place"]) as group,
    ):
        group.all_right()


@pytest.mark.parametrize("make", [mesh, ring])
def test_delays_change_nothing(make: Make) -> None:
    """Messages that are late, at random, on any cable, do not change a result."""
    with Emulator(make(3)) as fabric:
        faults = [
            fabric.fault("delay", at=port, count=None, probability=0.05, seed=seed, value=500_000)
            for seed, cable in enumerate(fabric.topology.cables)
            for port in cable.ports
        ]
        with ranks(fabric, "ofo", OPERATIONS) as group:
            group.all_right()
        assert sum(fault.applied() for fault in faults) > 0


def test_a_device_that_takes_fewer_requests() -> None:
    """A window smaller than asked for slows down, and nothing else."""
    with (
        Emulator(mesh(2, settings=["limit window_frames 260"])) as fabric,
        ranks(fabric, "of", ["all_sum:1000000", "all_sum:10"]) as group,
    ):
        group.all_right()


def test_a_gid_table_of_another_order() -> None:
    """Each rank finds the IPv4-mapped GID of its device, at whichever index."""
    with Emulator(mesh(2)) as fabric:
        fabric.command("gids mac0:rdma_en2 fe80 fe80:2 169.254.1.1")
        fabric.command("gids mac1:rdma_en2 169.254.1.2 fe80")
        with ranks(fabric, "oo", ["all_sum:1000"]) as group:
            group.all_right()


def test_an_address_that_comes_late() -> None:
    """An IPv4 address that DHCP gives while the group is being formed is waited for."""
    with Emulator(mesh(2)) as fabric:
        fabric.command("gids mac0:rdma_en2 fe80")
        with ranks(fabric, "of", ["all_sum:1000"]) as group:
            group.wait_for_line(0, "no IPv4-mapped GID on rdma_en2", complaint=True)
            fabric.command("gids mac0:rdma_en2 fe80 169.254.1.1")
            group.all_right()


def test_no_coordinator(tmp_path: Path) -> None:
    """A function of the program's can take the place of rank 0's port."""
    with (
        Emulator(mesh(3)) as fabric,
        ranks(fabric, "ooo", ["all_sum:1000"], ours=["--files", str(tmp_path)]) as group,
    ):
        group.all_right()


@pytest.mark.parametrize("make", [mesh, ring])
def test_again_and_again(make: Make) -> None:
    """A process forms groups one after the other, on devices that have just enough for one."""
    pairs = 1 if make is mesh else 2
    limits = [f"limit queue_pairs {pairs}", "limit memory_regions 1", "limit protection_domains 1"]
    with Emulator(make(2, settings=limits)) as fabric:
        with ranks(fabric, "oo", ["all_sum:1000"], ours=["--rounds", "20"]) as group:
            group.all_right()
        assert fabric.reports() == []
