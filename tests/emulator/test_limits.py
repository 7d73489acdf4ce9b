"""What a device has, and what it refuses: the numbers that programs on Macs see."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from standfast.testing.emulator import Emulator, EmulatorError
from standfast.testing.topology import Topology, mesh, switched
from tests.emulator.conftest import Opener
from tests.emulator.verbs import (
    ACTIVE,
    DOWN,
    INIT,
    PORT,
    RC,
    RTR,
    STATE,
    Device,
    Link,
    VerbsError,
    connect,
    environment,
)

ONE, OTHER = "mac0:rdma_en2", "mac1:rdma_en2"
FRAME = 4096
BUSY, NO_MEMORY, INVALID, TIMED_OUT, NOT_SUPPORTED = 16, 12, 22, 60, 102
MakeFabric = Callable[[Topology], Emulator]


def ipv4_gid(address: str) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes(int(part) for part in address.split("."))


@pytest.fixture
def one(fabric: Emulator, open_port: Opener) -> Device:
    return open_port(fabric, "mac0", "rdma_en2")


def test_a_machine_without_a_fabric_has_no_devices(library: ctypes.CDLL) -> None:
    """Without the variables the library lists nothing, and that is no error."""
    with pytest.raises(LookupError, match=r"there are \[\]"):
        Device(library, "rdma_en2")


def test_devices_are_those_of_the_host(make_fabric: MakeFabric, open_port: Opener) -> None:
    """A host of a mesh of 4 has three devices, named as on Macs."""
    fabric = make_fabric(mesh(4))
    for host in fabric.topology.hosts:
        for device in ("rdma_en2", "rdma_en3", "rdma_en4"):
            assert open_port(fabric, host, device).port().state == ACTIVE
        with pytest.raises(LookupError, match="rdma_en5"):
            open_port(fabric, host, "rdma_en5")


def test_an_unknown_host_is_told(
    fabric: Emulator, open_port: Opener, capfd: pytest.CaptureFixture[str]
) -> None:
    """A host that is not in the fabric file: NULL with 22, and stderr says which."""
    with pytest.raises(VerbsError) as caught:
        open_port(fabric, "mac7", "rdma_en2")
    assert caught.value.errno == INVALID
    assert "host 'mac7' (STANDFAST_EMULATOR_HOST) is on no line of it" in capfd.readouterr().err


def test_port_and_device_tell_what_they_are(one: Device) -> None:
    """MTU, table, message size and budgets are those of the profile."""
    port, device = one.port(), one.attributes()
    assert (port.state, port.active_mtu, port.max_msg_sz) == (ACTIVE, 3, 16_773_120)
    assert (device.max_qp, device.max_pd, device.max_mr) == (11, 11, 100)
    assert (device.max_qp_wr, device.phys_port_cnt) == (4095, 1)


def test_gid_table(fabric: Emulator, one: Device) -> None:
    """fe80 first, then the IPv4-mapped one, then nothing; beyond the table 22."""
    assert one.gid(0)[:2] == b"\xfe\x80"
    assert one.gid(1) == ipv4_gid("169.254.1.1")
    assert one.gid(2) == bytes(16)
    with pytest.raises(VerbsError) as caught:
        one.gid(8)
    assert caught.value.errno == INVALID
    fabric.gids(ONE, "fe80")
    with pytest.raises(LookupError):
        one.ipv4_index()
    fabric.gids(ONE, "fe80", "fe80:abc", "10.0.0.7")
    assert one.ipv4_index() == 2
    assert one.gid(1) == b"\xfe\x80" + bytes(12) + b"\x0a\xbc"


def test_roce_gid_table(make_fabric: MakeFabric, open_port: Opener) -> None:
    """RoCE has each address twice; RoCE v2 comes second."""
    device = open_port(make_fabric(switched(2)), "spark1", "rocep1s0f0")
    assert device.gid(0) == device.gid(1) != bytes(16)
    assert device.gid(2) == device.gid(3) == ipv4_gid("192.168.100.11")
    assert [device.gid_type(index) for index in range(4)] == [1, 2, 1, 2]
    assert device.ipv4_index() == 2


def test_the_eleventh_queue_pair_is_refused(fabric: Emulator, open_port: Opener) -> None:
    """10 queue pairs per device, over all contexts; one that is destroyed makes room."""
    links = [Link(open_port(fabric, "mac0", "rdma_en2"), FRAME) for _ in range(10)]
    device = open_port(fabric, "mac0", "rdma_en2")
    with pytest.raises(VerbsError) as caught:
        Link(device, FRAME)
    assert caught.value.errno == BUSY
    assert len(fabric.held(ONE)["queue_pairs"]) == 10
    assert len({link.number for link in links}) == 10
    links.pop().close()
    links.append(Link(device, FRAME))
    for link in links:
        link.close()
    assert fabric.held(ONE) == {
        "queue_pairs": [],
        "memory_regions": 0,
        "protection_domains": 0,
        "active": True,
    }


def test_a_budget_can_be_used_up(fabric: Emulator, one: Device) -> None:
    """With a budget of 0, and of what is in use, the next one is refused."""
    for resource, number in (
        ("queue_pairs", BUSY),
        ("memory_regions", NO_MEMORY),
        ("protection_domains", NO_MEMORY),
    ):
        fabric.budget(ONE, resource, 0)  # type: ignore[arg-type]
        with pytest.raises(VerbsError) as caught:
            Link(one, FRAME)
        assert caught.value.errno == number
        fabric.budget(ONE, resource, 1)  # type: ignore[arg-type]
        link = Link(one, FRAME)
        with pytest.raises(VerbsError):
            Link(one, FRAME)
        link.close()
        fabric.budget(ONE, resource, 10)  # type: ignore[arg-type]


def test_the_hundred_and_first_region_is_refused(fabric: Emulator, one: Device) -> None:
    """100 memory regions per device."""
    link = Link(one, FRAME)
    regions = [link.register(link.memory) for _ in range(99)]
    assert all(regions)
    assert link.register(link.memory) is None
    assert fabric.held(ONE)["memory_regions"] == 100
    for region in regions:
        assert link.library.ibv_dereg_mr(region) == 0
    link.close()


def test_reliable_queue_pairs_are_refused(one: Device) -> None:
    """Apple has no RC: 102."""
    with pytest.raises(VerbsError) as caught:
        Link(one, FRAME, kind=RC)
    assert caught.value.errno == NOT_SUPPORTED


def test_too_many_work_requests_are_refused(one: Device) -> None:
    """4095 work requests per queue."""
    Link(one, FRAME, depth=4095).close()
    with pytest.raises(VerbsError) as caught:
        Link(one, FRAME, depth=4096)
    assert caught.value.errno == INVALID


def test_a_port_that_is_down_gives_no_domain(fabric: Emulator, one: Device) -> None:
    """With the cable out the device opens, the port is DOWN, and gives no protection domain."""
    fabric.cable("c0", "down")
    assert one.port().state == DOWN
    with pytest.raises(VerbsError, match="alloc_pd returned NULL"):
        Link(one, FRAME)
    fabric.cable("c0", "up")
    fabric.port(OTHER, "down")
    Link(one, FRAME).close()
    fabric.port(ONE, "down")
    with pytest.raises(VerbsError, match="alloc_pd returned NULL"):
        Link(one, FRAME)


@pytest.mark.parametrize(
    ("gid", "index", "mtu", "status"),
    [
        (ipv4_gid("169.254.1.2"), 1, 3, 0),
        (bytes(16), 1, 3, INVALID),
        (ipv4_gid("169.254.1.2"), 2, 3, INVALID),
        (ipv4_gid("169.254.1.2"), 0, 3, INVALID),
        (ipv4_gid("169.254.1.2"), 1, 4, INVALID),
        (ipv4_gid("169.254.9.9"), 1, 3, TIMED_OUT),
        (ipv4_gid("169.254.1.1"), 1, 3, TIMED_OUT),
    ],
)
def test_ready_to_receive(one: Device, gid: bytes, index: int, mtu: int, status: int) -> None:
    """RTR: 22 for a zero GID, an empty or unlike own index and a large MTU; 60 for somebody who is
    not at the other end of this cable.
    """
    link = Link(one, FRAME)
    link.to_init()
    assert link.to_rtr(0x101, gid, sgid_index=index, mtu=mtu) == status
    link.close()


def test_ready_to_receive_over_another_cable(make_fabric: MakeFabric, open_port: Opener) -> None:
    """An address of the right host at another cable is 60; so is the right one with it out."""
    fabric = make_fabric(mesh(2, cables=2))
    link = Link(open_port(fabric, "mac0", "rdma_en2"), FRAME)
    link.to_init()
    assert link.to_rtr(0x101, ipv4_gid("169.254.2.2"), sgid_index=1) == TIMED_OUT
    fabric.cable("c0", "down")
    assert link.to_rtr(0x101, ipv4_gid("169.254.1.2"), sgid_index=1) == TIMED_OUT
    fabric.cable("c0", "up")
    assert link.to_rtr(0x101, ipv4_gid("169.254.1.2"), sgid_index=1) == 0
    link.close()


def test_states_come_in_order(one: Device) -> None:
    """RESET, INIT, RTR, RTS, each with all its attributes; anything else is 22."""
    link = Link(one, FRAME)
    assert link.modify(0, qp_state=RTR) == INVALID
    assert link.modify(PORT, qp_state=INIT, port_num=1) == INVALID
    link.to_init()
    assert link.modify(0, qp_state=RTR) == INVALID
    with pytest.raises(VerbsError):
        link.to_rts()
    assert link.post_send(0, 8) == INVALID
    assert link.library.ibv_modify_qp(link.pair, b"\0" * 144, STATE | 1 << 1) == 0  # RESET
    assert link.post_receive(0, 8) == INVALID
    link.close()


@pytest.mark.parametrize(("setting", "status"), [("accepted", 0), ("refused", INVALID)])
def test_early_receives(
    make_fabric: MakeFabric, open_port: Opener, setting: str, status: int
) -> None:
    """Receives before RTS are accepted or refused, as the fabric says."""
    fabric = make_fabric(mesh(2, settings=[f"early_receives {setting}"]))
    link = Link(open_port(fabric, "mac0", "rdma_en2"), FRAME)
    link.to_init()
    assert link.post_receive(0, 8) == status
    link.close()


@pytest.mark.parametrize(("size", "most"), [(64 << 10, 63), (512 << 10, 7), (FRAME, 128)])
def test_the_window_is_counted_in_frames(
    fabric: Emulator, open_port: Opener, size: int, most: int
) -> None:
    """-12 at the 64th 64 KiB request in either queue, though 128 were granted."""
    links = [Link(open_port(fabric, f"mac{i}", "rdma_en2"), size, depth=128) for i in range(2)]
    connect(*links)
    for post in (links[0].post_receive, links[0].post_send):
        assert [post(0, size) for _ in range(most)] == [0] * most
        assert post(0, size) == -NO_MEMORY
    for link in links:
        link.close()


def test_the_longest_message(fabric: Emulator, open_port: Opener) -> None:
    """16,773,120 bytes are accepted when nothing else is posted; a byte more never is."""
    links = [Link(open_port(fabric, f"mac{i}", "rdma_en2"), 16_773_121) for i in range(2)]
    connect(*links)
    assert links[0].post_receive(0, 16_773_121) == -NO_MEMORY
    assert links[0].post_receive(0, 16_773_120) == 0
    assert links[0].post_receive(0, FRAME) == -NO_MEMORY
    for link in links:
        link.close()


def test_wrong_orders_are_reported(fabric: Emulator, one: Device) -> None:
    """What is destroyed while something needs it is reported, by name, and mostly refused."""
    library = one.library
    link = Link(one, FRAME)
    assert library.ibv_dealloc_pd(link.domain) == BUSY
    assert library.ibv_destroy_cq(link.queue) == BUSY
    assert library.ibv_close_device(one.context) == BUSY
    assert fabric.reports() == [
        f"dealloc_pd {ONE}: 1 queue pairs and 1 memory regions still belong to it",
        f"destroy_cq {ONE}: 1 queue pairs still use it",
        f"close_device {ONE}: 2 of its objects are still there",
    ]
    link.close()
    assert len(fabric.reports()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cable c0 a:d", r"line 1: too few words; the form is: cable NAME HOST:DEVICE"),
        ("cable c0 a:d b:d sideways", r"line 1: cable state 'sideways': up, down, errors, segv or"),
        ("cable c0 a:d a:d", r"line 1: 'a:d' is there twice"),
        ("cable c a:d b:d\ncable c a:e b:e", r"line 2: cable 'c' is there twice"),
        ("cable c a:d:1.2.3 b:d", r"line 1: '1.2.3' is no GID"),
        ("# all well\n\nprofile intel", r"line 3: profile 'intel': apple, roce or infiniband"),
        ("policy lossy", r"line 1: policy 'lossy': credit, drop or absent-completes"),
        ("limit width 3", r"line 1: limit 'width': there is none of this name"),
        ("limit queue_pairs many", r"line 1: 'many' is not a whole number"),
        ("gids a:d fe80", r"line 1: 'a:d' was not on a port or cable line before"),
        ("hose a", r"line 1: 'hose': expected profile, policy"),
    ],
)
def test_a_wrong_fabric_file_is_told_by_line(
    make_fabric: MakeFabric, text: str, message: str
) -> None:
    """A mistake in the fabric file names the line, the word, and what could stand there."""
    topology = Topology(("a",), (), (((),),))
    with pytest.raises(EmulatorError, match=message):
        make_fabric(_Fixed(topology, text))


class _Fixed(Topology):
    """A topology whose file is given."""

    __slots__ = ("_text",)

    def __init__(self, topology: Topology, text: str) -> None:
        super().__init__(topology.hosts, topology.cables, topology.matrix)
        object.__setattr__(self, "_text", text)

    def text(self) -> str:
        return str(object.__getattribute__(self, "_text"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("cable c9 up", "'c9': the fabric has no such cable"),
        ("port mac9:rdma_en2 up", "'mac9:rdma_en2': the fabric has no such port"),
        ("fault explode", "fault 'explode': there is none of this name"),
        ("fault kill", "fault 'kill': it needs call=NAME"),
        ("fault lose call=post_send", "fault 'lose': it has no call="),
        ("fault fail call=sing", "call 'sing': there is none of this name"),
        ("fault lose probability=2", "probability '2': a number from 0 to 1"),
        ("fault lose at=mac9", "'mac9': the fabric has no such host"),
        ("budget mac0:rdma_en2 luck 3", "budget 'luck': queue_pairs, memory_regions"),
        ("applied 99", "fault 99: there is none of this number"),
        ("dance", "'dance': expected cable, port"),
    ],
)
def test_a_wrong_command_is_told(fabric: Emulator, command: str, message: str) -> None:
    """A command that is wrong says which word, and changes nothing."""
    with pytest.raises(EmulatorError, match=message):
        fabric.command(command)


def test_two_hosts_can_be_one_process(fabric: Emulator, library: ctypes.CDLL) -> None:
    """Devices stay those of their host when the variables change."""
    with environment(fabric.environment("mac0", {})):
        one = Device(library, "rdma_en2")
    with environment(fabric.environment("mac1", {})):
        other = Device(library, "rdma_en2")
        assert one.gid(1) == ipv4_gid("169.254.1.1")
    assert other.gid(1) == ipv4_gid("169.254.1.2")
    one.close()
    other.close()
