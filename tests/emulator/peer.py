"""A process on an emulated host that does as it is told: one queue pair, commands on stdin as JSON.

`Peer` starts one and talks to it; as a program, it is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from standfast.testing.emulator import Emulator  # noqa: E402
from tests.emulator.verbs import Device, Link, load  # noqa: E402


class Peer:
    """A process on a host; what it answers is the result of the method of `Worker`."""

    def __init__(self, fabric: Emulator, host: str, device: str = "rdma_en2", **link: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, device, json.dumps(link)],
            env=fabric.environment(host, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.number, gid = self._answer()
        self.gid = bytes.fromhex(gid)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, name: str, *arguments: Any) -> None:
        """Tell it to do something, without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def do(self, name: str, *arguments: Any) -> Any:
        """Tell it to do something; return the answer."""
        self.ask(name, *arguments)
        return self._answer()

    def status(self) -> int:
        """Wait until it has ended; return how."""
        return self.process.wait(20)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(20)}"
        return json.loads(line)


class Worker:
    """The commands."""

    def __init__(self, device: str, **link: int) -> None:
        self.device = Device(load("librdma.dylib"), device)
        self.link = Link(self.device, 1 << 20, **link)

    def address(self) -> tuple[int, str]:
        return self.link.number, self.device.gid(self.device.ipv4_index()).hex()

    def connect(self, number: int, gid: str) -> None:
        self.link.connect(number, bytes.fromhex(gid))

    def fill(self, value: int) -> None:
        self.link.memory[:] = value

    def count(self, value: int) -> int:
        """Return how many bytes of memory have this value."""
        return int((self.link.memory == value).sum())

    def receive(self, offset: int, size: int) -> int:
        return self.link.post_receive(offset, size)

    def send(self, offset: int, size: int) -> int:
        return self.link.post_send(offset, size)

    def wait(self, count: int) -> list[int]:
        return [each.status for each in self.link.wait(count)]

    def hold(self, pairs: int, regions: int) -> None:
        """Have so many queue pairs and regions more."""
        self.more = [Link(self.device, 4096) for _ in range(pairs)]
        for _ in range(regions):
            assert self.link.register(self.link.memory)


def main() -> None:
    worker = Worker(sys.argv[1], **json.loads(sys.argv[2]))
    print(json.dumps(worker.address()), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
