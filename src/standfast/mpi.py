"""Where ranks meet under an mpirun that tells nobody: rank 0's address travels by MPI's broadcast.

identity.py asks, where mpi4py is installed and no variable names a meeting point. Nothing of ours
goes over MPI but this one address.
"""

from __future__ import annotations

import atexit
import importlib.util
import socket
import sys
import time
from typing import Any

from standfast.endpoint import Endpoint, is_loopback, parse_endpoint
from standfast.errors import ConfigError, RendezvousError
from standfast.rendezvous.interfaces import ipv4_addresses

LIMIT_S = 60.0
POLL_S = 0.001
BYTES = 256
INSTEAD = "or tell the ranks yourself where to meet: STANDFAST_COORDINATOR=host:port"
# Of the range for documentation (RFC 5737): a UDP socket "connects" there without a packet, and
# then has the address from which this machine reaches others.
ELSEWHERE = ("192.0.2.1", 9)


def is_installed() -> bool:
    """Tell whether mpi4py can be imported, without doing so."""
    return importlib.util.find_spec("mpi4py") is not None


def meeting(rank: int, size: int, *, limit_s: float = LIMIT_S) -> Endpoint:
    """Return where the ranks of MPI's world meet; all of them must call.

    MPI_Init, if it is still to be called, waits for all ranks as in any MPI program: that is
    mpirun's to end. The broadcast is ours to bound.

    Args:
        rank: what mpirun's variables say of this rank.
        size: and of all.
        limit_s: how long to wait for the broadcast, in seconds.

    Raises:
        ConfigError: mpi4py cannot be loaded, or belongs to another MPI than mpirun.
        RendezvousError: the broadcast did not come in time.
    """
    world = _world(rank, size)
    text = str(_own_endpoint()).encode() if rank == 0 else b""
    letter = bytearray(text.ljust(BYTES, b"\0"))
    request = world.Ibcast(letter, root=0)
    until_s = time.monotonic() + limit_s
    while not request.Test():
        if time.monotonic() > until_s:
            raise RendezvousError(
                f"rank {rank} of {size} on {socket.gethostname()} waited {limit_s:g} s for the "
                "broadcast of rank 0's address over MPI",
                hint=f"do all ranks of mpirun call init()? {INSTEAD}",
                rank=0,
            )
        time.sleep(POLL_S)
    return parse_endpoint(bytes(letter).rstrip(b"\0").decode("ascii"), name="MPI's broadcast")


def _world(rank: int, size: int) -> Any:
    """Return MPI's world; initialise MPI if nobody has."""
    began_here = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if began_here:
            mpi4py.rc.finalize = False  # at exit it could wait for a dead rank: see _finalize
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"mpi4py is installed, but cannot be loaded: {error}", hint=f"mend it, {INSTEAD}"
        ) from error
    if began_here:
        atexit.register(_finalize, MPI)
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise ConfigError(
            f"rank {rank} of {size}: mpi4py is loaded, but MPI is not running",
            hint=f"call init() between MPI.Init() and MPI.Finalize(), {INSTEAD}",
        )
    world = MPI.COMM_WORLD
    seen = (world.Get_rank(), world.Get_size())
    if seen != (rank, size):
        raise ConfigError(
            f"mpirun says rank {rank} of {size}, mpi4py rank {seen[0]} of {seen[1]}: "
            "it belongs to another MPI than this mpirun",
            hint=f"install mpi4py for this MPI, {INSTEAD}",
        )
    return world


def _finalize(mpi: Any) -> None:
    """End MPI, which we began; but not after a fault: it would wait for who is gone."""
    hooks = sys.modules.get("standfast.hooks")
    if (hooks is None or not hooks.fault_noted()) and not mpi.Is_finalized():
        mpi.Finalize()


def _own_endpoint() -> Endpoint:
    """Return an address of this machine that others can reach, and a port that is free there."""
    host = _own_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return Endpoint(host, int(probe.getsockname()[1]))


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:  # no way out of this network: any address but loopback will do
            known = [each for each in ipv4_addresses().values() if not is_loopback(each)]
            return known[0] if known else "127.0.0.1"
