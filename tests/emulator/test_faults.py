"""Faults that are asked for: each strikes what it names, is counted, and nothing else changes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from standfast.testing.emulator import Emulator
from standfast.testing.topology import Topology, switched
from tests.emulator.conftest import Opener, Pairer
from tests.emulator.verbs import (
    ACTIVE,
    FLUSHED,
    GENERAL_ERROR,
    PROTECTION_ERROR,
    RC,
    RETRY_EXCEEDED,
    SUCCESS,
    Device,
    Link,
    VerbsError,
    environment,
    until,
)

ONE, OTHER = "mac0:rdma_en2", "mac1:rdma_en2"
FRAME = 4096
MILLISECOND = 1_000_000


def talk(one: Link, other: Link, messages: int, awaited: int) -> list[int]:
    """Send `messages` frames that hold their number; return the numbers that arrived."""
    for place in range(max(messages, awaited)):
        assert other.post_receive(place * FRAME, FRAME, wr_id=place) == 0
    for place in range(messages):
        one.memory[place * FRAME] = place
        assert one.post_send(place * FRAME, FRAME, wr_id=place) == 0
    assert [each.wr_id for each in one.wait(messages)] == list(range(messages))
    got = other.wait(awaited)
    assert all(each.status == SUCCESS for each in got)
    return [int(other.memory[each.wr_id * FRAME]) for each in got]


@pytest.fixture
def two(fabric: Emulator, make_pair: Pairer) -> tuple[Link, Link]:
    return make_pair(fabric, 32 * FRAME)


def test_lose(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """The third and fourth message are lost: they complete, use up no receive, and are counted."""
    fault = fabric.fault("lose", at=ONE, first=2, count=2)
    assert talk(*two, messages=6, awaited=4) == [0, 1, 4, 5]
    assert two[1].silence(0.01)
    assert (fault.seen(), fault.applied()) == (6, 2)
    counters = fabric.counters(ONE)
    assert (counters["lost"], counters["sent"]) == (2, 4)


def test_only_one_end_is_struck(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """A fault at one port leaves the other direction alone; without a place it strikes both."""
    fabric.fault("lose", at=OTHER, count=None)
    assert talk(*two, messages=3, awaited=3) == [0, 1, 2]
    fabric.clear_faults()
    everywhere = fabric.fault("lose", count=None)
    assert two[0].post_send(0, FRAME) == two[1].post_send(0, FRAME) == 0
    two[0].wait()
    two[1].wait()
    assert everywhere.applied() == 2
    everywhere.clear()
    by_host = fabric.fault("lose", at="mac0")
    assert two[0].post_send(0, FRAME) == 0
    two[0].wait()
    assert by_host.applied() == 1


def test_duplicate(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """The second message arrives twice, and completes once."""
    fabric.fault("duplicate", at=ONE, first=1)
    assert talk(*two, messages=3, awaited=4) == [0, 1, 1, 2]
    assert fabric.counters(ONE)["duplicated"] == 1
    assert two[0].silence(0.01)


def test_corrupt(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """One bit of one byte is flipped, in the message that was named."""
    one, other = two
    fabric.fault("corrupt", at=ONE, first=1, value=FRAME - 1)
    one.memory[:] = 7
    talk(one, other, 3, 3)
    differs = np.flatnonzero(one.memory[: 3 * FRAME] != other.memory[: 3 * FRAME])
    assert differs.tolist() == [2 * FRAME - 1]
    assert other.memory[2 * FRAME - 1] == 6
    assert fabric.counters(ONE)["corrupted"] == 1


def test_truncate(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """The rest of a message is missing: with the same number of frames it arrives short."""
    one, other = two
    fabric.fault("truncate", at=ONE, value=100)
    assert other.post_receive(0, FRAME) == 0
    assert one.post_send(0, FRAME) == 0
    (got,) = other.wait()
    assert (got.status, got.byte_len) == (SUCCESS, 100)
    assert fabric.counters(ONE)["truncated"] == 1


def test_delay(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """A delayed message, and what is behind it, comes later; nothing is lost or out of order."""
    fabric.fault("delay", at=ONE, first=1, value=50 * MILLISECOND)
    began = time.monotonic()
    assert talk(*two, messages=4, awaited=4) == [0, 1, 2, 3]
    assert time.monotonic() - began > 0.05
    assert fabric.counters(ONE)["delayed"] == 1


def test_reorder(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """A message goes after the next one; the last one, after a while, by itself."""
    fabric.fault("reorder", at=ONE, first=1)
    assert talk(*two, messages=4, awaited=4) == [0, 2, 1, 3]
    fabric.fault("reorder", at=ONE)
    assert talk(*two, messages=1, awaited=1) == [0]
    assert fabric.counters(ONE)["reordered"] == 2


def test_reorder_waits_for_the_end_of_a_long_message(fabric: Emulator, make_pair: Pairer) -> None:
    """A message that was held back for too long never goes in the midst of another one."""
    size = 3 << 20
    one, other = make_pair(fabric, size + FRAME)
    fabric.fault("reorder", at=ONE)
    one.memory[:] = 1
    one.memory[size:] = 2
    assert one.post_send(size, FRAME) == 0
    # The long one is under way, and stands still: its receiver does not take what is in the arena.
    fabric.fault("slow", call="read_piece", at=OTHER, count=1, value=300 * MILLISECOND)
    assert other.post_receive(0, size) == other.post_receive(size, FRAME) == 0
    assert one.post_send(0, size) == 0
    assert [each.status for each in one.wait(2)] == [SUCCESS] * 2
    assert [each.byte_len for each in other.wait(2)] == [size, FRAME]
    assert np.array_equal(other.memory, one.memory)


def test_chance_is_repeatable(fabric: Emulator, make_pair: Pairer) -> None:
    """With a probability, a seed strikes the same messages each time, and another one others."""

    def arrived(seed: int) -> list[int]:
        one, other = make_pair(fabric, 32 * FRAME)
        fault = fabric.fault("lose", at=ONE, count=None, probability=0.3, seed=seed)
        for place in range(30):
            assert other.post_receive(place * FRAME, FRAME, wr_id=place) == 0
        for place in range(30):
            one.memory[place * FRAME] = place
            assert one.post_send(place * FRAME, FRAME) == 0
        one.wait(30)
        got = other.wait(30 - fault.applied())
        fault.clear()
        return [int(other.memory[each.wr_id * FRAME]) for each in got]

    first, again, another = arrived(1), arrived(1), arrived(2)
    assert first == again != another
    assert 0 < len(first) < 30


@pytest.mark.parametrize("side", ["send", "receive"])
def test_a_completion_fails(fabric: Emulator, two: tuple[Link, Link], side: str) -> None:
    """The second completion has the status that was asked for; the others succeed."""
    one, other = two
    fabric.fault(f"fail-{side}", at=ONE if side == "send" else OTHER, first=1, value=10)
    for place in range(3):
        assert other.post_receive(place * FRAME, FRAME) == 0
        assert one.post_send(place * FRAME, FRAME) == 0
    sent, got = one.wait(3), other.wait(3)
    struck, spared = (sent, got) if side == "send" else (got, sent)
    assert [each.status for each in struck] == [SUCCESS, 10, SUCCESS]
    assert [each.status for each in spared] == [SUCCESS] * 3


CALLS = [
    ("get_device_list", "get_device_list returned NULL"),
    ("open_device", "open_device returned NULL"),
    ("query_port", "query_port returned 77"),
    ("query_gid", "query_gid"),
    ("query_device", "query_device returned 77"),
    ("alloc_pd", "alloc_pd returned NULL"),
    ("create_cq", "create_cq returned NULL"),
    ("reg_mr", "reg_mr returned NULL"),
    ("create_qp", "create_qp returned NULL"),
    ("modify_init", "INIT returned 77"),
    ("modify_rtr", "RTR returned 77"),
    ("modify_rts", "RTS returned 77"),
    ("query_qp", "query_qp returned 77"),
    ("post_recv", "post_recv returned 77"),
    ("post_send", "post_send returned 77"),
    ("poll_cq", "poll_cq"),
    ("destroy_qp", "destroy_qp returned 77"),
    ("dereg_mr", "dereg_mr returned 77"),
    ("destroy_cq", "destroy_cq returned 77"),
    ("dealloc_pd", "dealloc_pd returned 77"),
    ("close_device", "close_device returned 77"),
]


def live(fabric: Emulator, library: ctypes.CDLL) -> None:
    """Make every call that there is, in order; VerbsError at the first that fails."""
    with environment(fabric.environment("mac0", {})):
        device = Device(library, "rdma_en2")
    device.attributes()
    link = None
    try:
        link = Link(device, FRAME)
        link.connect(0x101, device.gid(1)[:15] + b"\2")
        link.query()
        for name, post in (("post_recv", link.post_receive), ("post_send", link.post_send)):
            if (status := post(0, FRAME)) != 0:
                raise VerbsError(status, f"{name} returned {status}")
        link.poll()
        link.close()
        device.close()
    finally:
        # A second time, for what was not done because of the fault.
        if link is not None:
            link.close()
        device.close()


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_a_call_fails(fabric: Emulator, library: ctypes.CDLL, call: str, message: str) -> None:
    """Each call can be made to fail with a number, once."""
    fault = fabric.fault("fail", call=call, value=77)
    with pytest.raises(VerbsError, match=message) as caught:
        live(fabric, library)
    assert abs(caught.value.errno or 0) == (1 if call == "poll_cq" else 77)
    assert fault.applied() == 1


def test_the_nth_call_fails(fabric: Emulator, open_port: Opener) -> None:
    """Calls are counted: the third registration fails, those around it do not."""
    fabric.fault("fail", call="reg_mr", at=ONE, first=2, value=12)
    link = Link(open_port(fabric, "mac0", "rdma_en2"), FRAME)
    regions = [link.register(link.memory) for _ in range(3)]
    assert [region is not None for region in regions] == [True, False, True]
    for region in regions:
        if region:
            link.library.ibv_dereg_mr(region)
    link.close()


def test_a_call_is_slow(fabric: Emulator, open_port: Opener) -> None:
    """RTR that takes its time."""
    fabric.fault("slow", call="modify_rtr", value=50 * MILLISECOND)
    link = Link(open_port(fabric, "mac0", "rdma_en2"), FRAME)
    began = time.monotonic()
    link.connect(0x101, link.device.gid(1)[:15] + b"\2")
    assert time.monotonic() - began >= 0.05
    link.close()


def test_a_pulled_cable_is_silence(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """Cable out: ports are down, and nothing completes; back in: all goes on."""
    one, other = two
    fabric.cable("c0", "down")
    assert one.device.port().state != ACTIVE
    assert other.device.port().state != ACTIVE
    assert other.post_receive(0, FRAME) == one.post_send(0, FRAME) == 0
    assert one.silence(0.05)
    assert other.silence(0.01)
    fabric.cable("c0", "up")
    assert one.wait()[0].status == other.wait()[0].status == SUCCESS


def test_a_pulled_cable_is_errors(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """The other variant: all that is posted completes with errors, the cause first."""
    one, _ = two
    for wr_id in (1, 2):
        assert one.post_receive(0, FRAME, wr_id=wr_id) == 0
    fabric.cable("c0", "errors")
    statuses = [each.status for each in one.wait(2)]
    assert statuses == [GENERAL_ERROR, FLUSHED]
    assert one.post_send(0, FRAME) == 0
    assert [each.status for each in one.wait()] == [FLUSHED]


def test_a_wedged_cable_hides_it(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """Wedged: ports stay active, and nothing moves."""
    one, other = two
    fabric.cable("c0", "wedged")
    assert one.device.port().state == ACTIVE
    assert other.post_receive(0, FRAME) == one.post_send(0, FRAME) == 0
    assert one.silence(0.05)


def test_a_renewed_link_cuts_off(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """A link that was made anew does not carry what was connected before."""
    one, other = two
    fabric.cable("c0", "renew")
    assert other.post_receive(0, FRAME) == one.post_send(0, FRAME) == 0
    assert one.silence(0.05)


def test_a_port_that_is_down_is_silent(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """One end switched off: nothing arrives there."""
    one, other = two
    fabric.port(OTHER, "down")
    assert other.post_receive(0, FRAME) == one.post_send(0, FRAME) == 0
    assert other.silence(0.05)
    fabric.port(OTHER, "up")
    assert other.wait()[0].status == SUCCESS


def test_roce_reports_a_pulled_cable(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """RC: with the cable out, the sender's retries run out."""
    fabric = make_fabric(switched(2))
    one, other = make_pair(fabric, kind=RC, timeout=12, retries=0)
    assert other.post_receive(0, FRAME) == 0
    fabric.cable("s0", "down")
    assert one.post_send(0, FRAME) == 0
    assert one.wait()[0].status == RETRY_EXCEEDED
    assert other.silence(0.01)


def test_an_address_that_comes_late(fabric: Emulator, open_port: Opener) -> None:
    """No IPv4-mapped GID at first, then one, at another index, on both ends: then RTR works."""
    fabric.gids(ONE, "fe80")
    device = open_port(fabric, "mac0", "rdma_en2")
    with pytest.raises(LookupError):
        device.ipv4_index()
    fabric.gids(ONE, "fe80", "none", "169.254.1.1")
    link = Link(device, FRAME)
    link.to_init()
    target = ipv4 = bytes(10) + b"\xff\xff\xa9\xfe\x01\x02"
    assert link.to_rtr(0x101, target, sgid_index=1) == 22
    assert link.to_rtr(0x101, ipv4, sgid_index=device.ipv4_index()) == 0
    link.close()


def test_the_trace_tells_every_message(fabric: Emulator, two: tuple[Link, Link]) -> None:
    """The trace has each message at both ends, with the same digest, and what became of it."""
    fabric.trace_on()
    fabric.fault("lose", at=ONE, first=1)
    talk(*two, messages=3, awaited=2)
    lines = fabric.trace()
    assert [(each["event"], each["wr_id"]) for each in lines if each["host"] == "mac0"] == [
        ("sent", 0),
        ("lost", 1),
        ("sent", 2),
    ]
    received = [each for each in lines if each["event"] == "received"]
    assert [each["digest"] for each in received] == [
        each["digest"] for each in lines if each["event"] == "sent"
    ]
    assert {each["bytes"] for each in lines} == {FRAME}
    assert {each["device"] for each in lines} == {"rdma_en2"}


def test_the_control_tool(fabric: Emulator) -> None:
    """A shell gives commands too; a wrong one is status 1, with the reason."""
    tool = [sys.executable, "-m", "standfast.testing.emulator", str(fabric.fabric)]
    assert subprocess.run([*tool, "cable", "c0", "down"], check=True).returncode == 0
    assert fabric.held(ONE)["active"] is False
    answer = subprocess.run([*tool, "ports"], check=True, capture_output=True, text=True)
    assert answer.stdout == '["mac0:rdma_en2", "mac1:rdma_en2"]\n'
    wrong = subprocess.run([*tool, "cable", "c0"], check=False, capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr) == (1, "'cable': too few words\n")


def test_roce_tells_of_ports_that_come_and_go(
    make_fabric: Callable[[Topology], Emulator], open_port: Opener
) -> None:
    """RoCE: a port that goes down and comes back is an asynchronous event each."""
    fabric = make_fabric(switched(2))
    device = open_port(fabric, "spark0", "rocep1s0f0")
    for state, event in (("down", 10), ("up", 9)):
        fabric.port("spark0:rocep1s0f0", state)  # type: ignore[arg-type]
        assert device.next_event() == event


def test_a_queue_that_is_too_short_is_lost(fabric: Emulator, make_pair: Pairer) -> None:
    """A completion queue that overruns says so to the poll, once what it has was taken."""
    one, other = make_pair(fabric, 32 * FRAME, completions=2)
    assert other.post_receive(0, FRAME) == 0
    for _unused in range(3):
        assert one.post_send(0, FRAME, lkey=99) == 0
    until(lambda: fabric.counters(ONE)["errors"] >= 3)
    assert [each.status for each in one.wait(2)] == [PROTECTION_ERROR, FLUSHED]
    with pytest.raises(VerbsError, match="poll_cq"):
        one.poll()
