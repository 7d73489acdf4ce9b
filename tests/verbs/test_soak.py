"""What a service does for hours, in seconds: much data, a death in it, idle times, a flap."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest

from standfast import Group
from standfast.errors import StandfastError
from tests import emulated
from tests.emulated import PROMPT_S, Fabric
from tests.ranks import Job

MIB16 = 4 << 20
"""Elements of float32."""


def sums(group: Group, turns: int, told_at: int) -> dict[str, Any]:
    """Add up 16 MiB again and again, checking each bit; return what was raised, and when."""
    x = np.empty(MIB16, np.float32)
    turn, began = 0, 0.0
    try:
        for turn in range(turns):
            x[:] = np.arange(turn, turn + 1024, dtype=np.float32).repeat(MIB16 // 1024)
            x += group.rank
            expected = np.arange(turn, turn + 1024, dtype=np.float32) * group.size
            expected += group.size * (group.size - 1) // 2
            if turn == told_at:
                print("here", flush=True)
            began = time.monotonic()
            found = group.all_sum(x).reshape(1024, -1)
            assert np.array_equal(found, np.broadcast_to(expected[:, None], found.shape)), turn
    except StandfastError as error:
        return {**error.to_dict(), "turn": turn, "took_s": time.monotonic() - began}
    return {"turns": turns}


@pytest.mark.parametrize("topology", ["mesh", "ring"])
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (4, 3)])
def test_a_death_at_twenty(size: int, victim: int, topology: str) -> None:
    """Of 200 sums of 16 MiB, one rank is killed in the twentieth: the others name it at once."""
    init: dict[str, Any] = {"fabric": "verbs", "topology": topology}
    if topology == "ring":
        init["devices"] = emulated.ring(size)
    with Fabric() as fabric, Job(size, sums, 200, 20, init=init, fabric=fabric) as job:
        job.wait_for(victim, "here")
        job.kill(victim, signal.SIGKILL)
        ended = job.wait()
    for each in ended:
        if each.rank != victim:
            fields = each.value
            assert (fields["type"], fields["rank"]) == ("PeerDied", victim), fields
            assert 19 <= fields["turn"] < 30, fields
            assert fields["took_s"] < PROMPT_S, fields


def serve(group: Group, rounds: int) -> dict[str, Any]:
    """Work, and idle in between; then wait for a change while idle, and work once more."""
    x = np.arange(30_000, dtype=np.int32)
    for _ in range(rounds):
        for _ in range(50):
            assert np.array_equal(group.all_sum(x), x * group.size)
        time.sleep(0.3)
    print("idle", flush=True)
    until = time.monotonic() + 20
    while group.healthy() and time.monotonic() < until:
        time.sleep(0.01)
    print("told", flush=True)
    time.sleep(0.3)
    began = time.monotonic()
    try:
        group.all_sum(x)
    except StandfastError as error:
        return {**error.to_dict(), "took_s": time.monotonic() - began}
    return {}


@pytest.mark.parametrize("cables", [1, 2])
def test_a_flap_while_idle(cables: int) -> None:
    """A port that goes down in an idle time is told then, though it is up when work goes on."""
    init = {"fabric": "verbs", "devices": emulated.matrix(3, cables)}
    text = emulated.fabric_text(3, cables=cables)
    with Fabric(text) as fabric, Job(3, serve, 4, init=init, fabric=fabric) as job:
        for rank in range(3):
            job.wait_for(rank, "idle")
        fabric.command(f"cable c1-2-{cables - 1} down")
        for rank in range(3):
            job.wait_for(rank, "told")
        fabric.command(f"cable c1-2-{cables - 1} up")
        ended = job.wait()
    for each in ended:
        fields = each.value
        assert fields["type"] == "LinkLost", fields
        assert "port is DOWN" in fields["cause"], fields
        assert fields["took_s"] < PROMPT_S, fields
