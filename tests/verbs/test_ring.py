"""Macs in a ring, each with cables to its neighbours alone: fabric="verbs" goes around it."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Group
from standfast.errors import StandfastError
from tests import emulated
from tests.emulated import Fabric, end
from tests.ranks import Job, Pool


def fabric_text(macs: int, cables: int = 1) -> str:
    """Return a fabric file with cables between neighbours alone."""
    neighbours = [(a, b) for a in range(macs) for b in range(a + 1, macs) if b - a in (1, macs - 1)]
    names = [f"cable c{a}-{b}-" for a, b in neighbours]
    lines = emulated.fabric_text(macs, cables=cables).splitlines()
    return "\n".join(line for line in lines if line.startswith(tuple(names))) + "\n"


def around(arguments: dict[str, Any], fabric: str) -> dict[int, str]:
    """Add up and gather over all ranks, and talk to the one opposite; return the links."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    with standfast.init(**arguments) as group:
        size, rank = group.size, group.rank
        for count in (1, 5000, 300_000):
            x = np.arange(count, dtype=np.int64) * (rank + 1)
            total = group.all_sum(x)
            assert np.array_equal(total, np.arange(count) * (size * (size + 1) // 2))
        assert list(group.all_gather(np.array([rank]))) == list(range(size))
        assert list(group.all_to_all(np.full(size, rank))) == list(range(size))
        opposite = (rank + size // 2) % size
        if size % 2 == 0:
            if rank < opposite:
                group.send(np.array([rank]), opposite)
            else:
                assert group.recv(1, "int64", opposite)[0] == opposite
        return dict(group.links())


@pytest.mark.parametrize(("size", "cables"), [(2, 2), (3, 1), (4, 1), (4, 4), (6, 2)])
def test_around(pool: Pool, size: int, cables: int) -> None:
    """Neighbours reach each other by all their cables, others by tcp, and links() says so."""
    init = {"fabric": "verbs", "devices": emulated.ring(size, cables)}
    with Fabric(fabric_text(size, cables)) as fabric:
        ended = pool.run(size, around, str(fabric.path), init=init, form=False)
        right = [
            fabric.command(f"counters {end(r, (r + 1) % size, k)}")["sent_bytes"]
            for r in range(size)
            for k in range(cables)
        ]
    assert min(right) > 0.5 * max(right) > 0
    for rank in ended:
        for peer, link in rank.value.items():
            is_near = abs(peer - rank.rank) in (1, size - 1)
            assert link.startswith("rdma " if is_near else "tcp "), link
            assert is_near or link.endswith(", since no cable joins the two"), link
            assert not is_near or link.count(" to ") == cables, link


def refused(arguments: dict[str, Any], fabric: str) -> dict[str, Any]:
    """Form no group; return what was raised."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    try:
        with standfast.init(**arguments):
            return {}
    except StandfastError as error:
        return error.to_dict()


def shared_path() -> str:
    """Return the path of the fabric with all cables."""
    return str(emulated.shared().path)


def test_in_another_order(pool: Pool) -> None:
    """Neighbours without a cable: no rank gets a group, and all name the same two hosts."""
    order = (0, 2, 1, 3)
    ring = emulated.ring(4)
    rows = [[ring[i][j] for j in order] for i in order]
    init = {"fabric": "verbs", "devices": rows}
    found = pool.run(4, refused, shared_path(), init=init, form=False)
    host = os.uname().nodename
    for rank in found:
        assert rank.value["type"] == "ConfigError", rank.value
        assert (
            f"no cable between rank 0 on {host} and rank 1 on {host}: row 0, column 1 of"
            in rank.value["message"]
        )
    assert len({rank.value["message"] for rank in found}) == 1


def test_no_mesh(pool: Pool) -> None:
    """topology="mesh" is refused on all ranks, with the cell that is empty."""
    init = {"fabric": "verbs", "devices": emulated.ring(4), "topology": "mesh"}
    for rank in pool.run(4, refused, shared_path(), init=init, form=False):
        assert rank.value["type"] == "ConfigError", rank.value
        assert "row 0, column 2 of devices: null" in rank.value["message"]
        assert "topology='ring'" in rank.value["hint"]


def with_own_file(arguments: dict[str, Any], fabric: str, odd: int) -> dict[str, Any]:
    """As `refused`; one rank has a device file with all cables."""
    if arguments["rank"] == odd:
        arguments = {**arguments, "devices": emulated.matrix(4)}
    return refused(arguments, fabric)


@pytest.mark.parametrize("odd", [0, 2])
def test_files_that_differ(pool: Pool, odd: int) -> None:
    """A rank whose file has other cables than the others': an error on all, never a wait."""
    init = {"fabric": "verbs", "devices": emulated.ring(4)}
    for rank in pool.run(4, with_own_file, shared_path(), odd, init=init, form=False):
        assert rank.value["type"] == "FabricError", rank.value
        assert rank.value["code"] == "cables_differ", rank.value
        assert "device file" in rank.value["message"]


def until_killed(group: Group) -> dict[str, Any]:
    """Add up until somebody dies."""
    x = np.ones(100_000, np.float32)
    try:
        for turn in range(1_000_000):
            assert group.all_sum(x)[0] == group.size
            if turn == 20:
                print("works", flush=True)
    except StandfastError as error:
        return error.to_dict()
    return {}


@pytest.mark.parametrize(("size", "victim"), [(4, 0), (5, 2)])
def test_a_death(size: int, victim: int) -> None:
    """Neighbours and those without a cable to the dead rank name it alike, at once."""
    init = {"fabric": "verbs", "devices": emulated.ring(size)}
    with (
        Fabric(fabric_text(size)) as fabric,
        Job(size, until_killed, init=init, fabric=fabric) as job,
    ):
        for rank in range(size):
            job.wait_for(rank, "works")
        job.kill(victim, signal.SIGKILL)
        ended = job.wait()
    for each in ended:
        if each.rank != victim:
            assert (each.value["type"], each.value["rank"]) == ("PeerDied", victim), each.value
