"""Cables that take their time: what comes in at one end goes out at the other a while later.

A process of its own holds a tap device at each end of every cable. It stands in for the kernel's
netem, which many kernels do not have; a tap device has no offloads, so that packets are whole.
It ends when its standard input is closed: when the tests end, however they do.
"""

from __future__ import annotations

import collections
import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.network.namespaces import COMMAND_S, CommandFailed, enter, in_thread
from tests.ranks import ROOT

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65536
READY = b"ready\n"

Pair = tuple[str, str, str, str]
"""Namespace and device at one end, namespace and device at the other."""


class SlowCables:
    """The process, as the tests see it."""

    def __init__(self, delay_s: float, pairs: Sequence[Pair]) -> None:
        """Make the devices of all cables; a packet takes `delay_s` through one."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.network.cable", json.dumps([delay_s, pairs])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            _, said = self._process.communicate(timeout=COMMAND_S)
            raise CommandFailed(f"slow cables: {said.decode(errors='replace')}")

    def close(self) -> None:
        self._process.communicate(timeout=COMMAND_S)
        assert self._process.returncode == 0, f"slow cables: status {self._process.returncode}"


def tap(path: str, name: str) -> int:
    """Make a tap device in a namespace and return its descriptor."""

    def make() -> int:
        enter(path)
        fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        return fd

    return in_thread(make)


def relay(delay_s: float, ends: dict[int, int]) -> None:
    """Carry frames between these pairs of descriptors until standard input is closed."""
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        for fd in ends:
            selector.register(fd, selectors.EVENT_READ)
        while True:
            limit_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in selector.select(limit_s):
                if key.fd == 0:
                    return
                while frame := _read(key.fd):
                    waiting.append((time.monotonic() + delay_s, ends[key.fd], frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, fd, frame = waiting.popleft()
                _write(fd, frame)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, FRAME_BYTES_MAX)
    except OSError:  # nothing more, or the device is not up yet
        return b""


def _write(fd: int, frame: bytes) -> None:
    try:
        os.write(fd, frame)
    except OSError:  # a device that is down, or full, drops what it gets
        return


def main(text: str) -> None:
    delay_s, pairs = json.loads(text)
    ends: dict[int, int] = {}
    for near_path, near, far_path, far in pairs:
        one, other = tap(near_path, near), tap(far_path, far)
        ends |= {one: other, other: one}
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    relay(delay_s, ends)


if __name__ == "__main__":
    main(sys.argv[1])
