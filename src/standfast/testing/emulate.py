"""`standfast emulate`: a program, once per emulated Mac, with all that a JACCL rank looks for."""

from __future__ import annotations

import dataclasses
import random
import socket
from collections.abc import Sequence

from standfast import exits
from standfast.launch.job import run_job
from standfast.launch.spec import JobSpec, LaunchError
from standfast.testing.emulator import Emulator, library_path
from standfast.testing.topology import mesh, ring

HOST = "127.0.0.1"
# Below the ports that systems give away by themselves.
PORTS = range(20000, 30000)
ATTEMPTS = 100


def run_emulated(
    command: Sequence[str],
    *,
    macs: int,
    topology: str,
    cables: int,
    policy: str,
    spin: bool,
    timeout_s: float | None,
    grace_s: float,
) -> int:
    """Run it and return the exit status, that of the first failure.

    Raises:
        LaunchError: the program can't be started, or this machine can't be used for it.
    """
    if not library_path().exists():
        raise LaunchError(
            f"the emulated library is not installed ({library_path()})", status=exits.UNAVAILABLE
        )
    settings = [f"policy {policy}", f"idle {'spin' if spin else 'nap'}"]
    make = mesh if topology == "mesh" else ring
    spec = JobSpec(command=tuple(command), ranks=macs, timeout_s=timeout_s, grace_s=grace_s)
    with Emulator(make(macs, cables=cables, settings=settings)) as fabric:
        coordinator = f"{HOST}:{_free_port()}"
        own = tuple(
            fabric.environment(host, spec.environ) | fabric.jaccl_environment(rank, coordinator)
            for rank, host in enumerate(fabric.topology.hosts)
        )
        return run_job(dataclasses.replace(spec, own_environ=own))


def _free_port() -> int:
    """Return a port that is free at the moment, and is given to nobody unasked."""
    for _ in range(ATTEMPTS):
        port = random.choice(PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
    raise LaunchError(
        f"no free port from {PORTS.start} to {PORTS.stop - 1} on {HOST}", status=exits.UNAVAILABLE
    )
