"""Processes that die or stop on an emulated fabric, wherever they are: silence, and no damage."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from standfast.testing.emulator import Emulator
from tests.emulator.conftest import Opener, Pairer
from tests.emulator.peer import Peer
from tests.emulator.verbs import SUCCESS, Link, VerbsError, until

ONE, OTHER = "mac0:rdma_en2", "mac1:rdma_en2"
FRAME = 4096


@pytest.fixture
def here(fabric: Emulator, open_port: Opener) -> Iterator[Link]:
    """This process's queue pair, on mac0, not yet connected."""
    link = Link(open_port(fabric, "mac0", "rdma_en2"), 1 << 20)
    yield link
    link.close()


def meet(here: Link, peer: Peer) -> None:
    here.connect(peer.number, peer.gid)
    peer.do("connect", here.number, here.device.gid(1).hex())


def test_messages_between_processes(fabric: Emulator, here: Link) -> None:
    """Two processes exchange messages, small and large, in both directions."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        for size in (8, FRAME, 1 << 20):
            here.memory[:] = 3
            peer.do("fill", 0)
            assert peer.do("receive", 0, size) == 0
            assert here.post_send(0, size) == 0
            assert peer.do("wait", 1) == [SUCCESS]
            assert here.wait()[0].status == SUCCESS
            assert peer.do("count", 3) == size
            assert here.post_receive(0, size) == 0
            peer.do("fill", 4)
            peer.do("send", 0, size)
            assert here.wait()[0].status == SUCCESS
            assert int((here.memory == 4).sum()) == size
            peer.do("wait", 1)


def test_a_dead_peer_is_silence(fabric: Emulator, here: Link) -> None:
    """After SIGKILL: what had been posted still takes messages, then nothing completes, ever, and
    the port stays active.
    """
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        for _ in range(2):
            peer.do("receive", 0, FRAME)
        peer.process.kill()
        peer.status()
        assert here.post_receive(0, FRAME) == 0
        for wr_id in range(3):
            assert here.post_send(0, FRAME, wr_id=wr_id) == 0
        assert [(each.wr_id, each.status) for each in here.wait(2)] == [(0, SUCCESS), (1, SUCCESS)]
        assert here.silence(0.3)
        assert here.device.port().state == 4


def test_what_the_dead_had_is_given_back(fabric: Emulator, open_port: Opener) -> None:
    """What a killed process had can be had by another at once, though nobody has reaped it yet."""
    with Peer(fabric, "mac0") as peer:
        peer.do("hold", 9, 90)
        device = open_port(fabric, "mac0", "rdma_en2")
        with pytest.raises(VerbsError):
            Link(device, FRAME)
        os.kill(peer.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, peer.process.pid, os.WEXITED | os.WNOWAIT)
        links = [Link(device, FRAME) for _ in range(10)]
        assert len(fabric.held(ONE)["queue_pairs"]) == 10
        for link in links:
            link.close()


@pytest.mark.parametrize(("kind", "status"), [("kill", -signal.SIGKILL), ("segv", -signal.SIGSEGV)])
def test_an_end_inside_the_nth_call(fabric: Emulator, here: Link, kind: str, status: int) -> None:
    """The process ends inside of its third send: two messages arrive, and no more."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        fault = fabric.fault(kind, call="post_send", at=OTHER, first=2)
        for place in range(4):
            assert here.post_receive(place * FRAME, FRAME) == 0
        assert [peer.do("send", 0, FRAME) for _ in range(2)] == [0, 0]
        peer.ask("send", 0, FRAME)
        assert peer.status() == status
        assert fault.applied() == 1
        assert [each.status for each in here.wait(2)] == [SUCCESS] * 2
        assert here.silence(0.05)


def test_a_stop_inside_a_call(fabric: Emulator, here: Link) -> None:
    """The process stops inside of a call; continued, it goes on as if nothing had been."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        fabric.fault("stop", call="post_send", at=OTHER)
        assert here.post_receive(0, FRAME) == 0
        peer.ask("send", 0, FRAME)
        stopped = os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED)
        assert stopped is not None
        assert stopped.si_status == signal.SIGSTOP
        assert here.silence(0.05)
        peer.process.send_signal(signal.SIGCONT)
        assert here.wait()[0].status == SUCCESS


def test_a_stopped_peer_goes_on(fabric: Emulator, here: Link) -> None:
    """While the peer is stopped, sends complete as far as it has posted; continued, it has all."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        for place in range(2):
            peer.do("receive", place * FRAME, FRAME)
        peer.process.send_signal(signal.SIGSTOP)
        here.memory[:] = 5
        for _ in range(3):
            assert here.post_send(0, FRAME) == 0
        assert len(here.wait(2)) == 2
        assert here.silence(0.05)
        peer.process.send_signal(signal.SIGCONT)
        peer.do("receive", 2 * FRAME, FRAME)
        assert peer.do("wait", 3) == [SUCCESS] * 3
        assert peer.do("count", 5) == 3 * FRAME


def test_no_program_has_to_poll(fabric: Emulator, here: Link) -> None:
    """A message of 1 MiB arrives while both programs do something else."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        assert here.post_send(0, 1 << 20) == 0
        assert peer.do("receive", 0, 1 << 20) == 0
        until(lambda: fabric.counters(OTHER)["received"] == 1)


@pytest.mark.parametrize("piece", [0, 5, 15])
def test_a_sender_dies_between_data_and_word(
    fabric: Emulator, open_port: Opener, piece: int
) -> None:
    """A sender that dies with a piece written but not announced: the message never completes, and
    the same places serve those who come next.
    """
    device = open_port(fabric, "mac0", "rdma_en2")
    for survives in (False, True):
        here = Link(device, 1 << 20)
        with Peer(fabric, "mac1") as peer:
            meet(here, peer)
            peer.do("fill", 9)
            assert here.post_receive(0, 1 << 20) == 0
            if not survives:
                fabric.fault("kill", call="write_piece", at=OTHER, first=piece)
            peer.ask("send", 0, 1 << 20)
            if survives:
                assert here.wait()[0].status == SUCCESS
                assert (here.memory == 9).all()
            else:
                assert peer.status() == -signal.SIGKILL
                assert here.silence(0.02)
                assert not here.memory[-(64 << 10) :].any()
        here.close()


def test_a_receiver_dies_between_data_and_word(fabric: Emulator, here: Link) -> None:
    """A receiver that dies with a piece taken but not acknowledged: the sender does not notice."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        assert peer.do("receive", 0, FRAME) == 0
        fabric.fault("kill", call="read_piece", at=OTHER)
        assert here.post_send(0, FRAME) == 0
        assert here.wait()[0].status == SUCCESS
        assert peer.status() == -signal.SIGKILL
        assert here.post_send(0, FRAME) == 0
        assert here.silence(0.05)


def test_a_forked_child_leaves_its_parents_things_alone(
    fabric: Emulator, make_pair: Pairer
) -> None:
    """A child that destroys what it has a copy of does not end the parent's connection."""
    one, other = make_pair(fabric)
    pid = os.fork()
    if pid == 0:
        os._exit(one.library.ibv_destroy_qp(one.pair))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert other.post_receive(0, FRAME) == 0
    assert one.post_send(0, FRAME) == 0
    assert other.wait()[0].status == SUCCESS


def test_a_crash_of_the_pulled_cables_driver(fabric: Emulator, here: Link) -> None:
    """The third variant of a pulled cable: the next call on a queue pair of it is a SIGSEGV."""
    with Peer(fabric, "mac1") as peer:
        meet(here, peer)
        fabric.cable("c0", "segv")
        peer.ask("receive", 0, FRAME)
        assert peer.status() == -signal.SIGSEGV
    fabric.cable("c0", "up")
