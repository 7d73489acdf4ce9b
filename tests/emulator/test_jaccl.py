"""The independent JACCL rank over the emulator: both are right, and JACCL sees no failure."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from standfast.testing.emulator import Emulator
from standfast.testing.topology import mesh, ring

RANK = Path(__file__).with_name("jaccl_rank.py")
OPERATIONS = (
    *(f"all_sum:{count}" for count in (1, 3, 1000, 8192, 8193, 100_001)),
    *("all_max:50000", "all_min:3", "barrier"),
    *(f"all_gather:{count}" for count in (1, 3333, 70_001)),
    *(f"sum_scatter:{count}" for count in (1, 5000, 40_001)),
    *("send:0:1:1", "send:1:0:300001", "all_sum:1000000"),
)


@contextlib.contextmanager
def ranks(
    fabric: Emulator, operations: Sequence[str], options: Sequence[Sequence[str]] = ()
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a rank per host; `options`: each one's own. None is left at the end."""
    coordinator = f"127.0.0.1:{random.randrange(20000, 30000)}"
    started = []
    try:
        for rank, host in enumerate(fabric.topology.hosts):
            environment = fabric.environment(host, os.environ)
            environment |= fabric.jaccl_environment(rank, coordinator)
            own = options[rank] if options else ()
            command = [sys.executable, str(RANK), *own, *operations]
            started.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def all_right(started: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for all; each must have found all its results right."""
    for rank, each in enumerate(started):
        _, complaint = each.communicate(timeout=60)
        assert each.returncode == 0, f"rank {rank}: {complaint}"


@pytest.mark.parametrize("macs", [2, 3, 4])
@pytest.mark.parametrize(("topology", "cables"), [(mesh, 1), (ring, 1), (ring, 2)])
def test_all_operations(macs: int, topology: object, cables: int) -> None:
    """Every operation is bit-exact on every rank; for 3 Macs, in the older regime of frames too."""
    make = mesh if topology is mesh else ring
    for regime in ("new", "old") if macs == 3 else ("new",):
        with (
            Emulator(make(macs, cables=cables)) as fabric,
            ranks(fabric, OPERATIONS, [["--regime", regime]] * macs) as started,
        ):
            all_right(started)
            assert fabric.reports() == []
            for port in (port for cable in fabric.topology.cables for port in cable.ports):
                assert fabric.counters(port)["frame_mismatch"] == 0


def test_depths_may_differ() -> None:
    """How many requests a rank keeps in flight is its own matter."""
    options = [["--depth", str(depth)] for depth in (2, 4, 5)]
    for make in (mesh, ring):
        with Emulator(make(3)) as fabric, ranks(fabric, OPERATIONS, options) as started:
            all_right(started)


def test_delay_and_reordering_across_queue_pairs_change_nothing() -> None:
    """Messages that are late, on some cables at random, do not change a result."""
    with Emulator(mesh(3)) as fabric:
        for seed, cable in enumerate(fabric.topology.cables):
            for port in cable.ports:
                fabric.fault(
                    "delay", at=port, count=None, probability=0.05, seed=seed, value=500_000
                )
        with ranks(fabric, OPERATIONS, [["--repeat", "2"]] * 3) as started:
            all_right(started)
        assert sum(fabric.counters(p)["delayed"] for p in ("mac0:rdma_en2", "mac1:rdma_en2")) > 0


def test_drop_is_not_for_jaccl() -> None:
    """Where sends without a receive are lost, JACCL's wire cannot work: the first is lost, and a
    rank is left waiting.
    """
    with Emulator(mesh(2, settings=["policy drop"])) as fabric:
        # One that has not posted yet when the other sends, whichever is quicker.
        fabric.fault("slow", call="post_recv", at="mac1", value=200_000_000)
        with ranks(fabric, ["all_sum:100"]) as started:
            deadline = time.monotonic() + 20
            while not fabric.counters("mac0:rdma_en2")["no_receive"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert started[1].poll() is None


def test_a_lost_frame_is_a_wrong_sum() -> None:
    """One lost frame shifts all that follows: the next sum is wrong, without any error below it."""
    with Emulator(mesh(2)) as fabric:
        fabric.fault("lose", at="mac0:rdma_en2", first=5)
        with ranks(fabric, ["all_sum:1000"], [["--repeat", "20"]] * 2) as started:
            _, complaint = started[1].communicate(timeout=60)
            assert "all_sum: 1000 of 1000 elements are wrong" in complaint


def test_survivors_of_a_dead_rank_see_nothing() -> None:
    """A rank killed inside a send: the other spins on, with no completion and no error."""
    with Emulator(mesh(2)) as fabric:
        fabric.fault("kill", call="post_send", at="mac1", first=10)
        with ranks(fabric, ["all_sum:1000"], [["--repeat", "50"]] * 2) as started:
            assert started[1].wait(20) == -9
            with pytest.raises(subprocess.TimeoutExpired):
                started[0].wait(1)
