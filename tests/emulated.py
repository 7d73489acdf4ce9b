"""Emulated Macs for the tests of RDMA: rank i runs on `mac<i>`, and its device `rdma_en<j>` leads
to rank j. One fabric for all tests of a process; what a test changes it changes back.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standfast.testing import emulator

MACS = 8
PROMPT_S = 6.0
"""A fault is told without waiting for a limit; tests/death measures what is promised, 1 s."""


def fabric_text(macs: int = MACS, *, cables: int = 1, head: str = "") -> str:
    """Return a fabric file: a cable, or more, between every two Macs."""
    lines = [head] if head else []
    for a, b in itertools.combinations(range(macs), 2):
        for k in range(cables):
            ends = f"{end(a, b, k)}:{address(a, b, k)} {end(b, a, k)}:{address(b, a, k)}"
            lines.append(f"cable c{a}-{b}-{k} {ends} up")
    return "\n".join(lines) + "\n"


def device(to: int, cable: int = 0) -> str:
    """Return the name of the device that leads to a rank."""
    return f"rdma_en{to}" + (f"_{cable}" if cable else "")


def end(of: int, to: int, cable: int = 0) -> str:
    """Return HOST:DEVICE of one end of a cable."""
    return f"mac{of}:{device(to, cable)}"


def address(of: int, to: int, cable: int = 0) -> str:
    """Return the address of that end."""
    return f"10.{cable}.{of}.{to + 1}"


def ring(size: int, cables: int = 1) -> list[list[Any]]:
    """Return the rows of a device file that names the cables between neighbours alone."""
    full = matrix(size, cables)
    near = (1, size - 1)
    return [[full[i][j] if abs(i - j) in near else None for j in range(size)] for i in range(size)]


def matrix(size: int, cables: int = 1) -> list[list[Any]]:
    """Return the rows of a device file for so many ranks."""

    def cell(i: int, j: int) -> list[str] | None:
        return None if i == j else [device(j, k) for k in range(cables)]

    return [[cell(i, j) for j in range(size)] for i in range(size)]


class Fabric:
    """A fabric of its own; a context manager that removes its files.

    Its devices refuse receives before RTS: real ones may.
    """

    def __init__(self, text: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="standfast-fabric-"))
        self.path = self.folder / "fabric"
        text = fabric_text() if text is None else text
        self.path.write_text(f"early_receives refused\n{text}")

    def environment(self, rank: int) -> dict[str, str]:
        """Return what makes a process a rank on its Mac."""
        return {
            "STANDFAST_EMULATOR_FABRIC": str(self.path),
            "STANDFAST_EMULATOR_HOST": f"mac{rank}",
            "STANDFAST_RDMA_LIBRARY": str(emulator.library_path()),
        }

    def command(self, text: str) -> Any:
        """Change it, or ask it something: see emulator/README.md."""
        return emulator.command(self.path, text)

    def fault(self, text: str) -> int:
        """Order a fault; return its number."""
        return int(self.command(f"fault {text}"))

    def applied(self, number: int) -> int:
        """Return how often a fault has struck."""
        return int(self.command(f"applied {number}")["applied"])

    def close(self) -> None:
        """Remove its files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def shared() -> Fabric:
    """Return the fabric that most tests share; its files go with the process."""
    import atexit

    fabric = Fabric()
    atexit.register(fabric.close)
    return fabric


def arguments(size: int, init: Mapping[str, Any] | None) -> dict[str, Any]:
    """Complete the arguments of standfast.init(): RDMA needs to know the devices."""
    given = dict(init or {})
    if given.get("fabric") == "verbs":
        given.setdefault("devices", matrix(size))
    return given
