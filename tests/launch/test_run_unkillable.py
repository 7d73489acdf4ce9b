"""A process that SIGKILL does not end, as one that hangs in the kernel: reported, and left alone.

No test can make such a process, so here the signal is kept from one: its end is never told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.sshd import Farm, skip_without_sshd
from tests.launch.support import (
    STARTED,
    Ended,
    finish,
    launcher_environment,
    pids_in,
    python,
)

# The group whose number is in the file is spared.
SPARED = """
import os
real = os.killpg
def killpg(group, number):
    try:
        with open({path!r}) as file:
            spared = int(file.read() or 0)
    except FileNotFoundError:
        spared = 0
    if group != spared or number == 0:
        real(group, number)
os.killpg = killpg
"""
LAUNCHER = """
import sys
from standfast.launch import generation
from standfast.command import main
generation.UNKILLABLE_NS = 500_000_000
main(sys.argv[1:])
"""
AGENT = """
import sys
from standfast.launch import agent
agent.KILL_S = 0.5
sys.exit(agent.main())
"""
RANK = """
if GENERATION == 1 and RANK == SIZE - 1:
    touch(sys.argv[1] + "spared", str(os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
if GENERATION == 1:
    wait_for(sys.argv[1] + "spared")
    sys.exit(3)
print("again", SIZE, flush=True)
"""
STOP = ["--grace-s", "0.2", "--kill-after-s", "0.2"]


@pytest.fixture
def spared(tmp_path: Path) -> Iterator[Path]:
    """Where the rank that is spared says who it is.

    It ends with its parent all the same (PR_SET_PDEATHSIG): that signal comes from the kernel.
    """
    path = tmp_path / "spared"
    yield path
    if path.exists():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(path.read_text()), signal.SIGKILL)


def run(options: list[str], spared: Path) -> Ended:
    """Run a launcher that waits half a second for what cannot be killed, and spares one rank."""
    code = SPARED.format(path=str(spared)) + LAUNCHER
    words = [sys.executable, "-c", code, "run", *options, *STOP, "--"]
    launcher = subprocess.Popen(
        [*words, *python(RANK), f"{spared.parent}/"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=launcher_environment(),
    )
    STARTED.append(launcher)
    return finish(launcher)


def test_it_is_reported(spared: Path) -> None:
    """On one machine nothing is started beside it: the launcher ends, and names the group."""
    ended = run(["-n", "2", "--restarts", "3"], spared)
    (pid,) = pids_in(spared)
    assert ended.status == 3
    assert "generation 2" not in ended.err
    assert f"process group {pid} could not be killed" in ended.err
    assert "not ended by SIGKILL: it hangs in the kernel" in ended.rank_line(1)


def test_its_host_is_not_used_again(spared: Path, tmp_path: Path) -> None:
    """With several hosts the others go on without that one."""
    skip_without_sshd()
    agent = tmp_path / "agent"
    code = tmp_path / "agent.py"
    code.write_text(SPARED.format(path=str(spared)) + AGENT)
    agent.write_text(f"#!/bin/sh\nexec {sys.executable} -P {code}\n")
    agent.chmod(0o755)
    farm = Farm(tmp_path)
    for name in ("host-a", "host-b"):
        farm.add(name)
    try:
        farm.wait_up()
        hosts = ["--ssh", farm.ssh, "--hosts", "host-a:2,host-b", "--python", str(agent)]
        ended = run([*hosts, "--restarts", "1", "--min-ranks", "2"], spared)
    finally:
        farm.close()
    (pid,) = pids_in(spared)
    assert ended.status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[r0 host-a] again 2", "[r1 host-a] again 2"]
    assert f"process group {pid} on host-b could not be killed" in ended.err
    assert "host-b has a process that could not be killed" in ended.err
