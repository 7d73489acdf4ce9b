"""Hosts with a device each on a switch, RoCE and InfiniBand: addresses; devices that report."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Group
from standfast.errors import StandfastError
from tests.emulated import PROMPT_S, Fabric
from tests.ranks import Job, Pool

DEVICE = "mlx5_0"


def text(profile: str, size: int, *more: str) -> str:
    """Return a fabric file: one switch, a device per host."""
    ends = " ".join(f"mac{i}:{DEVICE}:10.0.0.{i + 1}" for i in range(size))
    return "\n".join([f"profile {profile}", f"cable switch {ends} up", *more]) + "\n"


def matrix(size: int) -> list[list[str | None]]:
    """Return the rows of its device file."""
    return [[None if i == j else DEVICE for j in range(size)] for i in range(size)]


def add_up(arguments: dict[str, Any], fabric: str) -> str:
    """Form a group and add up; return what carries the data."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    with standfast.init(**arguments) as group:
        for count in (1, 5000, 200_000):
            x = np.arange(count, dtype=np.int64) + group.rank
            assert group.all_sum(x)[-1] == 2 * count - 1
        return group.links()[1 - group.rank]


def test_other_places_in_the_tables(pool: Pool) -> None:
    """The address is at another index at each end, and a RoCE table has each of them twice."""
    tables = (
        f"gids mac0:{DEVICE} fe80 10.0.0.1",
        f"gids mac1:{DEVICE} fe80 fe80:7 none 10.0.0.2",
    )
    init = {"fabric": "verbs", "devices": matrix(2)}
    with Fabric(text("roce", 2, *tables)) as fabric:
        ended = pool.run(2, add_up, str(fabric.path), init=init, form=False)
    for each in ended:
        there = f"10.0.0.{2 - each.rank}"
        assert each.value.endswith(f"to {DEVICE} ({there})"), each.value


def test_by_lid(pool: Pool) -> None:
    """InfiniBand has no IPv4-mapped address: ports are found by their LIDs."""
    init = {"fabric": "verbs", "devices": matrix(2)}
    with Fabric(text("infiniband", 2)) as fabric:
        ended = pool.run(2, add_up, str(fabric.path), init=init, form=False)
    for each in ended:
        assert each.value.startswith("rdma "), each.value


def until_the_end(group: Group) -> dict[str, Any]:
    """Add up until it ends with an error; return that."""
    x = np.ones(100_000, np.float32)
    began = time.monotonic()
    try:
        for turn in range(1_000_000):
            if turn == 20:
                print("works", flush=True)
            began = time.monotonic()
            assert group.all_sum(x)[0] == group.size
    except StandfastError as error:
        return {**error.to_dict(), "took_s": time.monotonic() - began}
    return {}


def under_way(profile: str, size: int, fabric: Fabric) -> Job:
    """Return ranks that add up, with short limits."""
    limits = {"heartbeat_s": 0.2, "hint_s": 0.5, "silence_s": 3.0, "progress_s": 5.0}
    init = {"fabric": "verbs", "devices": matrix(size), **limits}
    return Job(size, until_the_end, init=init, fabric=fabric)


@pytest.mark.parametrize("profile", ["roce", "infiniband"])
def test_a_dead_peer(profile: str) -> None:
    """Devices report a dead peer by failed requests; it is PeerDied all the same, everywhere."""
    with Fabric(text(profile, 3)) as fabric, under_way(profile, 3, fabric) as job:
        for rank in range(3):
            job.wait_for(rank, "works")
        job.kill(1, signal.SIGKILL)
        ended = job.wait()
    for rank in (0, 2):
        fields = ended[rank].value
        assert (fields["type"], fields["rank"]) == ("PeerDied", 1), fields
        assert fields["took_s"] < PROMPT_S, fields


def test_a_device_that_does_not_answer() -> None:
    """A request that was tried too often, while both ranks live, is LinkLost with that reason."""
    with Fabric(text("roce", 2)) as fabric, under_way("roce", 2, fabric) as job:
        for rank in range(2):
            job.wait_for(rank, "works")
        fault = fabric.fault(f"fail-send at=mac0:{DEVICE} value=12")
        ended = job.wait()
        assert fabric.applied(fault) == 1
    for each in ended:
        fields = each.value
        assert fields["type"] == "LinkLost", fields
        assert "the peer's device does not answer (RETRY_EXC_ERR)" in fields["cause"], fields
        assert DEVICE in fields["cause"], fields
        assert fields["took_s"] < PROMPT_S, fields
