"""Mesh or ring, and which cables: decided from the device matrix alone, as stock does. Pure.

All ranks must decide alike, for each then sends another number of bytes while the group is formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from standfast.errors import ConfigError
from standfast.matrix import Matrix

MESH: Literal["mesh"] = "mesh"
RING: Literal["ring"] = "ring"
MESH_RANKS_MAX = 8


class Berth(NamedTuple):
    """Our end of a cable, and which rank is at the other. address: "" for the only one."""

    peer: int
    device: str
    port: int
    address: str


def choose(matrix: Matrix, *, prefer_ring: bool) -> Literal["mesh", "ring"]:
    """Return the topology that stock chooses.

    Raises:
        ConfigError: the devices make neither; names the first cells that are wrong for each.
    """
    size = len(matrix.rows)
    if size < 2:
        raise ConfigError(f"{matrix.source}: a JACCL group has at least 2 ranks, not {size}")
    no_mesh = next(mesh_faults(matrix), None)
    no_ring = next(ring_faults(matrix), None)
    if no_ring is None and (prefer_ring or no_mesh is not None):
        return RING
    if no_mesh is not None:
        raise ConfigError(
            f"the devices make neither a mesh nor a ring: no mesh, since {no_mesh}; no ring, since "
            f"{no_ring}",
            hint="a mesh needs a device in each cell but the diagonal; a ring as many in each cell "
            "of neighbours as in row 0, column 1",
        )
    if size > MESH_RANKS_MAX:
        raise ConfigError(
            f"{matrix.source}: a JACCL mesh has at most {MESH_RANKS_MAX} ranks, not {size}",
            hint="use a ring: prefer_ring=True (JACCL_RING=1)",
        )
    return MESH


def mesh_faults(matrix: Matrix) -> Iterator[str]:
    """List the cells that keep the devices from being a mesh."""
    for i, row in enumerate(matrix.rows):
        for j, cell in enumerate(row):
            if (i == j) == bool(cell):
                yield matrix.where(i, j)


def ring_faults(matrix: Matrix) -> Iterator[str]:
    """List the cells that keep the devices from being a ring."""
    size = len(matrix.rows)
    wires = len(matrix.rows[0][1])
    if wires == 0:
        yield matrix.where(0, 1)
    for i, row in enumerate(matrix.rows):
        for j in ((i - 1) % size, (i + 1) % size):
            if len(row[j]) != wires:
                yield f"{matrix.where(i, j)}, where row 0, column 1 has {wires}"


def berths(matrix: Matrix, rank: int, topology: str) -> list[Berth]:
    """Return a rank's ends: for a mesh one per peer, for a ring all to the left, then to the right.

    In a ring of two, both lists name the same devices: each has two queue pairs then.
    """
    size = len(matrix.rows)
    row = matrix.rows[rank]
    if topology == MESH:
        return [Berth(peer, *row[peer][0]) for peer in range(size) if peer != rank]
    left, right = (rank - 1) % size, (rank + 1) % size
    return [Berth(peer, *cell) for peer in (left, right) for cell in row[peer]]
