"""The environment a rank starts with. Pure; launchers.py and settings.py read these names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WATCH_COORDINATOR = "STANDFAST_WATCH_COORDINATOR"
WATCH_LISTEN_FD = "STANDFAST_WATCH_LISTEN_FD"
"""Where the wardens of `run --watch` meet. Theirs alone: a ward has its rank's usual variables."""
NOT_INHERITED = (
    "STANDFAST_LISTEN_FD",
    WATCH_COORDINATOR,
    WATCH_LISTEN_FD,
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""An outer launcher's. Torch would look for the outer agent's store at our MASTER_PORT."""
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Formation:
    """What all ranks of one generation have in common. watch_port: of their wardens, if any."""

    job_id: str
    generation: int
    size: int
    port: int
    master_port: int
    key: str
    report_dir: str
    watch_port: int | None = None


@dataclass(frozen=True, slots=True)
class Listeners:
    """The descriptors that rank 0 inherits: of its group, and of its warden's."""

    group: int
    watch: int | None = None

    def all(self) -> tuple[int, ...]:
        """Return those that there are."""
        return (self.group,) if self.watch is None else (self.group, self.watch)


def rank_environment(
    inherited: Mapping[str, str], formation: Formation, *, rank: int, listeners: Listeners | None
) -> dict[str, str]:
    """Return the whole environment of one rank; `listeners` only for rank 0.

    The identity is always ours. The user's own STANDFAST_KEY, STANDFAST_EXIT_ON_FAULT and
    PYTHONUNBUFFERED win.
    """
    environment = {name: text for name, text in inherited.items() if name not in NOT_INHERITED}
    environment |= _identity(formation, rank) | _torch_identity(formation, rank)
    if formation.watch_port is not None:
        environment[WATCH_COORDINATOR] = f"{HOST}:{formation.watch_port}"
    if listeners is not None:
        environment["STANDFAST_LISTEN_FD"] = str(listeners.group)
        if listeners.watch is not None:
            environment[WATCH_LISTEN_FD] = str(listeners.watch)
    for name, text in _defaults(formation).items():
        environment[name] = environment.get(name) or text
    return environment


def _identity(formation: Formation, rank: int) -> dict[str, str]:
    return {
        "STANDFAST_RANK": str(rank),
        "STANDFAST_WORLD_SIZE": str(formation.size),
        "STANDFAST_LOCAL_RANK": str(rank),
        "STANDFAST_COORDINATOR": f"{HOST}:{formation.port}",
        "STANDFAST_GENERATION": str(formation.generation),
        "STANDFAST_JOB_ID": formation.job_id,
        "STANDFAST_REPORT_DIR": formation.report_dir,
    }


def _torch_identity(formation: Formation, rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(formation.size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(formation.size),
        "NODE_RANK": "0",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(formation.master_port),
    }


def _defaults(formation: Formation) -> dict[str, str]:
    return {
        "STANDFAST_KEY": formation.key,
        "STANDFAST_EXIT_ON_FAULT": "1",
        "PYTHONUNBUFFERED": "1",
    }


def ward_environment(warden: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a warden's program: that of its rank, without the warden's own."""
    return {
        name: text
        for name, text in warden.items()
        if name not in (WATCH_COORDINATOR, WATCH_LISTEN_FD)
    }
