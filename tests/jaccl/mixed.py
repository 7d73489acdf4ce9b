"""Groups of our ranks and independent ones (tests/emulator/jaccl_rank.py), as processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from standfast.testing.emulator import Emulator
from tests.ranks import rank_environment

OURS = Path(__file__).with_name("rank.py")
FOREIGN = Path(__file__).parents[1] / "emulator" / "jaccl_rank.py"
LIMIT_S = 60


def free_port() -> int:
    """Draw a port below the ephemeral ones that nobody listens on."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


class Ranks:
    """The processes of a group, by rank."""

    def __init__(self, processes: list[subprocess.Popen[str]], coordinator: str) -> None:
        self.processes = processes
        self.coordinator = coordinator

    def all_right(self) -> None:
        """Wait for all; each must have found all its results right."""
        for rank, process in enumerate(self.processes):
            said, complaint = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, f"rank {rank}: {said[-2000:]}{complaint[-4000:]}"

    def wait_for_line(self, rank: int, words: str = "done", *, complaint: bool = False) -> None:
        """Wait until a rank has said something with these words, or complained so."""
        process = self.processes[rank]
        stream = process.stderr if complaint else process.stdout
        assert stream is not None
        for line in stream:
            if words in line:
                return
        raise AssertionError(f"rank {rank} ended: {process.communicate()}")

    def failure(self, rank: int, status: int = 75) -> dict[str, Any]:
        """Wait for one of ours to fail; return its error."""
        process = self.processes[rank]
        said, complaint = process.communicate(timeout=LIMIT_S)
        assert process.returncode == status, f"rank {rank}: {process.returncode} {said} {complaint}"
        found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        return found


@contextlib.contextmanager
def ranks(
    fabric: Emulator,
    kinds: str,
    operations: Sequence[str],
    *,
    ours: Sequence[str] = (),
    foreign: Sequence[str] = (),
    only: Sequence[int] | None = None,
    more: dict[str, str] | None = None,
) -> Iterator[Ranks]:
    """Start a rank per host: "o" one of ours, "f" a foreign one. None is left at the end.

    Args:
        fabric: the emulated Macs.
        kinds: by rank.
        operations: for all.
        ours, foreign: further arguments of each kind.
        only: which ranks are started; all by default.
        more: further variables.
    """
    coordinator = f"127.0.0.1:{free_port()}"
    started: list[subprocess.Popen[str]] = []
    size = len(kinds)
    try:
        for rank, host in list(enumerate(fabric.topology.hosts)):
            if only is not None and rank not in only:
                continue
            environment = fabric.environment(host, rank_environment(rank, size, coordinator))
            environment |= fabric.jaccl_environment(rank, coordinator)
            environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")} | (more or {})
            program, own = (OURS, ours) if kinds[rank] == "o" else (FOREIGN, foreign)
            started.append(
                subprocess.Popen(
                    [sys.executable, str(program), *own, *operations],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield Ranks(started, coordinator)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def within(limit_s: float, began: float) -> None:
    """Make sure that not more time has passed."""
    took = time.monotonic() - began
    assert took < limit_s, f"it took {took:.2f} s"
