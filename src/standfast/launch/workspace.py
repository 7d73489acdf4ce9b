"""The job's private directory on a host: reports, notices, the status record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

PREFIX = "standfast-"


def parent_of(environ: Mapping[str, str]) -> str:
    """Return where these directories are."""
    return environ.get("TMPDIR") or "/tmp"


@contextlib.contextmanager
def report_directory(environ: Mapping[str, str]) -> Iterator[str]:
    """Make one that is removed at the end; after SIGKILL the guardian removes it."""
    path = os.path.join(parent_of(environ), f"{PREFIX}{os.urandom(8).hex()}")
    os.mkdir(path, mode=0o700)
    try:
        yield path
    finally:
        import shutil

        shutil.rmtree(path, ignore_errors=True)
