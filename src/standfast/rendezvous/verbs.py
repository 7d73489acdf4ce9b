"""Whether a group is to have RDMA, and over which devices; the native core only if so."""

from __future__ import annotations

from standfast.errors import ConfigError
from standfast.matrix import Cell, Matrix, cabling, whole
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.table import Plan
from standfast.rendezvous.wiring import VERBS, RailMaker
from standfast.settings import Settings


def rails_for(loop: Loop, plan: Plan, settings: Settings) -> RailMaker | None:
    """Return what makes the rails of this rank, or None if data goes another way.

    Raises:
        ConfigError: the device file is wrong, or does not join all ranks, or there is none and more
            than one device.
        FabricError: there is no RDMA here.
    """
    if VERBS not in plan.fabrics.values():
        return None
    from standfast.rendezvous.rails import Rails

    matrix = _matrix_for(plan, settings)
    cables = cabling(matrix, plan.hosts, settings.topology)
    library = settings.rdma_library or ""
    return Rails(loop, plan.rank, plan.hosts, matrix, cables, library=library)


def _matrix_for(plan: Plan, settings: Settings) -> Matrix:
    if settings.devices is not None:
        return whole(settings.devices)
    return _over_only_device(plan, settings.rdma_library or "")


def _over_only_device(plan: Plan, library: str) -> Matrix:
    """Return the matrix of ranks that reach each other through a switch, by one device each.

    Only this rank's row is used; what the others call their devices does not matter here.
    """
    from standfast import rdma

    active = [
        (device.name, port.number)
        for device in rdma.devices(library=library)
        for port in device.ports
        if port.is_active
    ]
    if len(active) != 1:
        names = ", ".join(f"{name}:{port}" for name, port in active) or "none"
        raise ConfigError(
            f"rank {plan.rank} on {plan.hosts[plan.rank]} was not told over which RDMA devices to"
            f" reach the others, and has {len(active)} with a link: {names}",
            hint="name a device file: STANDFAST_DEVICES (or JACCL_IBV_DEVICES)",
            rank=plan.rank,
        )
    cell = (Cell(*active[0]),)
    ranks = range(plan.size)
    rows = tuple(tuple(() if i == j else cell for j in ranks) for i in ranks)
    return Matrix("the only RDMA device", rows)
