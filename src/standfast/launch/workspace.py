"""The job's private directory on a host: reports, notices, the status record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

PREFIX = "standfast-"


def parent_of(environ: Mapping[str, str]) -> str:
    """Return where these directories are."""
    return environ.get("TMPDIR") or "/tmp"


def owner_of(name: str) -> int | None:
    """Return the process that made a directory of this name, or None if it is none of these. Pure.

    The name tells it, so that there is no moment at which a directory belongs to nobody: its maker
    may be killed before it has a guardian, or a record.
    """
    pid = name.removeprefix(PREFIX).partition("-")[0]
    return int(pid) if name.startswith(PREFIX) and pid.isdecimal() else None


@contextlib.contextmanager
def report_directory(environ: Mapping[str, str]) -> Iterator[str]:
    """Make one that is removed at the end, by the guardian: after SIGKILL there is nobody else."""
    name = f"{PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
    path = os.path.join(parent_of(environ), name)
    os.mkdir(path, mode=0o700)
    try:
        yield path
    finally:
        import shutil

        shutil.rmtree(path, ignore_errors=True)
