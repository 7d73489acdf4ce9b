"""How far a program got: what its ranks beat, and what its checkpoint looks like."""

from __future__ import annotations

import os
from collections.abc import Mapping

from standfast.launch.policy import Mark


def mark_of(beats: Mapping[int, int], checkpoint: str | None) -> Mark:
    """Return a mark that differs from an earlier one if the program got on in between.

    Args:
        beats: the highest step of each rank so far, over all generations.
        checkpoint: a file or directory; whether it was written to is what counts.
    """
    seen = () if checkpoint is None else _newest(checkpoint)
    steps = (max(beats.values()),) if beats else ()
    return (*steps, *seen)


def _newest(path: str) -> tuple[object, ...]:
    """Return what changes when a file, or a directory's newest entry, is written."""
    try:
        names = [path, *(os.path.join(path, name) for name in os.listdir(path))]
    except OSError:
        names = [path]
    stamps = []
    for name in names:
        try:
            status = os.stat(name)
        except OSError:
            continue
        stamps.append((status.st_mtime_ns, status.st_size))
    return max(stamps, default=("no checkpoint",))
