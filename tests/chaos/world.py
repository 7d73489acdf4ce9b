"""A world of its own for a storm: namespaces of processes, network, mounts. Linux, as root.

In it everything that is left is the storm's: every process but our own, every listening port, all
that is in /dev/shm or in the directory for temporary files. Nothing has to be told by its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.plan import Victim

ENTER = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
LISTENING = "0A"
SETTLE_S = 0.02
FILE = "file"
"""The first word about what is left in the file system."""


def enter_command(words: Sequence[str]) -> list[str]:
    """Return what runs a program in a new world; it is process 1 there and calls `furnish()`."""
    return [*ENTER, *words]


def furnish() -> None:
    """Make this new world ready: shared memory of its own, a loopback network."""
    assert os.getpid() == 1, "this is no world of our own"
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def processes() -> list[int]:
    """Return all others. Those that have ended and were left to us are reaped."""
    reap()
    found = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    return sorted(found - {os.getpid()})


def reap() -> None:
    """Take leave of orphans, as process 1 has to; a launcher's status is its Popen's to take."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in KEPT and is_orphan_zombie(int(name)):
            os.waitpid(int(name), os.WNOHANG)


KEPT: set[int] = set()
"""Children that somebody waits for."""


def is_orphan_zombie(pid: int) -> bool:
    """Whether a process has ended and is ours to reap."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[1]) == os.getpid()


def listeners() -> list[str]:
    """Return the addresses that are listened on, as the kernel writes them."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                found.append(fields[1])
    return found


def traces(temporary: Path) -> list[str]:
    """Return what there is of jobs, in words; nothing, once all are over."""
    left = [f"process {pid}: {command_of(pid)}" for pid in processes()]
    left += [f"port {address}" for address in listeners()]
    left += [f"segment {name}" for name in os.listdir("/dev/shm")]
    left += [f"{FILE} {path}" for path in sorted(temporary.rglob("*"))]
    return left


def traces_after(limit_s: float, temporary: Path) -> list[str]:
    """Return what is still there after a while; returns as soon as nothing is."""
    end_s = time.monotonic() + limit_s
    while (left := traces(temporary)) and time.monotonic() < end_s:
        time.sleep(SETTLE_S)
    return left


def command_of(pid: int) -> str:
    """Return a process's command line, empty for a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def living(launcher: int) -> dict[Victim, list[int]]:
    """Return the job's processes by what they are; ranks in their order."""
    found: dict[Victim, list[int]] = {Victim.LAUNCHER: [launcher]}
    ranks: list[tuple[int, int]] = []
    for pid in processes():
        command = command_of(pid)
        if "tests/chaos/work.py" in command and pid != launcher:
            if " run " not in command:
                ranks.append((rank_of(pid), pid))
        elif "launch.agent" in command:
            found.setdefault(Victim.AGENT, []).append(pid)
        elif "guard.py" in command:
            found.setdefault(Victim.GUARDIAN, []).append(pid)
        elif "_sentinel" in command:
            found.setdefault(Victim.SENTINEL, []).append(pid)
    found[Victim.RANK] = [pid for _, pid in sorted(ranks)]
    return found


def guarded_by(pid: int) -> Path:
    """Return the directory that a guardian is to remove: its last argument."""
    return Path(command_of(pid).rpartition(" ")[2])


def rank_of(pid: int) -> int:
    """Return the rank that a process was started as, or a high number where it cannot be read."""
    try:
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"STANDFAST_RANK="):
                return int(word.partition(b"=")[2])
    except (OSError, ValueError):
        pass
    return sys.maxsize
