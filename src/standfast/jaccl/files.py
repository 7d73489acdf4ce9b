"""JACCL's device file, and MLX's hostfile, which holds the same beside the hosts' names."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from standfast import matrix
from standfast.errors import ConfigError
from standfast.matrix import Matrix


def whole(
    devices: str | os.PathLike[str] | Sequence[Sequence[Any]] | Matrix, *, rank: int, host: str
) -> Matrix:
    """Return the matrix that is given, or that a file holds.

    Args:
        devices: the path of a file, rows, or a matrix.
        rank: of this process, for messages.
        host: the same.

    Raises:
        ConfigError: it is no device matrix; names row, column and, as far as known, the host.
    """
    if isinstance(devices, Matrix):
        return devices
    if isinstance(devices, (str, os.PathLike)):
        source = os.fspath(devices)
        return parse(_read(source), source, rank=rank, host=host)
    return parse(devices, "devices", rank=rank, host=host)


def _read(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the device file {path!r}: {error}") from error


def parse(rows: Any, source: str, *, rank: int, host: str) -> Matrix:
    """Check what a file holds: rows, or for each host an object with its "ssh" name and "rdma" row.

    Raises:
        ConfigError: as for whole().
    """
    hosts = {rank: host}
    if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
        hosts = {i: str(row.get("ssh", "")) for i, row in enumerate(rows)}
        rows = [row.get("rdma") for row in rows]
    try:
        return matrix.parse(rows, source)
    except ConfigError as error:
        row = _row_of(str(error.message))
        if not hosts.get(row):
            raise
        whose = f"rank {row} is {hosts[row]}"
        raise ConfigError(
            f"{error.message} ({whose})", hint=error.hint, rank=row, host=hosts[row]
        ) from None


def _row_of(message: str) -> int:
    """Return the row that a message of matrix.parse() names, or -1."""
    _, found, rest = message.rpartition("row ")
    number = rest.split(",")[0].split(" ")[0]
    return int(number) if found and number.isdigit() else -1
