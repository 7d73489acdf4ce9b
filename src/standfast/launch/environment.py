"""The environment a rank starts with. Pure; launchers.py and settings.py read these names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

SPARE_FD = "STANDFAST_SPARE_FD"
WATCH_COORDINATOR = "STANDFAST_WATCH_COORDINATOR"
WATCH_LISTEN_FD = "STANDFAST_WATCH_LISTEN_FD"
"""Where the wardens of `run --watch` meet. Theirs alone: a ward has its rank's usual variables."""
NOT_INHERITED = (
    SPARE_FD,
    "STANDFAST_LISTEN_FD",
    "STANDFAST_LAUNCHER",
    "STANDFAST_NODE_RANK",
    "STANDFAST_NNODES",
    WATCH_COORDINATOR,
    WATCH_LISTEN_FD,
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""An outer launcher's. Torch would look for the outer agent's store at our MASTER_PORT."""
MLX_DESCRIPTIONS = ("MLX_HOSTFILE", "MLX_IBV_DEVICES", "JACCL_IBV_DEVICES")
MLX_NAMES = ("MLX_RANK", "MLX_WORLD_SIZE", "JACCL_RANK", "MLX_HOSTFILE")
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Formation:
    """What all ranks of one generation have in common. watch_port: of their wardens, if any.

    Ports, files and report_dir are filled in where the ranks are started; `host` is rank 0's
    address. ring_file, devices_file: where MLX's ring and JACCL's cables are described, "" if
    nobody has done so. jaccl_ring: the cables are to be used as a ring. join: where newcomers find
    the ranks that form their group again; "" for all others.
    """

    job_id: str
    generation: int
    size: int
    key: str
    port: int = 0
    master_port: int = 0
    report_dir: str = ""
    watch_port: int | None = None
    host: str = HOST
    ring_file: str = ""
    devices_file: str = ""
    jaccl_port: int = 0
    jaccl_ring: bool = False
    join: str = ""


@dataclass(frozen=True, slots=True)
class Newcomers:
    """What newcomers to a generation have for themselves: a number, and where the others are."""

    number: int
    join: str


def own_formation(formation: Formation, newcomers: Newcomers) -> Formation:
    """Return what a newcomer to a generation gets: its ports and directories, and its own."""
    return dataclasses.replace(
        formation, generation=newcomers.number, join=newcomers.join, watch_port=None
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is among those of its host; `node` is the host's number.

    data_address: where the host file wants its data; None leaves it to the rank.
    """

    rank: int
    local_rank: int
    local_size: int
    node: int = 0
    data_address: str | None = None


def alone(rank: int, size: int) -> Place:
    """Return the place of a rank in a job of one host."""
    return Place(rank, rank, size)


def endpoint(host: str, port: int) -> str:
    """Return "host:port", with brackets for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """The descriptors that rank 0 inherits: of its group, and of its warden's."""

    group: int
    watch: int | None = None

    def all(self) -> tuple[int, ...]:
        """Return those that there are."""
        return (self.group,) if self.watch is None else (self.group, self.watch)


def rank_environment(
    inherited: Mapping[str, str],
    formation: Formation,
    *,
    place: Place,
    listeners: Listeners | None,
) -> dict[str, str]:
    """Return the whole environment of one rank; `listeners` only for rank 0.

    The identity is always ours. The user's own STANDFAST_KEY, STANDFAST_EXIT_ON_FAULT,
    PYTHONUNBUFFERED, STANDFAST_DATA_ADDRESS and STANDFAST_DEVICES win.
    """
    environment = {name: text for name, text in inherited.items() if name not in NOT_INHERITED}
    environment |= _identity(formation, place) | _torch_identity(formation, place)
    environment |= _mlx_identity(inherited, formation, place)
    if formation.join:
        environment["STANDFAST_JOIN"] = formation.join
    if formation.watch_port is not None:
        environment[WATCH_COORDINATOR] = endpoint(formation.host, formation.watch_port)
    if listeners is not None:
        environment["STANDFAST_LISTEN_FD"] = str(listeners.group)
        if listeners.watch is not None:
            environment[WATCH_LISTEN_FD] = str(listeners.watch)
    for name, text in _defaults(formation, place).items():
        environment[name] = environment.get(name) or text
    return environment


def spare_environment(
    inherited: Mapping[str, str], formation: Formation, fd: int
) -> dict[str, str]:
    """Return the environment of a process that is no rank yet; `fd` is its end of a socket.

    What says who a rank is comes later: see spares.py.
    """
    place = alone(0, formation.size)
    whole = rank_environment(inherited, formation, place=place, listeners=None)
    later = {*_identity(formation, place), *_torch_identity(formation, place), *MLX_NAMES}
    later -= {"STANDFAST_JOB_ID", "STANDFAST_REPORT_DIR"}
    kept = {name: text for name, text in whole.items() if name not in later}
    return {**kept, SPARE_FD: str(fd)}


def _identity(formation: Formation, place: Place) -> dict[str, str]:
    return {
        "STANDFAST_RANK": str(place.rank),
        "STANDFAST_WORLD_SIZE": str(formation.size),
        "STANDFAST_LOCAL_RANK": str(place.local_rank),
        "STANDFAST_COORDINATOR": endpoint(formation.host, formation.port),
        "STANDFAST_GENERATION": str(formation.generation),
        "STANDFAST_JOB_ID": formation.job_id,
        "STANDFAST_REPORT_DIR": formation.report_dir,
    }


def _torch_identity(formation: Formation, place: Place) -> dict[str, str]:
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(formation.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "NODE_RANK": str(place.node),
        "MASTER_ADDR": formation.host,
        "MASTER_PORT": str(formation.master_port),
        "TORCHELASTIC_ERROR_FILE": (
            f"{formation.report_dir}/torch-{place.rank}-gen{formation.generation}.json"
        ),
    }


def _mlx_identity(
    inherited: Mapping[str, str], formation: Formation, place: Place
) -> dict[str, str]:
    """MLX's names. A user who describes the ring or the devices has done so for these ranks."""
    found = {"MLX_RANK": str(place.rank), "MLX_WORLD_SIZE": str(formation.size)}
    if "JACCL_RANK" in inherited:  # JACCL would believe it before the other
        found["JACCL_RANK"] = str(place.rank)
    if any(name in inherited for name in MLX_DESCRIPTIONS):
        return found
    if formation.devices_file and ":" not in formation.host:  # JACCL reads no IPv6
        found |= _jaccl_identity(formation, place)
    elif formation.ring_file:
        # Not besides the devices: MLX's "any" would take the ring, and never try JACCL.
        found["MLX_HOSTFILE"] = formation.ring_file
    return found


def _jaccl_identity(formation: Formation, place: Place) -> dict[str, str]:
    """Return both sets of names that JACCL reads, of which it believes its own first."""
    values = {
        "IBV_DEVICES": formation.devices_file,
        "JACCL_COORDINATOR": endpoint(formation.host, formation.jaccl_port),
    }
    if formation.jaccl_ring:
        values["JACCL_RING"] = "1"
    both = {f"MLX_{name}": text for name, text in values.items()}
    both |= {f"JACCL_{name.removeprefix('JACCL_')}": text for name, text in values.items()}
    return both | {"JACCL_RANK": str(place.rank)}


def _defaults(formation: Formation, place: Place) -> dict[str, str]:
    defaults = {
        "STANDFAST_KEY": formation.key,
        "STANDFAST_EXIT_ON_FAULT": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if formation.devices_file:
        defaults["STANDFAST_DEVICES"] = formation.devices_file
    if place.data_address is not None:
        defaults["STANDFAST_DATA_ADDRESS"] = place.data_address
    return defaults


def ward_environment(warden: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a warden's program: that of its rank, without the warden's own."""
    return {
        name: text
        for name, text in warden.items()
        if name not in (WATCH_COORDINATOR, WATCH_LISTEN_FD)
    }
