"""Which RDMA device of which rank leads to which other: JACCL's device file, read and checked.

Row i, column j names rank i's end of the cables to rank j: null, a name, or a list of names. The
k-th name here and the k-th name of row j, column i are the two ends of one cable. A name may go on
with a port and an address, "mlx5_0:2@10.0.0.1", where a device has several.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from standfast.errors import ConfigError

RAILS_MAX = 4
CELL = re.compile(r"(?P<device>[^\s:@]+)(:(?P<port>[1-9][0-9]?))?(@(?P<address>[0-9.]+))?")
NEIGHBOURS = (
    "fabric='verbs' needs a cable from each rank to the next, and from the last to the first: put "
    "the hosts, and the rows and columns of the device file, in the order in which cables join them"
)


class Cell(NamedTuple):
    """One end of a cable. address: "" for the only one that the device has."""

    device: str
    port: int = 1
    address: str = ""


@dataclass(frozen=True)
class Matrix:
    """The ends of all cables. source: where it was read, for messages."""

    source: str
    rows: tuple[tuple[tuple[Cell, ...], ...], ...]

    def __repr__(self) -> str:
        return f"<device matrix of {len(self.rows)} ranks: {self.source}>"

    def of(self, ranks: Sequence[int]) -> Matrix:
        """Return the part for some of the ranks, in this order."""
        rows = tuple(tuple(self.rows[i][j] for j in ranks) for i in ranks)
        return Matrix(self.source, rows)

    def where(self, row: int, column: int) -> str:
        """Return what a cell says, for messages."""
        names = ", ".join(cell.device for cell in self.rows[row][column]) or "null"
        return f"row {row}, column {column} of {self.source}: {names}"


def read(path: str) -> Matrix:
    """Read a device file.

    Raises:
        ConfigError: it cannot be read, or is no device matrix; names row and column.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the device file {path!r}: {error}") from error
    return parse(rows, path)


def whole(devices: str | Matrix) -> Matrix:
    """Return the matrix that a setting names or holds.

    Raises:
        ConfigError: as for read().
    """
    return devices if isinstance(devices, Matrix) else read(devices)


def parse(rows: Any, source: str) -> Matrix:
    """Check what a device file holds.

    Raises:
        ConfigError: it is no device matrix; names row and column.
    """
    if not isinstance(rows, (list, tuple)) or not rows:
        raise ConfigError(f"{source}: not a list of rows, one per rank")
    parsed = []
    for i, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != len(rows):
            raise ConfigError(f"{source}: row {i} does not have {len(rows)} columns")
        parsed.append(tuple(_cells(value, f"{source}: row {i}, column {j}", i == j)
                            for j, value in enumerate(row)))  # fmt: skip
    return Matrix(source, tuple(parsed))


def _cells(value: Any, where: str, is_diagonal: bool) -> tuple[Cell, ...]:
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} is {value!r}; it must be null, a name or a list of names")
    if is_diagonal and names:
        raise ConfigError(f"{where} is {value!r}; a rank has no cable to itself: null")
    if len(names) > RAILS_MAX:
        raise ConfigError(f"{where} has {len(names)} names; at most {RAILS_MAX} cables are used")
    if len(set(names)) != len(names):
        raise ConfigError(f"{where} names a device twice: {value!r}")
    found = [CELL.fullmatch(name) for name in names]
    for name, match in zip(names, found, strict=True):
        if match is None:
            raise ConfigError(f"{where}: {name!r} is no device; name, name:port or name@address")
    return tuple(
        Cell(match["device"], int(match["port"] or 1), match["address"] or "")
        for match in found
        if match is not None
    )


@dataclass(frozen=True)
class Cabling:
    """What the cables between all ranks make.

    topology: "ring" where that is all that they allow, else what was asked for. uncabled: pairs of
    ranks that no cable joins, lower rank first; never neighbours.
    """

    topology: str
    uncabled: frozenset[tuple[int, int]] = frozenset()

    def joins(self, a: int, b: int) -> bool:
        """Tell whether there are cables between two ranks."""
        return (min(a, b), max(a, b)) not in self.uncabled


def cabling(matrix: Matrix, hosts: Sequence[str], topology: str = "auto") -> Cabling:
    """Make sure that the cables join all ranks, each with each or in a ring.

    Args:
        matrix: the ends.
        hosts: by rank, for messages.
        topology: "auto", "mesh" or "ring". A mesh needs all cables.

    Raises:
        ConfigError: names the cells and hosts of the first pair that is not joined.
    """
    size = len(hosts)
    if len(matrix.rows) != size:
        raise ConfigError(
            f"{matrix.source} is for {len(matrix.rows)} ranks, and the group has {size}",
            hint="the device file needs a row and a column for each rank, in the order of ranks",
        )
    pairs = list(itertools.combinations(range(size), 2))
    for i, j in pairs:
        if len(matrix.rows[i][j]) != len(matrix.rows[j][i]):
            raise _unjoined(matrix, hosts, (i, j), "no whole cable", "name each cable at both ends")
    uncabled = [(i, j) for i, j in pairs if not matrix.rows[i][j]]
    for i, j in uncabled:
        if j - i in (1, size - 1):
            raise _unjoined(matrix, hosts, (i, j), "no cable", NEIGHBOURS)
    if uncabled and topology == "mesh":
        raise _unjoined(
            matrix, hosts, uncabled[0], "no cable", "cables in a ring: topology='ring', or 'auto'"
        )
    return Cabling("ring" if uncabled else topology, frozenset(uncabled))


def _unjoined(
    matrix: Matrix, hosts: Sequence[str], pair: tuple[int, int], what: str, hint: str
) -> ConfigError:
    i, j = pair
    return ConfigError(
        f"there is {what} between rank {i} on {hosts[i]} and rank {j} on {hosts[j]}: "
        f"{matrix.where(i, j)}; {matrix.where(j, i)}",
        hint=hint,
    )
