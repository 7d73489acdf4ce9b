"""Messages between two queue pairs: what arrives, when, and what becomes of what cannot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from standfast.testing.emulator import Emulator
from standfast.testing.topology import Topology, mesh, switched
from tests.emulator.conftest import Opener, Pairer
from tests.emulator.verbs import (
    ERR,
    FLUSHED,
    LENGTH_ERROR,
    PROTECTION_ERROR,
    RC,
    RETRY_EXCEEDED,
    RNR_EXCEEDED,
    RTS,
    SUCCESS,
    UC,
    WC_RECV,
    Link,
    connect,
    until,
)

ONE, OTHER = "mac0:rdma_en2", "mac1:rdma_en2"
FRAME = 4096
MESSAGE_MAX = 16_773_120


def fill(link: Link, seed: int) -> None:
    link.memory[:] = np.random.default_rng(seed).integers(0, 256, link.memory.size, np.uint8)


@pytest.mark.parametrize(
    "size",
    [0, 1, 8, 32, 33, FRAME - 1, FRAME, FRAME + 1, 65535, 65536, 65537, 1 << 20, MESSAGE_MAX],
)
def test_a_message_arrives_as_it_was_sent(fabric: Emulator, make_pair: Pairer, size: int) -> None:
    """Every size arrives bit for bit, both ways, and nothing beside it is touched."""
    one, other = make_pair(fabric, MESSAGE_MAX + FRAME)
    for sender, receiver in ((one, other), (other, one)):
        fill(sender, size)
        receiver.memory[:] = 0
        assert receiver.post_receive(64, size, wr_id=5) == 0
        assert sender.post_send(128, size, wr_id=6) == 0
        (got,) = receiver.wait()
        (done,) = sender.wait()
        assert (done.wr_id, done.status, done.opcode) == (6, SUCCESS, 0)
        assert (got.wr_id, got.status, got.opcode) == (5, SUCCESS, WC_RECV)
        assert (got.byte_len, got.qp_num) == (size, receiver.number)
        assert np.array_equal(receiver.memory[64 : 64 + size], sender.memory[128 : 128 + size])
        assert not receiver.memory[:64].any()
        assert not receiver.memory[64 + size :].any()


def test_messages_keep_their_order(fabric: Emulator, make_pair: Pairer) -> None:
    """Messages of a queue pair arrive in the order in which they were sent, into the receives in
    theirs.
    """
    one, other = make_pair(fabric, 40 * FRAME)
    sizes = [int(size) for size in np.random.default_rng(7).integers(1, FRAME, 400)]
    got: list[tuple[int, int]] = []
    for begin in range(0, len(sizes), 20):
        batch = sizes[begin : begin + 20]
        for place in range(len(batch)):
            assert other.post_receive(place * FRAME, FRAME, wr_id=begin + place) == 0
        for place, size in enumerate(batch):
            one.memory[place * FRAME : place * FRAME + 4] = list((begin + place).to_bytes(4))
            assert one.post_send(place * FRAME, size) == 0
        for each in other.wait(len(batch)):
            number = int.from_bytes(
                other.memory[(each.wr_id - begin) * FRAME :][:4].tobytes()[: min(4, each.byte_len)]
            )
            got.append((each.wr_id, each.byte_len))
            assert number == each.wr_id >> 8 * max(0, 4 - each.byte_len)
        one.wait(len(batch))
    assert got == list(enumerate(sizes))


def test_a_send_waits_for_a_receive(fabric: Emulator, make_pair: Pairer) -> None:
    """Credit: without a posted receive a send does not complete; with one it does."""
    one, other = make_pair(fabric)
    assert one.post_send(0, FRAME) == 0
    assert one.silence(0.05)
    assert other.post_receive(0, FRAME) == 0
    assert one.wait()[0].status == SUCCESS
    assert other.wait()[0].status == SUCCESS
    assert fabric.counters(ONE)["sent"] == 1


def test_what_waits_goes_on_without_polls(fabric: Emulator, make_pair: Pairer) -> None:
    """A send that waited leaves, and arrives, though neither program polls: both are counted."""
    one, other = make_pair(fabric, 1 << 20)
    fill(one, 1)
    assert one.post_send(0, 1 << 20) == 0
    assert other.post_receive(0, 1 << 20) == 0
    until(lambda: fabric.counters(OTHER)["received"] == 1)
    assert np.array_equal(one.memory, other.memory)
    assert one.wait()[0].status == other.wait()[0].status == SUCCESS


def test_drop_loses_what_is_not_awaited(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """Drop: a send without a receive completes and is lost; the next one arrives."""
    fabric = make_fabric(mesh(2, settings=["policy drop"]))
    one, other = make_pair(fabric)
    one.memory[0] = 1
    assert one.post_send(0, 8, wr_id=1) == 0
    assert one.wait()[0].status == SUCCESS
    one.memory[0] = 2
    assert other.post_receive(0, 8) == 0
    assert one.post_send(0, 8, wr_id=2) == 0
    assert other.wait()[0].status == SUCCESS
    assert other.memory[0] == 2
    counters = fabric.counters(ONE)
    assert (counters["no_receive"], counters["sent"]) == (1, 1)


@pytest.mark.parametrize(("policy", "completes"), [("credit", False), ("absent-completes", True)])
def test_a_destroyed_peer(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer, policy: str, completes: bool
) -> None:
    """Sends to a queue pair that is gone: silence, or completions where the policy says so."""
    fabric = make_fabric(mesh(2, settings=[f"policy {policy}"]))
    one, other = make_pair(fabric)
    other.close()
    assert one.post_send(0, FRAME) == 0
    if completes:
        assert one.wait()[0].status == SUCCESS
        assert fabric.counters(ONE)["absent"] == 1
    else:
        assert one.silence(0.1)
        assert fabric.counters(ONE)["sent"] == 0


def test_a_new_queue_pair_is_not_the_old_one(
    fabric: Emulator, make_pair: Pairer, open_port: Opener
) -> None:
    """What is sent to a queue pair that is gone does not reach the one that took its place."""
    one, other = make_pair(fabric)
    other.close()
    others = [Link(open_port(fabric, "mac1", "rdma_en2"), FRAME) for _ in range(10)]
    try:
        gid = one.device.gid(1)
        for each in others:
            each.connect(one.number, gid)
            assert each.post_receive(0, FRAME) == 0
        assert one.post_send(0, FRAME) == 0
        assert one.silence(0.05)
        assert all(not each.poll() for each in others)
    finally:
        for each in others:
            each.close()


@pytest.mark.parametrize(
    ("sent", "awaited", "status"),
    [
        (FRAME, FRAME, SUCCESS),
        (1, FRAME, SUCCESS),
        (FRAME + 1, 2 * FRAME, SUCCESS),
        (FRAME, 2 * FRAME, LENGTH_ERROR),
        (2 * FRAME, FRAME, LENGTH_ERROR),
        (FRAME, FRAME - 1, LENGTH_ERROR),
    ],
)
def test_frames_have_to_match(
    fabric: Emulator, make_pair: Pairer, sent: int, awaited: int, status: int
) -> None:
    """A receive with another number of 4 KiB frames, or too short, fails and is left untouched."""
    one, other = make_pair(fabric)
    fill(one, 3)
    assert other.post_receive(0, awaited) == 0
    assert one.post_send(0, sent) == 0
    assert one.wait()[0].status == SUCCESS
    (got,) = other.wait()
    assert got.status == status
    assert other.memory.any() == (status == SUCCESS)
    assert fabric.counters(OTHER)["frame_mismatch"] == (status != SUCCESS)
    # The connection goes on.
    assert other.post_receive(0, FRAME) == 0
    assert one.post_send(0, FRAME) == 0
    assert other.wait()[0].status == SUCCESS


def test_roce_receives_may_be_longer(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """On RoCE a receive only has to be long enough."""
    one, other = make_pair(make_fabric(switched(2)), kind=RC)
    assert other.post_receive(0, 3 * FRAME) == 0
    assert one.post_send(0, FRAME) == 0
    (got,) = other.wait()
    assert (got.status, got.byte_len) == (SUCCESS, FRAME)


@pytest.mark.parametrize("which", ["unknown", "beyond"])
def test_memory_has_to_be_registered(fabric: Emulator, make_pair: Pairer, which: str) -> None:
    """A send from memory that is not registered fails, and so does all that follows."""
    one, _ = make_pair(fabric, 2 * FRAME)
    begin, key = (0, 12345) if which == "unknown" else (FRAME, None)
    assert _.post_receive(0, 2 * FRAME) == 0
    assert one.post_send(begin, 2 * FRAME, wr_id=1, lkey=key) == 0
    assert [(each.wr_id, each.status) for each in one.wait()] == [(1, PROTECTION_ERROR)]
    assert one.post_send(0, 8, wr_id=2) == 0
    assert [(each.wr_id, each.status) for each in one.wait()] == [(2, FLUSHED)]


def test_memory_is_left_alone_once_it_is_not_registered(
    fabric: Emulator, make_pair: Pairer
) -> None:
    """A region that is gone is not written to, though a receive into it was posted."""
    one, other = make_pair(fabric)
    fill(one, 5)
    assert other.post_receive(0, FRAME) == 0
    assert other.library.ibv_dereg_mr(other.region) == 0
    other.region = 0
    assert one.post_send(0, FRAME) == 0
    assert other.wait()[0].status == PROTECTION_ERROR
    assert not other.memory.any()
    assert fabric.reports() == [f"dereg_mr {OTHER}: 1 queue pairs that may use it are still there"]


def test_the_error_state_flushes(fabric: Emulator, make_pair: Pairer) -> None:
    """A queue pair that is moved to the error state gives back everything as flushed."""
    one, _ = make_pair(fabric)
    assert one.post_receive(0, FRAME, wr_id=1) == 0
    assert one.post_send(0, FRAME, wr_id=2) == 0
    assert one.modify(0, qp_state=ERR) == 0
    assert {(each.wr_id, each.status) for each in one.wait(2)} == {(1, FLUSHED), (2, FLUSHED)}
    assert one.post_receive(0, FRAME, wr_id=3) == 0
    assert [(each.wr_id, each.status) for each in one.wait()] == [(3, FLUSHED)]


def test_both_ends_reset_start_again(fabric: Emulator, make_pair: Pairer) -> None:
    """Queue pairs that were reset and connected again carry messages, and no old ones."""
    one, other = make_pair(fabric)
    assert one.post_send(0, FRAME) == 0
    for each in (one, other):
        assert each.modify(0, qp_state=0) == 0
    connect(one, other)
    one.memory[0] = 9
    assert other.post_receive(0, FRAME) == 0
    assert one.post_send(0, FRAME) == 0
    assert other.wait()[0].status == one.wait()[0].status == SUCCESS
    assert other.memory[0] == 9
    assert not other.poll()


def test_all_sent_before_a_queue_pair_goes_arrives(fabric: Emulator, make_pair: Pairer) -> None:
    """What completed at the sender arrives, though the sender's queue pair is destroyed at once."""
    one, other = make_pair(fabric, 8 * FRAME)
    fill(one, 11)
    for place in range(8):
        assert other.post_receive(place * FRAME, FRAME) == 0
    for place in range(8):
        assert one.post_send(place * FRAME, FRAME) == 0
    one.wait(8)
    sent = one.memory.copy()
    one.close()
    assert all(each.status == SUCCESS for each in other.wait(8))
    assert np.array_equal(other.memory, sent)


def test_an_event_wakes_a_sleeper(fabric: Emulator, open_port: Opener) -> None:
    """A completion channel tells of a completion on a queue that was armed."""
    device = open_port(fabric, "mac1", "rdma_en2")
    channel = device.library.ibv_create_comp_channel(device.context)
    other = Link(device, FRAME, channel=channel)
    one = Link(open_port(fabric, "mac0", "rdma_en2"), FRAME)
    try:
        connect(one, other)
        other.arm()
        assert other.post_receive(0, FRAME) == 0
        assert one.post_send(0, FRAME) == 0
        assert other.wait_event(channel) == other.queue
        assert other.wait()[0].status == SUCCESS
    finally:
        one.close()
        other.close()
        assert device.library.ibv_destroy_comp_channel(channel) == 0


def test_a_reliable_peer_that_is_gone_is_reported(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """RC: after its retries a send fails, and the rest is flushed."""
    fabric = make_fabric(switched(2))
    one, other = make_pair(fabric, kind=RC, timeout=12, retries=1)
    other.close()
    assert one.post_receive(0, FRAME, wr_id=1) == 0
    assert one.post_send(0, FRAME, wr_id=2) == 0
    assert one.post_send(0, FRAME, wr_id=3) == 0
    statuses = {each.wr_id: each.status for each in one.wait(3)}
    assert statuses == {1: FLUSHED, 2: RETRY_EXCEEDED, 3: FLUSHED}


def test_a_reliable_peer_that_is_not_ready_is_waited_for(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """RC: without a receive the sender waits as `rnr_retry` says: 7 for ever, less not for long."""
    fabric = make_fabric(switched(2))
    one, other = make_pair(fabric, kind=RC, rnr=7)
    assert one.post_send(0, FRAME) == 0
    assert one.silence(0.1)
    assert other.post_receive(0, FRAME) == 0
    assert one.wait()[0].status == SUCCESS
    three, _ = make_pair(fabric, kind=RC, rnr=1)
    assert three.post_send(0, FRAME) == 0
    assert three.wait()[0].status == RNR_EXCEEDED


def test_roce_has_unreliable_queue_pairs_that_drop(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """RoCE: UC loses what is not awaited."""
    fabric = make_fabric(switched(2))
    one, _ = make_pair(fabric, kind=UC)
    assert one.post_send(0, FRAME) == 0
    assert one.wait()[0].status == SUCCESS
    assert fabric.counters("spark0:rocep1s0f0")["no_receive"] == 1


def test_a_queue_pair_tells_its_state(fabric: Emulator, make_pair: Pairer) -> None:
    """ibv_query_qp answers what was set."""
    one, other = make_pair(fabric)
    attributes = one.query()
    assert (attributes.qp_state, attributes.dest_qp_num) == (RTS, other.number)
    assert bytes(attributes.ah_attr.dgid.raw) == other.device.gid(1)


def test_infiniband_has_local_addresses(
    make_fabric: Callable[[Topology], Emulator], open_port: Opener
) -> None:
    """InfiniBand: no IPv4-mapped GID, a link layer of its own, and a connection by LIDs."""
    fabric = make_fabric(switched(2, profile="infiniband"))
    ports = [open_port(fabric, host, "rocep1s0f0") for host in fabric.topology.hosts]
    assert [each.port().link_layer for each in ports] == [1, 1]
    for each in ports:
        with pytest.raises(LookupError):
            each.ipv4_index()
    one, other = (Link(each, FRAME, kind=RC) for each in ports)
    for link, peer in ((one, other), (other, one)):
        link.to_init()
        assert link.to_rtr_by_lid(peer.number, 99) == 60
        assert link.to_rtr_by_lid(peer.number, link.device.port().lid) == 60
        assert link.to_rtr_by_lid(peer.number, peer.device.port().lid) == 0
        link.to_rts()
    assert other.post_receive(0, FRAME) == one.post_send(0, FRAME) == 0
    assert one.wait()[0].status == other.wait()[0].status == SUCCESS
    one.close()
    other.close()


def test_a_reliable_peer_that_never_was(
    make_fabric: Callable[[Topology], Emulator], make_pair: Pairer
) -> None:
    """RC towards a number that nobody has: the retries run out."""
    one, other = make_pair(make_fabric(switched(2)), kind=RC)
    other_gid = other.device.gid(other.device.ipv4_index())
    for number in (other.number + 1, 0xFFFF00):
        assert one.modify(0, qp_state=0) == 0
        one.connect(number, other_gid, timeout=10, retries=0)
        assert one.post_send(0, FRAME) == 0
        assert one.wait()[0].status == RETRY_EXCEEDED
