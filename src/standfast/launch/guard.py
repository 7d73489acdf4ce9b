"""The guardian's program: kills the process groups of ranks whose launcher is gone.

Started by guardian.py, one per job. Reads lines from its stdin, a socket whose other end only the
launcher holds: "+123" (group 123 is in my care), "-123" (it is gone), "!" (all is well). When the
socket ends without "!", it kills what is left, and makes sure. In any case it removes the job's
directory, so that a launcher that is killed in its very last steps leaves nothing, and shared
memory that was left by ranks which were just forming a group. Runs as a bare script
(`python -I -S guard.py DIRECTORY`), so it imports nothing of ours and costs little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

LIMIT_S = 4.0
SHARED_MEMORY = "/dev/shm"
"""Where Linux shows segments; elsewhere there is no way to list them."""
SEGMENT = "sf-"
"""Followed by the maker's process and "-": core/fabric/shm/segment.h."""


def main(directory: str) -> None:
    """Wait for the launcher's end, and clean up after it."""
    os.chdir("/")
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    groups, orderly = listen(0)
    if not orderly:
        kill(set(groups), time.monotonic() + LIMIT_S)
    sweep(groups)
    remove(directory)


def listen(descriptor: int) -> tuple[set[int], bool]:
    """Return the groups left in our care, and whether the launcher took its leave."""
    groups: set[int] = set()
    orderly = False
    rest = b""
    while data := _read(descriptor):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            orderly = line == b"!"
            if line[:1] == b"+":
                groups.add(int(line[1:]))
            elif line[:1] == b"-":
                groups.discard(int(line[1:]))
    return groups, orderly


def kill(groups: set[int], deadline_s: float) -> None:
    """Send SIGKILL to the groups until none is left, or the deadline has passed."""
    while groups and time.monotonic() < deadline_s:
        groups = {group for group in groups if _kill(group)}
        if groups:
            time.sleep(0.02)


def sweep(killed: set[int]) -> None:
    """Remove segments whose makers were killed or are gone: their names are for forming only."""
    with contextlib.suppress(OSError):
        for name in os.listdir(SHARED_MEMORY):
            maker = name.removeprefix(SEGMENT).partition("-")[0]
            if name.startswith(SEGMENT) and maker.isdecimal() and is_gone(int(maker), killed):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(SHARED_MEMORY, name))


def is_gone(pid: int, killed: set[int]) -> bool:
    """Whether there is no such process any more; one that we killed may be left as a zombie."""
    if pid in killed:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def remove(directory: str) -> None:
    """Remove the report directory with its files."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except ConnectionError:
        return b""


def _kill(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
