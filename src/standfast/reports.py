"""Writes a rank's failure to a file for the launcher, which finds the first cause among all ranks'.

Called by group.py, once per process and generation: the first error wins.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from standfast.errors import StandfastError

logger: logging.Logger = logging.getLogger("standfast")

_written: set[Path] = set()


def now_ns() -> int:
    """Return CLOCK_MONOTONIC, which all processes of a host share, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def write_reforming(
    directory: str | os.PathLike[str], rank: int, generation: int, addresses: list[str]
) -> None:
    """Write ``reform-<rank>-gen<generation>.json`` atomically, as a rank begins to form again.

    So a launcher knows that the rank lives on by itself, and where newcomers are to ask
    (``STANDFAST_JOIN``).

    Args:
        directory: where to; it must exist.
        rank: as the launcher counts it.
        generation: the one that is over.
        addresses: of all its ranks.
    """
    _place(
        Path(directory) / f"reform-{rank}-gen{generation}.json",
        {"pid": os.getpid(), "addresses": addresses, "began_ns": now_ns()},
    )


def write(
    directory: str | os.PathLike[str], rank: int, generation: int, error: StandfastError
) -> None:
    """Write ``rank-<rank>-gen<generation>.json`` atomically; trouble with it is only logged.

    Args:
        directory: where to; it must exist.
        rank: this process's rank in the whole job.
        generation: of the job's group.
        error: what was raised.
    """
    path = Path(directory) / f"rank-{rank}-gen{generation}.json"
    if path in _written:
        return
    _written.add(path)
    _place(path, {"error": error.to_dict(), "raised_ns": now_ns()})


def _place(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content))
        temporary.replace(path)
    except OSError as problem:
        logger.warning("the report %s could not be written: %s", path, problem)
