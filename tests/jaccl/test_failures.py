"""What ends a JACCL group: our ranks say who and why, within a second or two, and never hang."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.testing.emulator import Emulator
from standfast.testing.topology import Topology, mesh, ring
from tests.jaccl.mixed import ranks

Make = Callable[..., Topology]

# Promised is 1 s after the end of the process; machines that test are slow.
PROMPT_S = 6.0
FOR_EVER = ("--repeat", "1000000")
SAYING = ("--say", *FOR_EVER)
SHORT_LIMITS = ("--keyword", "progress_s=1", "--keyword", "startup_s=0")


# --- deaths


@pytest.mark.parametrize(
    ("make", "kinds", "victim"),
    [
        *((mesh, "of", 1), (mesh, "fo", 0), (mesh, "ofo", 1), (mesh, "oof", 2), (mesh, "ooo", 2)),
        *((ring, "fo", 0), (ring, "ofo", 1), (ring, "oofo", 2)),
    ],
)
def test_a_killed_rank_is_named(make: Make, kinds: str, victim: int) -> None:
    """Where rank 0 is ours, all our ranks name the dead one, while stock ranks spin on."""
    with (
        Emulator(make(len(kinds))) as fabric,
        ranks(fabric, kinds, ["all_sum:20000"], ours=SAYING, foreign=FOR_EVER) as group,
    ):
        group.wait_for_line(next(r for r, kind in enumerate(kinds) if kind == "o"))
        group.processes[victim].kill()
        began = time.monotonic()
        for rank, kind in enumerate(kinds):
            if kind == "o" and rank != victim:
                error = group.failure(rank)
                assert (error["type"], error["rank"]) == ("PeerDied", victim), error
                assert time.monotonic() - began < PROMPT_S
            elif rank != victim:
                assert group.processes[rank].poll() is None


@pytest.mark.parametrize(
    ("make", "operation"),
    [(mesh, "all_sum:1"), (mesh, "all_gather:200000"), (ring, "sum_scatter:90000")],
)
def test_killed_inside_a_call(make: Make, operation: str) -> None:
    """A rank that dies inside the library, in the middle of any operation, is named."""
    with Emulator(make(3)) as fabric:
        fault = fabric.fault("kill", call="post_send", at="mac1", first=25)
        with ranks(fabric, "ofo", [operation], ours=FOR_EVER, foreign=FOR_EVER) as group:
            for rank in (0, 2):
                error = group.failure(rank)
                assert (error["type"], error["rank"]) == ("PeerDied", 1), error
            assert fault.applied() == 1


@pytest.mark.parametrize("waiter", [0, 1])
def test_killed_between_send_and_recv(waiter: int) -> None:
    """A recv, and a send, end with the death of the peer."""
    operation = "send:0:1:1000000"
    with (
        Emulator(mesh(2)) as fabric,
        ranks(
            fabric, "of" if waiter == 0 else "fo", [operation], ours=SAYING, foreign=FOR_EVER
        ) as group,
    ):
        group.wait_for_line(waiter)
        group.processes[1 - waiter].kill()
        error = group.failure(waiter)
        assert (error["type"], error["rank"], error["op"]) == (
            "PeerDied",
            1 - waiter,
            "send" if waiter == 0 else "recv",
        )


def test_a_stock_rank_0_that_dies_hides_who_died_first() -> None:
    """Where rank 0 is a stock rank, ours see its end alone, and say what that may mean."""
    with (
        Emulator(mesh(3)) as fabric,
        ranks(fabric, "foo", ["all_sum:20000"], ours=SAYING, foreign=FOR_EVER) as group,
    ):
        group.wait_for_line(1)
        group.processes[0].kill()
        for rank in (1, 2):
            error = group.failure(rank)
            assert (error["type"], error["rank"]) == ("PeerDied", 0)
            assert "it may have ended because one of them did" in error["evidence"][0]


def test_a_rank_that_is_done_is_no_fault() -> None:
    """A stock rank that ends after its last operation ends nothing; nor does one of ours."""
    with (
        Emulator(mesh(3)) as fabric,
        ranks(fabric, "ofo", ["all_sum:1000"], ours=["--linger-s", "0.7"]) as group,
    ):
        group.all_right()


def test_a_rank_that_is_done_too_early() -> None:
    """A stock rank that ends while others still need it looks as if it had died."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "of", ["all_sum:1000"], ours=["--after", "all_gather:70000"]) as group,
    ):
        error = group.failure(0)
        assert (error["type"], error["rank"]) == ("PeerDied", 1)
        assert error["op"] == "all_gather"


def test_one_of_ours_that_raises_is_told_of() -> None:
    """Our ranks tell each other more than JACCL can: here, that a program raised, and what."""
    with (
        Emulator(mesh(3)) as fabric,
        ranks(fabric, "ofo", ["all_sum:1000", "wrong:2"], foreign=["--repeat", "2"]) as group,
    ):
        error = group.failure(0)
        assert (error["type"], error["rank"]) == ("RemoteFailure", 2)
        assert error["remote_type"] == "RuntimeError"
        assert "rank 2 does what it should not" in error["message"]


@pytest.mark.parametrize("leaver", [0, 1])
def test_one_of_ours_that_leaves_is_told_of(leaver: int) -> None:
    """A rank of ours that closes in order is PeerLeft for one of ours that waits for it."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "oo", ["all_sum:1000", f"leave:{leaver}"]) as group,
    ):
        error = group.failure(1 - leaver)
        assert (error["type"], error["rank"], error["op"]) == ("PeerLeft", leaver, "recv")
        assert group.processes[leaver].wait(30) == 0


# --- silence


def test_a_rank_that_stops_for_a_while_is_no_fault() -> None:
    """A frozen rank that goes on within the limit changes nothing but the time."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(
            fabric, "of", ["all_sum:1000"], ours=["--say", "--repeat", "3000"],
            foreign=["--repeat", "3000"],
        ) as group,
    ):  # fmt: skip
        group.wait_for_line(0)
        group.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        assert group.processes[0].poll() is None
        group.processes[1].send_signal(signal.SIGCONT)
        group.all_right()


@pytest.mark.parametrize("make", [mesh, ring])
def test_a_rank_that_stops_for_good(make: Make) -> None:
    """Nothing tells of a frozen rank but the clock: NoProgress names whom this rank waits for."""
    with (
        Emulator(make(2)) as fabric,
        ranks(
            fabric, "fo", ["all_sum:1000"], ours=[*SAYING, *SHORT_LIMITS], foreign=FOR_EVER
        ) as group,
    ):
        group.wait_for_line(1)
        group.processes[0].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        error = group.failure(1)
        assert 0.9 < time.monotonic() - began < PROMPT_S
        assert (error["type"], error["rank"], error["waiting_for"]) == ("NoProgress", 0, 0)
        assert "in all_sum int32[1000]" in error["cause"]


def test_without_side_channel_only_clocks_watch(tmp_path: Path) -> None:
    """With a function in place of connections, a death shows by the limit of progress."""
    files = ["--files", str(tmp_path)]
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "oo", ["all_sum:1000"], ours=[*SAYING, *SHORT_LIMITS, *files]) as group,
    ):
        group.wait_for_line(0)
        group.processes[1].kill()
        error = group.failure(0)
        assert (error["type"], error["waiting_for"]) == ("NoProgress", 1)


def test_ctrl_c_ends_a_wait() -> None:
    """A signal's exception comes out of a wait that would last."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "oo", ["all_sum:1000"], ours=SAYING) as group,
    ):
        group.wait_for_line(0)
        group.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        began = time.monotonic()
        group.processes[0].send_signal(signal.SIGINT)
        _, complaint = group.processes[0].communicate(timeout=30)
        assert time.monotonic() - began < PROMPT_S
        assert "KeyboardInterrupt" in complaint


# --- lost messages and cables


@pytest.mark.parametrize(
    ("make", "operations", "kind"),
    [
        (mesh, ["all_sum:1000"], "lose"),
        (mesh, ["all_gather:5000", "sum_scatter:5000"], "duplicate"),
        (ring, ["all_sum:1000"], "duplicate"),
        (ring, ["all_gather:5000", "sum_scatter:5000"], "lose"),
    ],
)
def test_a_lost_message_between_ours_is_no_result(
    make: Make, operations: list[str], kind: str
) -> None:
    """Between our ranks a message that is lost, or comes twice, is CollectiveMismatch."""
    with Emulator(make(2)) as fabric:
        fault = fabric.fault(kind, at="mac1:rdma_en2", first=6)
        options = ["--repeat", "30", *SHORT_LIMITS]
        with ranks(fabric, "oo", operations, ours=options) as group:
            for rank in range(2):
                error = group.failure(rank, status=76)
                assert error["type"] == "CollectiveMismatch"
                assert "message " in error["cause"]
        assert fault.applied() == 1


def test_other_frames_are_noticed() -> None:
    """A rank with the frames of another macOS is a mismatch at the first large message."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "of", ["all_sum:100000"], ours=["--frames", "4k"]) as group,
    ):
        error = group.failure(0, status=76)
        assert (error["type"], error["rank"]) == ("CollectiveMismatch", 1)
        assert "does not have the 4096 bytes it should have" in error["cause"]


@pytest.mark.parametrize(("state", "words"), [("down", "rdma_en2 is DOWN"), ("errors", "failed")])
def test_a_cable_that_is_pulled(state: str, words: str) -> None:
    """A cable that goes in the middle of things is LinkLost, silent or not."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "of", ["all_sum:20000"], ours=SAYING, foreign=FOR_EVER) as group,
    ):
        group.wait_for_line(0)
        fabric.cable("c0", "down" if state == "down" else "errors")
        error = group.failure(0)
        assert (error["type"], error["rank"]) == ("LinkLost", 1), error
        assert words in error["cause"]
        assert "rdma rdma_en2 (169.254.1.1) to 169.254.1.2" in error["cause"]


def test_a_call_that_fails() -> None:
    """A post that is refused is named with its number."""
    with Emulator(mesh(2)) as fabric:
        fabric.fault("fail", call="post_send", at="mac0", first=20, value=22)
        with ranks(fabric, "of", ["all_sum:1000"], ours=FOR_EVER, foreign=FOR_EVER) as group:
            error = group.failure(0)
    assert error["type"] == "LinkLost"
    assert "ibv_post_send over rdma rdma_en2" in error["cause"]
    assert "22" in error["cause"]


# --- failures of forming


FORMING = {
    "port down": ("port mac{}:rdma_en2 down", "port_down", "port is DOWN"),
    "no address": ("gids mac{}:rdma_en2 fe80", "no_gid", "no IPv4-mapped GID on rdma_en2"),
    "queue pairs": ("budget mac{}:rdma_en2 queue_pairs 0", "queue_pairs_used_up", "16 (EBUSY"),
    "regions": ("budget mac{}:rdma_en2 memory_regions 0", "no_memory_region", "ibv_reg_mr"),
    "domains": ("budget mac{}:rdma_en2 protection_domains 0", "no_protection_domain", "ibv_alloc"),
    "rtr 60": ("fault fail at=mac{} call=modify_rtr value=60", "address_elsewhere", "60"),
    "rtr 22": ("fault fail at=mac{} call=modify_rtr value=22", "address_refused", "22"),
}


@pytest.mark.parametrize(
    ("case", "broken"), [*((case, 0) for case in FORMING), ("port down", 1), ("rtr 60", 1)]
)
def test_what_can_fail_while_forming(case: str, broken: int) -> None:
    """What a device refuses is named on its rank, with code, device and peer; the other rank names
    the one that ended.
    """
    command, code, words = FORMING[case]
    with Emulator(mesh(2)) as fabric:
        fabric.command(command.format(broken))
        with ranks(fabric, "oo", [], ours=["--timeout-s", "4"]) as group:
            error = group.failure(broken, status=69)
            other = group.failure(1 - broken)
    assert (error["type"], error["code"], error["device"]) == ("FabricError", code, "rdma_en2")
    assert (error["rank"], error["peer"]) == (broken, 1 - broken)
    assert words in error["message"]
    assert error["message"].startswith(f"rank {broken} on ")
    assert (other["type"], other["rank"]) == ("PeerDied", broken), other
    assert "side channel" in other["cause"]


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    """A device file that names a device this host has not says so."""
    with Emulator(mesh(2)) as fabric:
        file = tmp_path / "devices.json"
        file.write_text('[[null, "rdma_en9"], ["rdma_en2", null]]')
        variables = {"JACCL_IBV_DEVICES": str(file)}
        with ranks(fabric, "of", [], more=variables) as group:
            error = group.failure(0, status=69)
    assert (error["code"], error["device"]) == ("no_such_device", "rdma_en9")
    assert "rdma_en2" in error["message"]


def test_crossed_cables() -> None:
    """Cables that lead to other ranks than the device file says are an error, and no hang."""
    with Emulator(mesh(3)) as fabric:
        rows = fabric.topology.jaccl_matrix()
        rows[0][1], rows[0][2] = rows[0][2], rows[0][1]
        fabric.devices_file.write_text(json.dumps(rows))
        with ranks(fabric, "ooo", [], ours=["--timeout-s", "10"]) as group:
            error = group.failure(0, status=69)
    assert (error["type"], error["code"], error["error"]) == (
        "FabricError",
        "address_elsewhere",
        60,
    )
    assert error["peer"] in (1, 2)


def test_a_rank_that_never_starts() -> None:
    """Rank 0 names who is missing; a stock rank that waits is let go."""
    with (
        Emulator(mesh(3)) as fabric,
        ranks(fabric, "off", [], ours=["--timeout-s", "4"], only=[0, 1]) as group,
    ):
        error = group.failure(0, status=69)
        assert (error["type"], error["missing"]) == ("RendezvousError", [2]), error
        assert group.processes[1].wait(30) == 1


def test_a_tool_that_knows_nothing_of_it() -> None:
    """Without variables there is no group, and the error lists them."""
    with Emulator(mesh(2)) as fabric:
        nothing = {"JACCL_IBV_DEVICES": "", "MLX_IBV_DEVICES": ""}
        with ranks(fabric, "oo", [], more=nothing, only=[0]) as group:
            said, _ = group.processes[0].communicate(timeout=30)
    assert "cannot read the device file" in said


def test_survivors_that_are_stock_spin_on() -> None:
    """The test's own premise: an independent rank sees nothing of a death."""
    with (
        Emulator(mesh(2)) as fabric,
        ranks(fabric, "of", ["all_sum:1000"], ours=SAYING, foreign=FOR_EVER) as group,
    ):
        group.wait_for_line(0)
        group.processes[0].kill()
        with pytest.raises(subprocess.TimeoutExpired):
            group.processes[1].wait(1)
