"""Whole programs over the emulator: those of libibverbs, unmodified, and `standfast emulate`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.testing.emulator import Emulator
from standfast.testing.topology import Topology, mesh, switched

MakeFabric = Callable[[Topology], Emulator]
RANK = Path(__file__).with_name("jaccl_rank.py")

with_programs = pytest.mark.skipif(
    shutil.which("ibv_uc_pingpong") is None, reason="ibverbs-utils is not installed"
)


def standfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "standfast", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def pingpong(fabric: Emulator, program: str, *arguments: str) -> list[str]:
    """Run a ping-pong between the first two hosts; return what both printed."""
    port = str(random.randrange(20000, 30000))
    server, client = (
        [program, "-p", port, *arguments],
        [program, "-p", port, *arguments, "127.0.0.1"],
    )
    hosts = fabric.topology.hosts
    first = subprocess.Popen(
        server, env=fabric.environment(hosts[0], os.environ), stdout=subprocess.PIPE, text=True
    )
    try:
        # It listens only after it has made its queue pair.
        device = fabric.topology.cables[0].ports[0]
        while not any(each["posted"] for each in fabric.held(device)["queue_pairs"]):
            assert first.poll() is None
        second = None
        while second is None or second.returncode != 0:
            assert first.poll() is None or second is None
            second = subprocess.run(
                client,
                env=fabric.environment(hosts[1], os.environ),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        printed, _ = first.communicate(timeout=60)
        assert first.returncode == 0
    finally:
        first.kill()
        first.wait()
    return [printed, second.stdout]


@with_programs
def test_ibv_devices(make_fabric: MakeFabric) -> None:
    """Debian's ibv_devices lists the emulated devices."""
    fabric = make_fabric(mesh(3))
    printed = subprocess.run(
        ["ibv_devices"],
        env=fabric.environment("mac1", os.environ),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.split()[0] for line in printed.splitlines()[2:]] == ["rdma_en2", "rdma_en3"]


@with_programs
def test_ibv_devinfo(make_fabric: MakeFabric) -> None:
    """Debian's ibv_devinfo describes them, with the types of a RoCE table."""
    fabric = make_fabric(switched(2))
    printed = subprocess.run(
        ["ibv_devinfo", "-v"],
        env=fabric.environment("spark0", os.environ),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "PORT_ACTIVE (4)" in printed
    assert "::ffff:192.168.100.10, RoCE v2" in printed


@with_programs
@pytest.mark.parametrize(
    "arguments", [("-s", "8"), ("-s", "4096", "-e"), ("-s", "60000", "-r", "60")]
)
def test_ibv_uc_pingpong(make_fabric: MakeFabric, arguments: tuple[str, ...]) -> None:
    """Debian's ibv_uc_pingpong runs unmodified: polling, and asleep until an event."""
    for printed in pingpong(
        make_fabric(mesh(2)), "ibv_uc_pingpong", "-g", "1", "-n", "200", *arguments
    ):
        assert "200 iters" in printed


@with_programs
def test_ibv_rc_pingpong(make_fabric: MakeFabric) -> None:
    """Debian's ibv_rc_pingpong runs over the RoCE profile."""
    for printed in pingpong(
        make_fabric(switched(2)), "ibv_rc_pingpong", "-g", "2", "-n", "200", "-s", "100000", "-c"
    ):
        assert "200 iters" in printed


def test_emulate_runs_a_process_per_mac() -> None:
    """Each gets its own host and rank, and the environment of a JACCL program; nothing is left."""
    report = (
        "import json, os; names = ('JACCL_RANK', 'MLX_RANK', 'JACCL_COORDINATOR',"
        " 'MLX_JACCL_COORDINATOR', 'STANDFAST_EMULATOR_HOST', 'JACCL_RING');"
        "print(json.dumps([*map(os.environ.get, names),"
        " json.load(open(os.environ['JACCL_IBV_DEVICES'])),"
        " os.environ['JACCL_IBV_DEVICES'] == os.environ['MLX_IBV_DEVICES'],"
        " os.environ['STANDFAST_EMULATOR_FABRIC']]))"
    )
    options = ("--macs", "3", "--topology", "ring", "--cables", "2")
    ended = standfast("emulate", *options, "--", sys.executable, "-c", report)
    assert ended.returncode == 0, ended.stderr
    lines = sorted(json.loads(line.split("] ", 1)[1]) for line in ended.stdout.splitlines())
    assert [line[0] for line in lines] == [line[1] for line in lines] == ["0", "1", "2"]
    assert len({line[2] for line in lines} | {line[3] for line in lines}) == 1
    assert [line[4] for line in lines] == ["mac0", "mac1", "mac2"]
    assert lines[0][5] == "1"
    assert [[cell and len(cell) for cell in row] for row in lines[0][6]] == [
        [None, 2, 2],
        [2, None, 2],
        [2, 2, None],
    ]
    assert all(line[7] for line in lines)
    assert not Path(lines[0][8]).exists()


def test_emulate_ends_all_when_one_fails() -> None:
    """The first failure ends the others; its status is the command's."""
    program = (
        "import os, sys, time; sys.exit(7) if os.environ['JACCL_RANK'] == '1' else time.sleep(60)"
    )
    options = ("--macs", "2", "--grace-s", "0.1")
    ended = standfast("emulate", *options, "--", sys.executable, "-c", program)
    assert ended.returncode == 7
    assert "rank 1 failed with exit 7" in ended.stderr


def test_emulate_passes_on_a_signal() -> None:
    """A rank that is killed makes the status that a shell shows."""
    program = "import os; os.kill(os.getpid(), 9)"
    ended = standfast("emulate", "--macs", "1", "--", sys.executable, "-c", program)
    assert ended.returncode == 128 + signal.SIGKILL


def test_emulate_runs_jaccl_ranks() -> None:
    """A JACCL program finds its group, here the independent rank."""
    words = ("all_sum:100000", "barrier")
    ended = standfast("emulate", "--macs", "2", "--", sys.executable, str(RANK), *words)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--macs", "0", "--", "true"), "0 is not in the range"),
        (("--macs", "two", "--", "true"), "'two' is not a valid integer"),
        (("--macs", "2", "--topology", "star", "--", "true"), "'star' is not one of"),
        (("--macs", "2", "--cables", "5", "--", "true"), "5 is not in the range"),
        (("--macs", "2"), "Missing argument"),
        (("--", "true"), "Missing option '--macs'"),
    ],
)
def test_emulate_refuses_what_makes_no_sense(arguments: tuple[str, ...], message: str) -> None:
    """A wrong command line is status 2, and says which word is wrong."""
    ended = standfast("emulate", *arguments)
    assert ended.returncode == 2
    assert message in ended.stderr


def test_emulate_says_that_there_is_no_such_program() -> None:
    """A program that does not exist is status 127."""
    ended = standfast("emulate", "--macs", "2", "--", "no-such-program")
    assert ended.returncode == 127
    assert "no-such-program" in ended.stderr


def test_what_a_killed_maker_left_is_swept() -> None:
    """A fabric's folder that its maker could not remove is removed by the next one."""
    program = (
        "import os; from standfast.testing.emulator import Emulator;"
        " from standfast.testing.topology import mesh;"
        " print(Emulator(mesh(2)).folder, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    folder = Path(ended.stdout.strip())
    assert folder.exists()
    with Emulator(mesh(2)) as fabric:
        assert fabric.folder.parent == folder.parent
        assert not folder.exists()
