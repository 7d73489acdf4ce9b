"""What is measured: cells, message sizes, and what nccl-tests' columns mean for each operation.

Pure and without dependencies: it is loaded in the processes of other libraries too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from standfast import dtypes

REDOPS = ("sum", "prod", "max", "min")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SIZES_MAX = 200
BYTES_MAX = 64 << 30


class Operation(NamedTuple):
    """What a name on the command line stands for.

    shares: the size counts all ranks' shares together (nccl-tests: the larger of both buffers).
    factor: busbw / algbw, the part of the size that must cross each rank's link, for n ranks.
    reduces, rooted: it has an operator, a root. in_place: the result may lie where the input was.
    sized: it has a size at all. ranks: how many it needs, None for any number.
    """

    name: str
    shares: bool
    factor: Callable[[int], float]
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    sized: bool = True
    ranks: int | None = None


def _all(_n: int) -> float:
    return 1.0


def _others(n: int) -> float:
    return (n - 1) / n


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


OPERATIONS = {
    each.name: each
    for each in (
        Operation("all_reduce", False, _twice, reduces=True, in_place=True),
        Operation("all_gather", True, _others, in_place=True),
        Operation("reduce_scatter", True, _others, reduces=True),
        Operation("broadcast", False, _all, rooted=True, in_place=True),
        Operation("all_to_all", True, _others),
        Operation("gather", True, _others, rooted=True),
        Operation("scatter", True, _others, rooted=True),
        Operation("send_recv", False, _all),
        Operation("ping_pong", False, _all, ranks=2),
        Operation("barrier", False, _all, sized=False),
    )
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One row of the table, in one of its two halves.

    nbytes is the size column: a multiple of the element's size, and of the number of ranks where
    the operation shares it out. redop is "" and root -1 where the operation has none.
    """

    op: str
    nbytes: int
    dtype: str = "float32"
    redop: str = ""
    root: int = -1
    in_place: bool = False

    @property
    def operation(self) -> Operation:
        """Return what the name stands for."""
        return OPERATIONS[self.op]

    def count(self, ranks: int) -> int:
        """Return the count column: the elements that one rank gives or gets."""
        elements = self.nbytes // item_bytes(self.dtype)
        return elements // ranks if self.operation.shares else elements


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes column, as -b, -e, -f and -i give it. A factor of 0: steps of step bytes."""

    first: int
    last: int
    factor: float
    step: int = 0

    def __iter__(self) -> Iterator[int]:
        size, number = float(self.first), 0
        while size <= self.last and number < SIZES_MAX:
            yield int(size)
            size = size * self.factor if self.factor else size + self.step
            number += 1


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return dtypes.SIZES[dtypes.CODES[dtype]]


def parse_size(text: str) -> int:
    """Return the bytes that a text like "8", "32K", "1.5MiB" or "1G" means; units are powers of 2.

    Raises:
        ValueError: it means none, or more than 64 GiB.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or 32K, 1M, 1G")
    nbytes = int(float(match[1]) * UNITS[match[2].upper()])
    if nbytes > BYTES_MAX:
        raise ValueError(f"{text!r} is more than {BYTES_MAX >> 30} GiB")
    return nbytes


def is_meaningful(op: str, redop: str, dtype: str, ranks: int) -> bool:
    """Tell whether an operation exists for an operator, an element type and a number of ranks."""
    operation = OPERATIONS[op]
    if operation.ranks not in (None, ranks):
        return False
    return not (operation.reduces and dtype == "complex64" and redop in ("max", "min"))


def cells(
    ops: Sequence[str],
    sizes: Sequence[int],
    dtype_names: Sequence[str],
    redops: Sequence[str],
    *,
    ranks: int,
    root: int = 0,
    both_places: bool = True,
) -> list[Cell]:
    """Return what to measure, in the order of the table; no row comes twice.

    Sizes are cut to whole elements, and to whole shares; none becomes 0.
    """
    found: dict[Cell, None] = {}
    for op in ops:
        operation = OPERATIONS[op]
        for dtype in dtype_names if operation.sized else ("uint8",):
            for redop in redops if operation.reduces else ("",):
                if not is_meaningful(op, redop, dtype, ranks):
                    continue
                for size in sizes if operation.sized else (0,):
                    nbytes = _cut(size, item_bytes(dtype), ranks if operation.shares else 1)
                    cell = Cell(op, nbytes, dtype, redop, root if operation.rooted else -1)
                    found[cell if operation.sized else dataclasses.replace(cell, nbytes=0)] = None
                    if operation.in_place and both_places:
                        found[dataclasses.replace(cell, in_place=True)] = None
    return list(found)


def _cut(size: int, item: int, shares: int) -> int:
    unit = item * shares
    return max(unit, size // unit * unit)


def bandwidths(cell: Cell, ranks: int, time_us: float) -> tuple[float, float]:
    """Return (algbw, busbw) in GB/s, of 10**9 bytes."""
    if time_us <= 0:
        return 0.0, 0.0
    algorithm = cell.nbytes / time_us / 1e3
    return algorithm, algorithm * cell.operation.factor(ranks)


def to_dict(cell: Cell) -> dict[str, Any]:
    """Return the cell as JSON has it."""
    return dataclasses.asdict(cell)


def from_dict(fields: dict[str, Any]) -> Cell:
    """Return the cell that to_dict() made."""
    return Cell(**fields)
