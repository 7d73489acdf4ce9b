"""The pure rules: who is admitted, how a rank is reached, what others are told of an error."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast.endpoint import Endpoint
from standfast.errors import (
    BY_KIND,
    ConfigError,
    InternalError,
    PeerDied,
    PeerLeft,
    RemoteFailure,
    RendezvousError,
    StandfastError,
)
from standfast.identity import Identity
from standfast.rendezvous import admission, failures, hello, host, interfaces, listen, protocol
from standfast.rendezvous.channel import check_opening, errno_name
from standfast.rendezvous.door import strangers_max
from standfast.rendezvous.protocol import Entry, Hello, Malformed, Reader, Table, Trouble
from standfast.rendezvous.routes import advertised, check_fabric, fabric_between, routes
from standfast.rendezvous.table import peers_for, plan_for
from standfast.settings import Settings, agreement

# --- admission ------------------------------------------------------------------------------------


def hello_from(**changes: Any) -> Hello:
    values: dict[str, Any] = {
        "version": "1.0",
        "size": 4,
        "generation": 1,
        "wires": True,
        "name": "",
        "job_id": None,
        "settings": agreement(Settings()),
        "host": "h",
        "host_id": "id",
        "pid": 7,
        "port": 5000,
        "addresses": ["10.0.0.1"],
        "explicit": False,
    }
    return Hello(**{**values, **changes})


def test_an_equal_rank_is_admitted() -> None:
    """Same group, set-up and a free place: no objection."""
    ours = hello_from()
    assert admission.objection(3, hello_from(pid=9), ours=ours, present={0: ours}) is None


@pytest.mark.parametrize(
    ("rank", "changes", "kind", "words"),
    [
        (1, {"name": "x"}, "rendezvous", "group 'x'; this is group ''"),
        (1, {"generation": 2}, "rendezvous", "generation 2; this is generation 1"),
        (1, {"generation": 0}, "stale", "generation 0; this is generation 1"),
        (1, {"version": "2"}, "config", "runs standfast 2, rank 0 runs 1.0"),
        (1, {"wires": False}, "config", "called standfast.watch(), rank 0 standfast.init()"),
        (1, {"size": 3}, "config", "in a group of 3, rank 0 in a group of 4"),
        (4, {}, "config", "not one of the 4 ranks 0..3"),
        (0, {"pid": 8, "host": "b"}, "config", "two processes say that they are rank 0"),
        (2, {"pid": 8, "host": "b"}, "config", "pid 7 on h, which came first, and pid 8 on b"),
        (1, {"settings": {}}, "config", "fabric=None (rank 0: 'auto')"),
    ],
)
def test_a_wrong_rank_is_told_why(
    rank: int, changes: dict[str, Any], kind: str, words: str
) -> None:
    """One objection for each thing that can differ."""
    ours = hello_from()
    wrong = hello_from(**changes)
    refusal = admission.objection(rank, wrong, ours=ours, present={0: ours, 2: ours})
    assert refusal is not None
    assert refusal.kind == kind
    assert words in refusal.text


def test_a_job_id_is_compared_where_both_have_one() -> None:
    """A rank that was started by hand has none, and may join."""
    with_id, without = hello_from(job_id="a"), hello_from()
    assert admission.objection(1, without, ours=with_id, present={}) is None
    assert admission.objection(1, with_id, ours=without, present={}) is None
    assert admission.objection(1, hello_from(job_id="b"), ours=with_id, present={}) is not None


def test_a_refusal_is_one_short_line() -> None:
    """What a rank says about itself can neither forge log lines nor outgrow the frame."""
    ours, wrong = hello_from(), hello_from(host="a\nb\x1b[31m", settings={"x" * 3000: 1.0})
    refusal = admission.objection(1, wrong, ours=ours, present={})
    assert refusal is not None
    assert refusal.text.isprintable()
    assert len(refusal.text) <= protocol.TEXT_MAX


# --- routes and fabrics ---------------------------------------------------------------------------


def entry(*addresses: str, host_id: str = "a", explicit: bool = False) -> Entry:
    return Entry("h", host_id, 1, 5000, list(addresses), explicit)


@pytest.mark.parametrize(
    ("to", "via", "same_host", "expected"),
    [
        # The coordinator is where it was found.
        (entry(), "10.0.0.1", False, ["10.0.0.1"]),
        (entry(), "10.0.0.1", True, ["127.0.0.1", "10.0.0.1"]),
        (entry(), "127.0.0.1", True, ["127.0.0.1"]),
        (entry("10.0.0.2"), "10.0.0.1", False, ["10.0.0.2"]),
        (entry("10.0.0.2", "172.16.0.2"), "10.0.0.1", False, ["10.0.0.2", "172.16.0.2"]),
        (entry("10.0.0.2"), "10.0.0.1", True, ["127.0.0.1", "10.0.0.2"]),
        # It came to rank 0 over loopback, so it is on rank 0's machine.
        (entry("127.0.0.1"), "10.0.0.1", False, ["10.0.0.1"]),
        (entry("::1"), "::1", True, ["::1"]),
        # It was told where to listen.
        (entry("10.9.0.2", explicit=True), "10.0.0.1", True, ["10.9.0.2"]),
        (entry("127.0.0.1", explicit=True), "10.0.0.1", False, ["127.0.0.1"]),
        # Interface names mean something on their own machine only.
        (entry("fe80::2"), "fe80::1%en5", False, ["fe80::2%en5"]),
        (entry("fd00::2"), "fe80::1%en5", False, ["fd00::2"]),
    ],
)
def test_where_a_rank_is_tried(to: Entry, via: str, same_host: bool, expected: list[str]) -> None:
    """Each address that may lead to a rank, best first."""
    found = routes(to, via=via, same_host=same_host)
    assert found == [Endpoint(host, 5000) for host in expected]


def test_what_a_rank_advertises() -> None:
    """Its own source address, and what rank 0 saw if something translates in between."""
    assert advertised("10.0.0.2", "10.0.0.2") == ["10.0.0.2"]
    assert advertised("10.0.0.2", "192.168.0.9") == ["10.0.0.2", "192.168.0.9"]
    assert advertised("fe80::2%eth0", "fe80::2%en5") == ["fe80::2"]
    assert advertised("", "10.0.0.2") == ["10.0.0.2"]


def test_which_fabric_joins_a_pair() -> None:
    """auto takes shm within a host; a forced one is taken everywhere."""
    near, far = entry(host_id="a"), entry(host_id="b")
    assert fabric_between(near, near, "auto") == "shm"
    assert fabric_between(near, far, "auto") == "tcp"
    assert fabric_between(near, near, "tcp") == "tcp"
    assert fabric_between(near, far, "shm") == "shm"
    check_fabric([near, far], "auto")
    check_fabric([near, near], "shm")
    with pytest.raises(ConfigError, match="rank 1 on h"):
        check_fabric([near, far], "shm")


def test_the_table_says_whom_to_call() -> None:
    """A rank calls the lower ones; the plan knows fabric and route of each."""
    table = Table(bytes(32), [entry(), entry("10.0.0.2"), entry("10.0.0.3", host_id="b")])
    plan = plan_for(2, table, via="10.0.0.1", fabric="auto", key=None)
    assert plan.fabrics == {0: "tcp", 1: "tcp"}
    assert plan.routes == {
        0: [Endpoint("10.0.0.1", 5000)],
        1: [Endpoint("10.0.0.2", 5000)],
    }
    assert plan_for(0, table, via="10.0.0.1", fabric="shm", key=None).fallback is False
    peers = peers_for(0, table, via="10.0.0.1")
    assert [peer.same_host for peer in peers] == [True, True, False]
    assert [peer.rank for peer in peers] == [0, 1, 2]


# --- failures -------------------------------------------------------------------------------------


def error_kinds() -> list[type[StandfastError]]:
    return [*BY_KIND.values(), RendezvousError, ConfigError]


@pytest.mark.parametrize("kind", error_kinds())
def test_an_error_arrives_as_what_it_was(kind: type[StandfastError]) -> None:
    """Class, words and fields of every error survive the way to another rank."""
    error = kind("it broke", hint="mend it", rank=3, host="h", cause="c", here=3, evidence=["a"])
    told = failures.as_told(error, rank=3, host="h", generation=2)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=protocol.Failed)
    found = failures.from_told(sent, here=1)
    if kind is InternalError:
        assert isinstance(found, RemoteFailure)
        assert found.remote_type == "InternalError"
        return
    assert type(found) is kind
    assert (found.message, found.hint, found.rank, found.host) == ("it broke", "mend it", 3, "h")
    assert (found.evidence, found.here) == (("a",), 1)
    assert found.detected_ns


def test_another_error_arrives_as_a_remote_failure() -> None:
    """Type, text and traceback tail of an exception that is none of ours."""
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        found = failures.from_told(failures.as_told(error, rank=2, host="h", generation=1), here=0)
    assert isinstance(found, RemoteFailure)
    assert (found.rank, found.remote_type, found.here) == (2, "OSError", 0)
    assert "No space left on device" in str(found)
    assert "test_rules" in (found.remote_traceback or "")


@pytest.mark.parametrize(
    ("error", "cause"), [(KeyboardInterrupt(), "interrupted"), (SystemExit(3), "SystemExit")]
)
def test_who_is_interrupted_leaves(error: BaseException, cause: str) -> None:
    """Ctrl-C and exit are told as leaving."""
    found = failures.from_told(failures.as_told(error, rank=2, host="h", generation=1), here=0)
    assert isinstance(found, PeerLeft)
    assert (found.rank, found.cause) == (2, cause)


def test_an_unknown_error_is_still_an_error() -> None:
    """What another version might send does not break the teller."""
    failed = protocol.Failed("brand new", "it broke", None, {"no such field": 1})
    found = failures.from_told(failed, here=1)
    assert type(found) is RendezvousError
    assert found.message == "it broke"


def test_a_frozen_rank_is_told_from_its_victims() -> None:
    """The unready rank that most others miss is the one to look at."""
    troubles = {0: Trouble([3], ""), 1: Trouble([3], ""), 2: Trouble([3], "")}
    assert failures.most_missed([0, 1, 2, 3], troubles) == [3]
    assert failures.most_missed([1, 3], {1: Trouble([3], ""), 3: Trouble([1], "")}) == [1, 3]
    assert failures.most_missed([1, 2], {}) == [1, 2]
    assert failures.most_missed([], {}) == []


def test_words_for_one_and_for_many() -> None:
    """Messages are sentences."""
    assert failures.ranks_text([2]) == "rank 2"
    assert failures.ranks_text([2, 3]) == "ranks 2, 3"
    assert "rank 2 has not come" in str(failures.too_late(60, [2], "a:1"))
    assert "ranks 2, 3 have not come" in str(failures.too_late(60, [2, 3], "a:1"))
    assert "1 attempt;" in str(failures.unreachable(1, 60, "a:1", 1, "a:1: ETIMEDOUT"))
    died = failures.died(3, "h", "connection closed", reporter=0, generation=1)
    assert isinstance(died, PeerDied)
    assert "rank 3 on h died" in str(died)
    assert died.cause == "control link closed without goodbye"


# --- frames, addresses and the rest ---------------------------------------------------------------


def test_only_the_expected_message_is_read() -> None:
    """A frame of another kind, or with more or less in it, is malformed."""
    reader: Reader[protocol.Challenge] = Reader(protocol.Challenge)
    good = protocol.encode(protocol.Challenge(bytes(32), True, False))
    assert reader.read(good).keyed
    for bad in (
        b"",
        good[:-1],
        good + b"\0",
        protocol.encode(protocol.Go()),
        protocol.encode(protocol.Challenge(bytes(31), True, False)),
        b"\x94\xa9challenge\xc4\x01\0\xc3\xc2",
    ):
        with pytest.raises(Malformed):
            reader.read(bad)


def test_the_opening_is_judged_as_it_comes() -> None:
    """The first wrong byte is enough; a prefix of the right ones is not yet wrong."""
    for length in range(len(protocol.OPENING) + 1):
        check_opening(protocol.OPENING[:length])
    for bad in (b"G", b"\x89X", protocol.MAGIC + bytes([protocol.VERSION + 1])):
        with pytest.raises(Exception, match=r"not standfast|version"):
            check_opening(bad)


def test_errno_names() -> None:
    """A number has its name; no number is none that was made up."""
    assert errno_name(errno.ECONNRESET) == "ECONNRESET"
    assert errno_name(99999) == "errno 99999"
    assert "without" in errno_name(0)


@pytest.mark.parametrize(
    ("host_text", "ipv6", "expected"),
    [
        ("10.0.0.1", True, ["10.0.0.1"]),
        ("0.0.0.0", True, ["0.0.0.0"]),
        ("fe80::1%eth0", True, ["fe80::1%eth0"]),
        ("localhost", True, ["127.0.0.1", "::1"]),
        ("localhost", False, ["127.0.0.1"]),
        ("node0.example", True, ["::"]),
        ("node0.example", False, ["0.0.0.0"]),
    ],
)
def test_where_rank_0_listens(host_text: str, ipv6: bool, expected: list[str]) -> None:
    """An address is taken as it is; a name, which may mean another one here, stands for all."""
    assert listen.bind_hosts(host_text, ipv6=ipv6) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("::1", 5, 0, 0), "::1"),
        (("fd00::1", 5, 0, 3), "fd00::1"),
    ],
)
def test_addresses_as_text(address: tuple[object, ...], expected: str) -> None:
    """IPv4 in its own form, IPv6 without what means nothing."""
    assert listen.text_of(address) == expected


def test_a_data_address_in_three_forms() -> None:
    """An address, an interface and a subnet stand for an address of this machine."""
    here = {"lo": "127.0.0.1", "en5": "10.9.0.2"}
    assert interfaces.chosen_address("10.9.0.2", here) == "10.9.0.2"
    assert interfaces.chosen_address("en5", here) == "10.9.0.2"
    assert interfaces.chosen_address("10.9.0.0/16", here) == "10.9.0.2"
    for bad in ("en6", "10.8.0.0/16", "10.8.0.0/99", "x/y"):
        with pytest.raises(ConfigError, match="STANDFAST_DATA_ADDRESS") as caught:
            interfaces.chosen_address(bad, here)
        assert "en5 10.9.0.2" in str(caught.value)


def test_no_address_is_refused_for_its_kind() -> None:
    """An address without a router, as direct Thunderbolt cables have it, is as good as any."""
    here = {"lo": "127.0.0.1", "en0": "192.168.1.2", "en5": "169.254.3.4"}
    for wanted in ("en5", "169.254.0.0/16", "169.254.3.4"):
        assert interfaces.chosen_address(wanted, here) == "169.254.3.4"
    assert interfaces.chosen_address("en0", here) == "192.168.1.2"


def test_this_machine_has_loopback() -> None:
    """The interface list is real."""
    assert "127.0.0.1" in interfaces.ipv4_addresses().values()


def test_strangers_have_a_limit_that_grows_with_the_group() -> None:
    """All ranks of a large group may knock at once."""
    assert strangers_max(2) == 64
    assert strangers_max(1000) == 2000


def test_the_host_id_is_stable_and_says_nothing() -> None:
    """The same for all processes here, and no name or address in clear."""
    assert host.host_id() == host.host_id()
    assert len(host.host_id()) == 32
    assert host.host_name() not in host.host_id()


def test_the_version_is_that_of_the_first_place_that_has_one(tmp_path: Path) -> None:
    """Where nothing is installed, or two at once, the next place is asked; none: no version."""
    empty, two, one, gone = (tmp_path / name for name in ("empty", "two", "one", "gone"))
    for place, versions in ((empty, []), (two, ["1.0", "2.0"]), (one, ["3.1.0rc1"])):
        place.mkdir()
        for version in versions:
            (place / f"standfast-{version}.dist-info").mkdir()
        (place / "standfast_mlx-9.dist-info").mkdir()
    assert hello.version_in([gone, empty, two, one]) == "3.1.0rc1"
    assert hello.version_in([empty, two]) == ""


def test_a_hello_loads_no_package_of_metadata() -> None:
    """Not to know the version must not cost each rank 20 ms."""
    code = (
        "import sys; from standfast.rendezvous import hello; hello.package_version();"
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_has_a_limit() -> None:
    """What goes into a hello must fit into it."""
    with pytest.raises(ConfigError, match="256 characters"):
        hello.hello_of(Identity(0, 2), Settings(), "x" * 256, wires=True)


def test_a_long_hello_fits_into_a_strangers_frame() -> None:
    """The largest hello that a rank can make is not taken for garbage."""
    text = "x" * protocol.NAME_MAX
    longest = hello_from(name=text, job_id=text, host=text, addresses=[text] * 16, version=text)
    begin = protocol.Begin("control", 1, 0, bytes(32), True, protocol.encode(longest), bytes(32))
    assert len(protocol.frame(begin)) < protocol.FRAME_BYTES_MAX
