"""What can be measured: ourselves and other libraries; how each is started, and whether it is here.

Used where no rank is: nothing here imports a library that is measured. A new library is one row of
PEERS and one class in adapters.py.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

from standfast.errors import ConfigError

PROBE = (
    "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"
)
PROBE_LIMIT_S = 60


@dataclasses.dataclass(frozen=True)
class Backend:
    """One library, over one fabric, and the Python that has it.

    launcher: "run" or "emulate" (ours), "plain" (a process per rank), "mpirun". modules: what that
    Python must have. mark: a program that only this MPI brings along. arguments: for the launcher.
    init: options of adapters.Standfast.
    """

    name: str
    title: str
    adapter: str
    launcher: str
    modules: tuple[str, ...] = ()
    install: str = ""
    mark: str = ""
    python: str = sys.executable
    arguments: tuple[str, ...] = ()
    init: tuple[tuple[str, str], ...] = ()

    @property
    def is_ours(self) -> bool:
        """Tell whether it is standfast."""
        return self.adapter == "standfast"

    def program(self) -> str | None:
        """Return the path of its MPI's mpirun: beside its Python, or else the first of PATH."""
        beside = Path(self.python).parent
        for folder in (str(beside), None):
            if shutil.which(self.mark, path=folder):
                return shutil.which("mpirun", path=folder)
        return None

    def absence(self) -> str:
        """Return why it cannot run here and what to do, or an empty string if it can."""
        if self.is_ours:
            return ""
        remedy = f"install it with `{self.python} -m pip install {self.install}`"
        if self.python == sys.executable:
            remedy += f", or name a Python that has it: {self.name}=/path/to/python"
        try:
            probe = subprocess.run(
                [self.python, "-c", PROBE, *self.modules, "numpy"],
                check=False,
                capture_output=True,
                timeout=PROBE_LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.python} cannot be run: {error}"
        if probe.returncode != 0:
            return f"{self.python} has not all of {', '.join((*self.modules, 'numpy'))}; {remedy}"
        if self.launcher == "mpirun" and self.program() is None:
            return f"there is no mpirun with {self.mark} beside {self.python} or on PATH; {remedy}"
        return ""


OPENMPI_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include")
PEERS = {
    peer.name: peer
    for peer in (
        Backend(
            "openmpi",
            "Open MPI (shm)",
            "mpi",
            "mpirun",
            ("mpi4py",),
            "openmpi mpi4py numpy",
            "ompi_info",
        ),
        Backend(
            "openmpi-tcp",
            "Open MPI (TCP)",
            "mpi",
            "mpirun",
            ("mpi4py",),
            "openmpi mpi4py numpy",
            "ompi_info",
            arguments=(*OPENMPI_TCP, "lo0" if sys.platform == "darwin" else "lo"),
        ),
        Backend(
            "mpich",
            "MPICH (shm)",
            "mpi",
            "mpirun",
            ("mpi4py",),
            "mpich mpi4py numpy (in a venv of its own: its files would overwrite Open MPI's)",
            "mpichversion",
        ),
        Backend("gloo", "Gloo (TCP)", "gloo", "plain", ("torch",), "torch numpy"),
        Backend("mlx", "MLX ring (TCP)", "mlx", "plain", ("mlx.core",), "'mlx[cpu]' numpy"),
    )
}


def ours(fabric: str, topology: str, *, memory: str = "plain", emulate: bool = False) -> Backend:
    """Return ourselves, over a fabric; memory "shared": with arrays of standfast.empty()."""
    shown = f"{fabric}, {topology}" if topology != "auto" else fabric
    name = "standfast" if fabric == "auto" else f"standfast-{fabric}"
    if memory == "shared":
        name, shown = f"{name}-empty", f"{shown}, standfast.empty()"
    return Backend(
        name,
        f"standfast ({shown})",
        "standfast",
        "emulate" if emulate else "run",
        init=(("fabric", fabric), ("topology", topology), ("memory", memory)),
    )


def peers(text: str, *, fabric: str = "auto") -> list[Backend]:
    """Return the libraries that a list like "openmpi,gloo=/path/to/python" names.

    Over fabric "tcp", Open MPI is asked for TCP as well.

    Raises:
        ConfigError: a name that is not known.
    """
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, python = word.partition("=")
        if name == "openmpi" and fabric == "tcp":
            name = "openmpi-tcp"
        if name not in PEERS:
            raise ConfigError(
                f"there is no library {name!r} to compare with",
                hint=f"known are {', '.join(PEERS)}",
            )
        peer = PEERS[name]
        found.append(dataclasses.replace(peer, python=python) if python else peer)
    return found
