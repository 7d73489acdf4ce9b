"""What `import standfast` costs a program that may never form a group."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys, time
def resident():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # macOS: what it was at most, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = resident()
began = time.process_time()
import standfast
took = time.process_time() - began
print(took, resident() - before, *sys.modules)
"""
TRIES = 8
# CPU seconds, which other work on the machine can double, not multiply.
CPU_S_MAX = 0.05
BYTES_MAX = 10e6
LATER = {"standfast._core", "standfast.group", "msgspec", "click", "logging", "asyncio", "numpy"}


def test_importing_is_cheap() -> None:
    """The best of some tries takes under 50 ms of CPU and 10 MB, and loads nothing of the core."""
    found = []
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        took, grown, *modules = done.stdout.split()
        assert LATER.isdisjoint(modules)
        found.append((float(took), float(grown)))
    assert min(took for took, _ in found) < CPU_S_MAX
    assert min(grown for _, grown in found) < BYTES_MAX
