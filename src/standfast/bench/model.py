"""The measured model by which the core chooses algorithms: core/collective/switch_points.inc.

    standfast bench --model core/collective/switch_points.inc

measures each algorithm over each fabric and number of ranks, and writes a row per pair of those.
The table is compiled into the core, so that all ranks of a group choose alike.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from standfast.bench.plan import Cell, item_bytes
from standfast.bench.table import Result, cell_of

NEVER = -1  # kNeverBytes
KIB = 1 << 10
EAGER_BYTES = 16 * KIB  # one phase reaches so far: kEagerBytes of core/fabric/fabric.h
# What the other algorithm must save over all sizes before a switch is worth its uncertainty.
GAIN_MIN = 0.1
RANKS = (2, 4, 8)
FABRICS = {"shm": "kShm", "tcp": "kTcp", "verbs": "kVerbs"}
# Without hardware there is nothing to measure: as one phase and two were weighed by hand.
VERBS_DIRECT_BYTES = 16 * KIB
PHASES = ("direct", "two-phase")
SHAPES = ("mesh", "ring")
RING_OPS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclasses.dataclass(frozen=True)
class Row:
    """Switch points of groups of up to `ranks`, in bytes of one rank's buffer; NEVER: no switch."""

    fabric: str
    ranks: int
    direct: int
    ring: tuple[int, ...] = (NEVER,) * len(RING_OPS)


def cells(topology: str, ranks: int) -> list[Cell]:
    """Return what is measured with a topology."""
    if topology in PHASES:
        return [Cell("all_reduce", KIB << k, redop="sum") for k in range(5)]
    found = []
    for op in RING_OPS:
        redop = "" if op == "all_gather" else "sum"
        shares = ranks if op != "all_reduce" else 1
        found += [Cell(op, shares * (32 * KIB << k), redop=redop) for k in range(0, 8, 2)]
    return found


def jobs() -> Iterator[tuple[str, int, str]]:
    """Yield fabric, ranks and topology of each job of one round; two ranks are no ring."""
    for fabric in ("shm", "tcp"):
        for ranks in RANKS:
            for topology in (*PHASES, *(SHAPES if ranks > 2 else ())):
                yield fabric, ranks, topology


def buffer_bytes(cell: Cell, ranks: int) -> int:
    """Return the size by which the core chooses: of what one rank gives or gets."""
    return cell.count(ranks) * item_bytes(cell.dtype)


def switch(below: Mapping[int, float], above: Mapping[int, float]) -> int | None:
    """Return the size from which on the second algorithm is better, or None if it never is.

    The switch that loses least over all sizes, in relative terms: one noisy time moves nothing far.
    What is chosen for the largest size goes for all that are larger, so it must be faster there.
    """
    sizes = sorted(below.keys() & above.keys())
    losses = {at: sum(math.log(above[s] if s >= at else below[s]) for s in sizes) for at in sizes}
    never = sum(math.log(below[size]) for size in sizes)
    best = min(losses, key=lambda at: (losses[at], -at))
    if above[sizes[-1]] >= below[sizes[-1]]:
        return None
    return best if losses[best] < never - GAIN_MIN * len(sizes) else None


def rows(results: Sequence[Result], *, time_key: str) -> list[Row]:
    """Return the table from results that have "fabric", "topology" and "ranks". Pure."""
    times: dict[tuple[str, int, str, str], dict[int, list[float]]] = {}
    for each in results:
        if time_key in each:
            cell = cell_of(each)
            key = each["fabric"], each["ranks"], each["topology"], cell.op
            sizes = times.setdefault(key, {})
            sizes.setdefault(buffer_bytes(cell, each["ranks"]), []).append(each[time_key])
    # Other work, and ranks that have more than their cores' share of turns, only ever add.
    best = {
        key: {size: min(found) for size, found in sizes.items()} for key, sizes in times.items()
    }
    found = [
        _row(fabric, ranks, best)
        for fabric, ranks in dict.fromkeys((fabric, ranks) for fabric, ranks, _, _ in best)
    ]
    return [*found, Row("verbs", RANKS[0], VERBS_DIRECT_BYTES)]


def _row(
    fabric: str, ranks: int, times: Mapping[tuple[str, int, str, str], Mapping[int, float]]
) -> Row:
    direct, two_phase = (times[fabric, ranks, each, "all_reduce"] for each in PHASES)
    at = switch(direct, two_phase)
    last = EAGER_BYTES if at is None else max((s for s in direct if s < at), default=0)
    ring = []
    for op in RING_OPS:
        mesh, around = (times.get((fabric, ranks, each, op), {}) for each in SHAPES)
        from_bytes = switch(mesh, around) if mesh and around else None
        ring.append(NEVER if from_bytes is None else from_bytes)
    return Row(fabric, ranks, last, tuple(ring))


def text(table: Sequence[Row], *, machine: str) -> str:
    """Return the file."""
    lines = [
        "// Made by `standfast bench --model core/collective/switch_points.inc`, not by hand.",
        f"// Measured on {machine}. Over verbs nothing could be measured: as it was guessed.",
        "// Fabric, ranks; all_reduce in one phase up to; around a ring from: all_reduce,",
        "// all_gather, reduce_scatter.",
        "// clang-format off",
    ]
    for row in table:
        ring = ", ".join("kNeverBytes" if at == NEVER else str(at) for at in row.ring)
        lines.append(f"{{FabricKind::{FABRICS[row.fabric]}, {row.ranks}, {row.direct}, {ring}}},")
    return "\n".join(lines) + "\n"


def parse(lines: str) -> list[Row]:
    """Return the rows of a file that text() made."""
    names = {name: fabric for fabric, name in FABRICS.items()}
    found = []
    for match in re.finditer(r"\{FabricKind::(\w+), ([^}]*)\}", lines):
        words = [word.strip() for word in match[2].split(",")]
        numbers = [NEVER if word == "kNeverBytes" else int(word) for word in words]
        found.append(Row(names[match[1]], numbers[0], numbers[1], tuple(numbers[2:])))
    return found
