"""`standfast status`: what the jobs of this machine say of themselves, if they still can.

A record is only believed while its owner lives: the process with that number and that start. What
an owner that was killed has left is removed. Reading needs no launcher to answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from typing import Any

from standfast.launch.chronicle import RECORD
from standfast.launch.parts import process_start
from standfast.launch.workspace import owner_of, parent_of


def living_jobs(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records of this user's jobs, the oldest first; remove those of dead launchers."""
    parent = parent_of(environ)
    records = []
    for name in sorted(os.listdir(parent)):
        owner = owner_of(name)
        if owner is not None:
            record = _read(os.path.join(parent, name), owner)
            if record is not None:
                records.append(record)
    return sorted(records, key=lambda record: float(record["since"]))


def _read(directory: str, owner: int) -> dict[str, Any] | None:
    """Return the record of a job whose launcher lives.

    An agent's directory has none, and a launcher's none yet in its first moments: they stay as long
    as their owner lives.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return None
        start = process_start(owner)
        if start:
            with open(os.path.join(directory, RECORD), encoding="utf-8") as file:
                record: dict[str, Any] = json.load(file)
            if is_owner(record, start):
                return record
        shutil.rmtree(directory, ignore_errors=True)
    return None


def is_owner(record: Mapping[str, Any], start: str) -> bool:
    """Whether the process with the owner's number, which began at `start`, is the owner. Pure."""
    return bool(start) and start == record["pid_start"]


def lines_of(records: list[dict[str, Any]], now: float | None = None) -> list[str]:
    """Return the records as text."""
    if not records:
        return ["no job is running"]
    now = time.time() if now is None else now
    lines = []
    for record in records:
        since = f"for {max(0.0, now - record['since']):.0f} s"
        reason = f": {record['reason']}" if record["reason"] else ""
        about = f"generation {record['generation']}, {record['size']} ranks, pid {record['pid']}"
        lines.append(f"{record['job_id']}  {record['state']} {since} ({about}){reason}")
        lines.append(f"  {' '.join(record['command'])}")
        for rank in record["ranks"]:
            where = f" on {rank['host']}" if rank["host"] else ""
            ended = f": {rank['ended']}" if rank["ended"] else ""
            lines.append(
                f"  rank {rank['rank']:<3} {rank['state']}{where}, pid {rank['pid']}{ended}"
            )
    return lines
