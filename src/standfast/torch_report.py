"""Tells torchrun's agent who was not the cause: torch's own kind of error file, dated later.

torchrun reports the failure with the earliest date as the root cause. A rank that was killed has no
file and is dated when the agent notices it, after the peers that it has failed. So a rank that was
failed by a peer dates its file well after that. membership.py writes it, and hooks.py once more at
the end, since @record writes a file with the date of now. The main thread runs it.
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from pathlib import Path

from standfast.errors import StandfastError

logger: logging.Logger = logging.getLogger("standfast")

# Longer than an agent may take to notice the end of a process (--monitor-interval).
LATER_S = 60

_written: list[tuple[Path, str]] = []


def write(path: str | os.PathLike[str], rank: int, error: StandfastError) -> None:
    """Write the file if the error is about another rank; the first one wins.

    Args:
        path: TORCHELASTIC_ERROR_FILE.
        rank: of this process.
        error: what is raised here.
    """
    if _written or error.rank is None or error.rank == rank:
        return
    _written.append((Path(path), text_of(error, time.time())))
    again()


def text_of(error: StandfastError, now_s: float) -> str:
    """Return the file's JSON, as torch's ErrorHandler lays it out. Pure."""
    details = {
        "py_callstack": "".join(traceback.format_exception_only(error)),
        "timestamp": str(int(now_s) + LATER_S),
    }
    message = f"{type(error).__name__}: {error}"
    return json.dumps({"message": {"message": message, "extraInfo": details}})


def again() -> None:
    """Write it once more, if it was written at all; trouble with it is only logged."""
    for path, text in _written:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as problem:
            logger.warning("torch's error file %s could not be written: %s", path, problem)
