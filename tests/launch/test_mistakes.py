"""Each mistake in a `standfast run` gives one clear message, what to do, and its own status."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from standfast.launch.ssh import remedy
from tests.launch.sshd import Farm, skip_without_sshd
from tests.launch.support import Ended, run

OTHER_VERSION = """
import os
from standfast.launch import agent, orders
hello = agent._hello(("", ""))
import msgspec
os.write(1, orders.MAGIC + orders.frame(msgspec.structs.replace(hello, version="0.0.1")))
os.read(0, 1)
"""


@dataclass(frozen=True)
class Mistake:
    """A command line, and what is said about it: the status, and words of the message."""

    name: str
    options: tuple[str, ...]
    status: int
    words: tuple[str, ...]
    program: tuple[str, ...] = ("true",)


LOCAL = (
    Mistake("unknown option", ("-n", "2", "--restart", "1"), 2, ("No such option", "--restarts")),
    Mistake("no ranks", (), 2, ("say how many ranks: -n N",)),
    Mistake("no program", ("-n", "2"), 127, ("cannot start nope: not found on PATH",), ("nope",)),
    Mistake("no such file", ("-n", "2"), 127, ("cannot start ./x: no such file",), ("./x",)),
    Mistake("a directory", ("-n", "2"), 126, ("/tmp: it is a directory",), ("/tmp",)),
    Mistake("an empty host", ("--hosts", "a,,b"), 2, ("--hosts", "'' is not the name of a host")),
    Mistake("no ranks on a host", ("--hosts", "a:0"), 2, ("'0' is not a number of ranks",)),
    Mistake("no host file", ("--hostfile", "/no/file"), 2, ("/no/file", "does not exist")),
    Mistake("too many ranks", ("--hosts", "a", "-n", "2"), 2, ("2 ranks do not fit",)),
    Mistake("no ssh", ("--ssh", "/no/ssh", "--hosts", "a"), 69, ("cannot run /no/ssh", "--ssh")),
    Mistake("fewer ranks, one host", ("-n", "2", "--min-ranks", "1"), 2, ("needs hosts",)),
    Mistake("half a node", ("-n", "2", "--nnodes", "2"), 2, ("both --nnodes and --node-rank",)),
    Mistake(
        "no meeting point",
        ("-n", "2", "--nnodes", "2", "--node-rank", "1"),
        78,
        ("node 1 of 2 does not know where node 0 is", "--coordinator HOST:PORT"),
    ),
    Mistake(
        "no such node",
        ("-n", "1", "--nnodes", "2", "--node-rank", "2"),
        78,
        ("node 2 is not one of the 2 nodes",),
    ),
    Mistake(
        "no address",
        ("-n", "1", "--nnodes", "2", "--node-rank", "1", "--coordinator", "here"),
        78,
        ("'here' is not of the form host:port",),
    ),
    Mistake(
        "an address for listening",
        ("-n", "1", "--nnodes", "2", "--node-rank", "1", "--coordinator", "0.0.0.0:29400"),
        78,
        ("node 1 of 2 cannot call 0.0.0.0:29400", "the address of node 0"),
    ),
    Mistake(
        "nodes and hosts", ("--nnodes", "2", "--hosts", "a"), 2, ("there is one launcher, here",)
    ),
    Mistake(
        "nodes and spares",
        ("-n1", "--spares=1", "--nnodes=2", "--node-rank=0", "--coordinator", "127.0.0.1:29400"),
        2,
        ("--spares needs places that are free",),
    ),
)


def check(ended: Ended, mistake: Mistake) -> None:
    """One message, no traceback, nothing on stdout."""
    assert ended.status == mistake.status, ended.err
    assert ended.out == ""
    for word in mistake.words:
        assert word in ended.err
    assert "Traceback" not in ended.err
    assert sum(line.startswith(("standfast: ", "Error: ")) for line in ended.block) == 1, ended.err


@pytest.mark.parametrize("mistake", LOCAL, ids=lambda mistake: mistake.name)
def test_before_any_host_is_called(mistake: Mistake) -> None:
    """What can be seen here is said here."""
    check(run(mistake.options, mistake.program), mistake)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host-a slots=x\n", "line 1: 'x' is not a number of ranks"),
        ("", "names no host"),
        ("[{", "is not JSON"),
        ('[{"ssh": "-oProxyCommand=x"}]', "'-oProxyCommand=x' is not the name of a host"),
        ('[{"ssh": "a", "rdma": [null, "x"]}]', "rdma has 2 entries"),
    ],
)
def test_a_bad_host_file(tmp_path: Path, text: str, words: str) -> None:
    """The file, the place in it and the value; the status is that of a bad configuration."""
    path = tmp_path / "hosts"
    path.write_text(text)
    mistake = Mistake("", ("--hostfile", str(path)), 78, (words, str(path)))
    check(run(mistake.options, mistake.program), mistake)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A host that lets us in, one that does not know our key, one where nobody listens."""
    skip_without_sshd()
    farm = Farm(tmp_path_factory.mktemp("mistakes"))
    farm.add("host-a")
    farm.wait_up()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening: calls are refused while it is ours
        config = farm.directory / "config"
        port = farm.hosts["host-a"].port
        config.write_text(
            f"Host stranger\n  HostName 127.0.0.1\n  Port {port}\n  PubkeyAuthentication no\n"
            f"Host closed\n  HostName 127.0.0.1\n  Port {nobody.getsockname()[1]}\n"
            f"Host changed\n  HostName 127.0.0.1\n  Port {port}\n  StrictHostKeyChecking yes\n"
            f"  UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile /dev/null\n"
            + config.read_text()
        )
        yield farm
    farm.close()


REMOTE = (
    ("nowhere.invalid", "Could not resolve hostname nowhere.invalid", "check the name"),
    ("closed", "Connection refused", "is sshd running there"),
    ("stranger", "Permission denied", "ssh-copy-id HOST"),
    ("changed", "Host key verification failed", "ssh HOST, by hand, once"),
)


@pytest.mark.parametrize(("host", "words", "hint"), REMOTE, ids=[each[0] for each in REMOTE])
def test_a_host_that_lets_nobody_in(farm: Farm, host: str, words: str, hint: str) -> None:
    """ssh's own words, after the host's name, and what to do."""
    mistake = Mistake("", ("--ssh", farm.ssh, "--hosts", host), 69, (words, hint))
    ended = run(mistake.options, mistake.program)
    check(ended, mistake)
    assert f"no agent on {host}: " in ended.err


def test_no_python_there(farm: Farm) -> None:
    """The shell's words about the interpreter that is not there."""
    options = ("--ssh", farm.ssh, "--hosts", "host-a", "--python", "/no/such/python")
    check(run(options, ["true"]), Mistake("", options, 69, ("/no/such/python", "--python PATH")))


def test_a_python_without_standfast(farm: Farm, tmp_path: Path) -> None:
    """Python's words about the module that it does not have."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    options = ("--ssh", farm.ssh, "--hosts", "host-a", "--python", str(bare))
    words = ("No module named", "install standfast there")
    check(run(options, ["true"]), Mistake("", options, 69, words))


def test_another_version_there(farm: Farm, tmp_path: Path) -> None:
    """Both versions are named."""
    code = tmp_path / "agent.py"
    code.write_text(OTHER_VERSION)
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\nexec {sys.executable} -P {code}\n")
    other.chmod(0o755)
    options = ("--ssh", farm.ssh, "--hosts", "host-a", "--python", str(other))
    words = ("it has standfast 0.0.1, here is ", "install the same version")
    check(run(options, ["true"]), Mistake("", options, 69, words))


def test_a_program_that_only_the_host_lacks(farm: Farm) -> None:
    """A program that is nowhere is refused with a shell's status, by name."""
    options = ("--ssh", farm.ssh, "--hosts", "host-a")
    ended = run(options, ["no-such-program-anywhere"])
    words = ("cannot start no-such-program-anywhere: not found on PATH",)
    check(ended, Mistake("", options, 127, words))


def test_a_remedy_for_each_trouble() -> None:
    """What is not known gets the general advice."""
    assert "switched on" in remedy("no agent on h: ssh: connect to host h port 22: timed out")
    assert "without a question" in remedy("no agent on h: something else")
