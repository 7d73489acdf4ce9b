"""The guardian's program: kills the process groups of ranks whose launcher is gone.

Started by guardian.py, one per job. Reads lines from its stdin, a socket whose other end only the
launcher holds: "+123" (group 123 is in my care), "-123" (it is gone), "!" (all is well). When the
socket ends without "!", it kills what is left, makes sure, and removes the job's directory. Runs as
a bare script (`python -I -S guard.py DIRECTORY`), so it imports nothing of ours and costs little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

LIMIT_S = 4.0


def main(directory: str) -> None:
    """Wait for the launcher's end and clean up after it."""
    os.chdir("/")
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    groups, orderly = listen(0)
    if not orderly:
        kill(groups, time.monotonic() + LIMIT_S)
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
