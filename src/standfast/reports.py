"""Writes a rank's failure to a file for the launcher, which finds the first cause among all ranks'.

Called by group.py, once per process and generation: the first error wins.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from standfast.errors import StandfastError

logger = logging.getLogger("standfast")

_written: set[Path] = set()


def now_ns() -> int:
    """Return CLOCK_MONOTONIC, which all processes of a host share, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps({"error": error.to_dict(), "raised_ns": now_ns()}))
        temporary.replace(path)
    except OSError as problem:
        logger.warning("the error report %s could not be written: %s", path, problem)
