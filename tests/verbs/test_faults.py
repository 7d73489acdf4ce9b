"""Faults of emulated cables and devices while a group works: a right result, or a prompt error."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import StandfastError
from tests import emulated
from tests.emulated import PROMPT_S, Fabric, end
from tests.ranks import Job, Pool

COUNTS = (1, 700, 5000, 40_000, 150_000)


def work(
    arguments: dict[str, Any], fabric: str, turns: int, watch_for_s: float = 0.0
) -> dict[str, Any]:
    """Add up again and again, and compare each bit; return what was raised, and when."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    turn, began = -1, 0.0
    try:
        with standfast.init(**arguments) as group:
            print("formed", flush=True)
            for turn in range(turns):
                began = time.monotonic()
                count = COUNTS[turn % len(COUNTS)]
                x = np.arange(count, dtype=np.int64) * (group.rank + 1) + turn
                total = group.size * (group.size + 1) // 2
                expected = np.arange(count, dtype=np.int64) * total + turn * group.size
                found = group.all_sum(x)
                if not np.array_equal(found, expected):
                    return {"wrong": turn}
                if watch_for_s and turn == 0:
                    print("worked", flush=True)
                    time.sleep(watch_for_s)
    except StandfastError as error:
        return {**error.to_dict(), "turn": turn, "took_s": time.monotonic() - began}
    return {"turns": turns}


def at_work(pool: Pool, fabric: Fabric, size: int = 2, turns: int = 100, **init: Any) -> Any:
    """Return what `work` returned on each rank."""
    limits = {"heartbeat_s": 0.2, "hint_s": 0.5, "silence_s": 2.0, "progress_s": 2.0}
    given = {"fabric": "verbs", "timeout_s": 15.0, **limits, **init}
    args = (str(fabric.path), turns)
    ended = pool.run(size, work, *args, init=given, form=False, timeout_s=60)
    return [rank.value for rank in ended]


def devices_of(cables: int) -> dict[str, Any]:
    return {"devices": emulated.matrix(2, cables)}


@pytest.mark.parametrize("kind", ["lose", "duplicate", "corrupt", "truncate", "reorder"])
@pytest.mark.parametrize("first", [2, 9, 40])
@pytest.mark.parametrize("cables", [1, 2])
def test_a_message_that_went_wrong(pool: Pool, kind: str, first: int, cables: int) -> None:
    """One message is lost, doubled, damaged, cut short or late: never a wrong sum, never a hang."""
    with Fabric(emulated.fabric_text(2, cables=cables)) as fabric:
        fault = fabric.fault(f"{kind} at={end(0, 1)} first={first} value=100")
        found = at_work(pool, fabric, **devices_of(cables))
        assert fabric.applied(fault) == 1, "the fault did not strike"
    if kind == "reorder" and found == [{"turns": 100}] * 2:
        return  # nothing came behind it on its queue pair: it was only late
    for fields in found:
        assert fields.get("type") in ("LinkLost", "NoProgress", "PeerStalled"), found
        assert fields["took_s"] < 8, found
    lost = [fields for fields in found if fields["type"] == "LinkLost"]
    if kind in ("duplicate", "corrupt"):
        assert lost, found
    for fields in lost:
        assert "rdma_en" in fields["cause"], found
        assert "message" in fields["cause"] or "receive" in fields["cause"], found


@pytest.mark.parametrize("kind", ["fail-send", "fail-receive"])
def test_a_completion_with_an_error(pool: Pool, kind: str) -> None:
    """A request that ended with an error ends the operation on both ranks, with its status."""
    with Fabric(emulated.fabric_text(2)) as fabric:
        fault = fabric.fault(f"{kind} at={end(0, 1)} first=20 value=10")
        found = at_work(pool, fabric)
        assert fabric.applied(fault) == 1
    for fields in found:
        assert fields["type"] == "LinkLost", found
        assert "ended with status 10" in fields["cause"], found
        assert fields["took_s"] < PROMPT_S, found


@pytest.mark.parametrize("call", ["post_send", "post_recv", "poll_cq"])
def test_a_call_that_fails(pool: Pool, call: str) -> None:
    """A device that is gone refuses calls: the link is lost, on both ranks."""
    with Fabric(emulated.fabric_text(2)) as fabric:
        fault = fabric.fault(f"fail at=mac0 call={call} first=300 value=6")
        found = at_work(pool, fabric)
        assert fabric.applied(fault) == 1
    for fields in found:
        assert fields["type"] == "LinkLost", found
        assert f"ibv_{call}" in fields["cause"], found


def test_a_receive_that_is_refused(pool: Pool) -> None:
    """A device that refuses receives with ENOMEM now and then is asked again; nothing is lost."""
    with Fabric("policy drop\n" + emulated.fabric_text(2)) as fabric:
        fault = fabric.fault("fail at=mac0 call=post_recv first=200 count=20 value=12")
        found = at_work(pool, fabric)
        assert fabric.applied(fault) == 20
    assert found == [{"turns": 100}] * 2


@pytest.mark.parametrize("frames", [12, 40, 100])
def test_a_small_window(pool: Pool, frames: int) -> None:
    """A device that takes less than it granted, of sends and receives, gets less."""
    text = f"policy drop\nlimit window_frames {frames}\n"
    with Fabric(text + emulated.fabric_text(2)) as fabric:
        assert at_work(pool, fabric) == [{"turns": 100}] * 2
        assert fabric.command(f"counters {end(0, 1)}")["no_receive"] == 0


@pytest.mark.parametrize(("state", "words"), [("down", "port is DOWN"), ("errors", "ended with")])
@pytest.mark.parametrize("pulled", [0, 1])
def test_a_cable_is_pulled(state: str, words: str, pulled: int) -> None:
    """Whatever the device says of it, silence or errors: LinkLost names device and state."""
    init = {"fabric": "verbs", "devices": emulated.matrix(2, 2)}
    with Fabric(emulated.fabric_text(2, cables=2)) as fabric:
        args = (init, str(fabric.path), 1_000_000)
        with Job(2, work, *args, form=False, fabric=fabric) as job:
            for rank in range(2):
                job.wait_for(rank, "formed")
            time.sleep(0.2)
            fabric.command(f"cable c0-1-{pulled} {state}")
            ended = [rank.value for rank in job.wait()]
    for fields in ended:
        assert fields["type"] == "LinkLost", ended
        assert words in fields["cause"], ended
        assert fields["cause"] == ended[0]["cause"], ended
        device = emulated.device(1 - fields["reporter"], pulled)
        assert f"{device} (" in fields["cause"], ended
        assert fields["took_s"] < PROMPT_S, ended


def test_pulled_while_idle() -> None:
    """A port that went down between two operations is said in the first one that needs it."""
    init = {"fabric": "verbs"}
    with Fabric(emulated.fabric_text(2)) as fabric:
        args = (emulated.arguments(2, init), str(fabric.path), 1000, 1.0)
        with Job(2, work, *args, form=False, fabric=fabric) as job:
            for rank in range(2):
                job.wait_for(rank, "worked")
            fabric.command("cable c0-1-0 down")
            ended = [rank.value for rank in job.wait()]
    for fields in ended:
        assert fields["type"] == "LinkLost", ended
        assert "port is DOWN" in fields["cause"], ended
        assert fields["took_s"] < PROMPT_S, ended


def test_a_cable_that_says_nothing(pool: Pool) -> None:
    """Nothing moves though ports are active: the progress limit ends it, on both ranks."""
    with Fabric(emulated.fabric_text(2)) as fabric:
        fault = fabric.fault(f"lose at={end(0, 1)} first=30 count=all")
        found = at_work(pool, fabric)
        assert fabric.applied(fault) > 0
    for fields in found:
        assert fields["type"] in ("NoProgress", "PeerStalled"), found
        assert fields["took_s"] < 8, found


@pytest.mark.parametrize("cables", [1, 3])
def test_delay_and_reordering_between_queue_pairs(pool: Pool, cables: int) -> None:
    """Messages that come late, on one queue pair or the other: the sums stay right."""
    with Fabric(emulated.fabric_text(2, cables=cables)) as fabric:
        for k in range(cables):
            for a, b in ((0, 1), (1, 0)):
                fabric.fault(
                    f"delay at={end(a, b, k)} count=all probability=0.02 seed=5 value=500000"
                )
        found = at_work(pool, fabric, turns=300, progress_s=30.0, **devices_of(cables))
    assert found == [{"turns": 300}] * 2


def chatter(arguments: dict[str, Any], fabric: str, count: int) -> int:
    """Send very many small messages one way, then the other; then both at once."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    with standfast.init(**arguments) as group:
        peer = 1 - group.rank
        x = np.zeros(4, np.int64)
        for first in (0, 1):
            for n in range(count):
                if group.rank == first:
                    x[0] = n
                    group.send(x, peer)
                else:
                    assert group.recv(4, "int64", peer)[0] == n
        for _ in range(count):
            assert group.all_sum(x)[1] == 0
    return count


def test_nothing_is_dropped(pool: Pool) -> None:
    """A device that drops what finds no receive, and very many messages: not one is."""
    with Fabric("policy drop\n" + emulated.fabric_text(2)) as fabric:
        init = {"fabric": "verbs"}
        args = (str(fabric.path), 20_000)
        ended = pool.run(2, chatter, *args, init=init, form=False, timeout_s=100)
        assert [rank.value for rank in ended] == [20_000] * 2
        for a, b in ((0, 1), (1, 0)):
            counters = fabric.command(f"counters {end(a, b)}")
            assert counters["no_receive"] == 0, counters


@pytest.mark.parametrize("call", ["post_send", "poll_cq", "write_piece", "read_piece"])
@pytest.mark.parametrize("first", [150, 151])
def test_killed_inside_a_call(call: str, first: int) -> None:
    """A rank dies in the middle of a verbs call: the survivors name it, within a second."""
    init = emulated.arguments(3, {"fabric": "verbs"})
    with Fabric(emulated.fabric_text(3)) as fabric:
        fault = fabric.fault(f"kill at=mac1 call={call} first={first}")
        with Job(3, work, init, str(fabric.path), 1_000_000, form=False, fabric=fabric) as job:
            ended = job.wait()
        assert fabric.applied(fault) == 1
    assert ended[1].status == -9
    for rank in (0, 2):
        fields = ended[rank].value
        assert (fields["type"], fields["rank"]) == ("PeerDied", 1), fields
        assert fields["took_s"] < PROMPT_S, fields


def test_a_cable_that_crashes_the_library() -> None:
    """A pulled cable that crashes who uses it, inside the library: whoever is left names one."""
    init = emulated.arguments(3, {"fabric": "verbs"})
    with (
        Fabric(emulated.fabric_text(3)) as fabric,
        Job(3, work, init, str(fabric.path), 1_000_000, form=False, fabric=fabric) as job,
    ):
        for rank in range(3):
            job.wait_for(rank, "formed")
        time.sleep(0.2)
        fabric.command("cable c0-1-0 segv")
        ended = job.wait()
    crashed = [each.rank for each in ended if each.status == -signal.SIGSEGV]
    assert crashed in ([0], [1], [0, 1]), ended
    for each in ended:
        if each.rank not in crashed:
            fields = each.value
            assert (fields["type"], fields["rank"] in crashed) == ("PeerDied", True), fields
            assert fields["took_s"] < PROMPT_S, fields


def test_split(pool: Pool) -> None:
    """Groups within a group have their part of the device matrix."""
    args = (str(emulated.shared().path),)
    for ended in pool.run(4, splits, *args, init={"fabric": "verbs"}, form=False):
        assert ended.value == (4 if ended.rank % 2 else 2)


def splits(arguments: dict[str, Any], fabric: str) -> float:
    """Split by odd and even ranks, and add up."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    with standfast.init(**arguments) as group:
        team = group.split(group.rank % 2)
        assert team is not None
        with team:
            assert all(link.startswith("rdma ") for link in team.links().values())
            return float(team.all_sum(np.array([float(group.rank)]))[0])


def splits_in_vain(arguments: dict[str, Any], fabric: str) -> dict[str, Any]:
    """Split where a device has nothing left; then go on with the parent."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    with standfast.init(**arguments) as group:
        try:
            group.split(0)
        except StandfastError as error:
            assert group.all_sum(np.ones(1))[0] == group.size
            return error.to_dict()
    return {}


def test_split_refused(pool: Pool) -> None:
    """A device has no queue pairs left for a part: all ranks say which, and the parent goes on."""
    with Fabric() as fabric:
        fabric.command(f"budget {end(1, 2)} queue_pairs 2")
        args = (str(fabric.path),)
        ended = pool.run(3, splits_in_vain, *args, init={"fabric": "verbs"}, form=False)
    for each in ended:
        fields = each.value
        assert (fields["type"], fields["code"]) == ("FabricError", "queue_pairs_used_up"), fields
        assert (fields["rank"], fields["device"]) == (1, "rdma_en2"), fields


SIZES = (1, 63, 4032, 4033, 16_128, 16_129, 131_072, 131_073, 1 << 20)


def talks(arguments: dict[str, Any], fabric: str) -> int:
    """Send messages of all sizes to and fro."""
    os.environ["STANDFAST_EMULATOR_FABRIC"] = fabric
    with standfast.init(**arguments) as group:
        peer = 1 - group.rank
        for size in SIZES:
            x = np.arange(size, dtype=np.uint8)
            for sender in (0, 1):
                if group.rank == sender:
                    group.send(x + sender, peer)
                else:
                    assert np.array_equal(group.recv(size, "uint8", peer), x + sender), size
    return len(SIZES)


@pytest.mark.parametrize("cables", [1, 2, 3, 4])
def test_messages_of_any_size(pool: Pool, cables: int) -> None:
    """From one byte to a MiB, at the borders of messages and frames, over all numbers of cables."""
    with Fabric(emulated.fabric_text(2, cables=cables)) as fabric:
        init = {"fabric": "verbs", **devices_of(cables)}
        ended = pool.run(2, talks, str(fabric.path), init=init, form=False)
    assert [each.value for each in ended] == [len(SIZES)] * 2


@pytest.mark.parametrize("cables", [2, 3, 4])
def test_all_cables_are_used(pool: Pool, cables: int) -> None:
    """Messages are spread over all cables between two ranks, and each size arrives."""
    with Fabric(emulated.fabric_text(2, cables=cables)) as fabric:
        found = at_work(pool, fabric, turns=50, **devices_of(cables))
        assert found == [{"turns": 50}] * 2
        sent = [fabric.command(f"counters {end(0, 1, k)}")["sent_bytes"] for k in range(cables)]
    assert min(sent) > 0.5 * max(sent), sent
