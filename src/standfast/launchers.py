"""Who starts ranks, and in which variables it tells them who they are: a row per launcher.

identity.py reads the rows; nothing else knows these variables. To support another launcher, add a
row to LAUNCHERS. docs/design/rendezvous.md has the rules and their reasons.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from standfast import slurm
from standfast.endpoint import Endpoint, derived_port, parse_endpoint, parse_port
from standfast.errors import ConfigError

Environ = Mapping[str, str]

FIRST_GENERATION = 1
# exo writes this address for ranks that are not neighbours (TEST-NET-2, RFC 5737): nobody is there.
MLX_PLACEHOLDER = "198.51.100.1"
# What schedules whole nodes; a launcher that runs inside of them knows better who a rank is.
CLUSTERS = frozenset({"slurm", "lws", "job", "pet", "sky"})


class Reading(NamedTuple):
    """A number, and the variable and text that it was read from."""

    variable: str
    text: str
    value: int


def number(name: str, text: str) -> int:
    """Read a whole number that is not negative.

    Raises:
        ConfigError: it is something else.
    """
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise ConfigError(f"{name}={text!r} is not a whole number, 0 or more")


class Meeting(NamedTuple):
    """Where a launcher lets ranks meet: a host, and a port.

    taken_port is the launcher's own, beside which ours is derived; free_port nobody else has.
    """

    host: str
    taken_port: int | None = None
    free_port: int | None = None


@dataclass(frozen=True)
class Rule:
    """How to read one number: from the first of these variables that is set."""

    variables: tuple[str, ...] = ()
    convert: Callable[[str, str], int] = number

    def read(self, environ: Environ) -> Reading | None:
        """Return the number, None if no variable is set; ConfigError if it is none."""
        for name in self.variables:
            if name in environ:
                return Reading(name, environ[name], self.convert(name, environ[name]))
        return None


@dataclass(frozen=True)
class Launcher:
    """One way of being started; a row of environments.md.

    name: the word of STANDFAST_LAUNCHER. inside: launchers that lose silently against this one.
    meeting: where ranks meet, or None if the environment does not say; hint: what to do then.
    job_id: the variables that together name the job. over_mpi: mpi4py, if it is installed, can
    carry rank 0's address to the others.
    """

    name: str
    rank: Rule
    size: Rule
    local_rank: Rule = Rule()
    generation: Rule = Rule()
    job_id: tuple[str, ...] = ()
    meeting: Callable[[Environ], Meeting | None] = lambda environ: None
    inside: frozenset[str] = frozenset()
    hint: str | None = None
    over_mpi: bool = False

    def job(self, environ: Environ) -> str | None:
        """Return the job's name: STANDFAST_JOB_ID, else the launcher's own; None without one."""
        if "STANDFAST_JOB_ID" in environ:
            return environ["STANDFAST_JOB_ID"]
        return ".".join(environ[name] for name in self.job_id if name in environ) or None


def our_port(meeting: Meeting | None, environ: Environ) -> int | None:
    """Return STANDFAST_PORT, else a port that is free, else one derived from the launcher's own."""
    if "STANDFAST_PORT" in environ:
        return parse_port(environ["STANDFAST_PORT"], name="STANDFAST_PORT")
    if meeting is None:
        return None
    if meeting.free_port is not None:
        return meeting.free_port
    return None if meeting.taken_port is None else derived_port(meeting.taken_port)


def restarts(name: str, text: str) -> int:
    """Read how often a launcher has restarted the group, as a generation."""
    return number(name, text) + FIRST_GENERATION


def _json_list(name: str, path: str) -> list[object]:
    """Read a file that holds a JSON list; mlx.launch writes an empty file for a single host."""
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read()
        value = json.loads(content) if content.strip() else []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}={path!r} cannot be read: {error}") from error
    if not isinstance(value, list):
        raise ConfigError(f"{name}={path!r} does not hold a JSON list")
    return value


def matrix_size(name: str, path: str) -> int:
    """Return the number of ranks in a file with JACCL's device matrix."""
    rows = _json_list(name, path)
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(rows):
            raise ConfigError(f"{name}={path!r}: row {index} does not have {len(rows)} entries")
    return max(1, len(rows))


def hostfile_size(name: str, path: str) -> int:
    """Return the number of ranks in a file with the addresses of MLX's ring."""
    return max(1, len(_json_list(name, path)))


def _port_or_zero(text: str, *, name: str) -> Endpoint:
    """Read an address of a host file, where port 0 means that the rank is not to be called."""
    host, _, port = text.rpartition(":")
    return Endpoint(host, 0) if port == "0" else parse_endpoint(text, name=name)


def _meet_at_master(environ: Environ) -> Meeting | None:
    """Torchrun: MASTER_ADDR; MASTER_PORT is the agent's and is never bound."""
    if "MASTER_ADDR" not in environ:
        return None
    port = environ.get("MASTER_PORT")
    taken = None if port is None else parse_port(port, name="MASTER_PORT")
    return Meeting(environ["MASTER_ADDR"], taken)


def _meet_in_ring(environ: Environ) -> Meeting | None:
    """MLX's ring: rank 0's first address, whose port MLX itself listens on."""
    rows = _json_list("MLX_HOSTFILE", environ["MLX_HOSTFILE"])
    first = rows[0] if rows else None
    if isinstance(first, list):
        first = first[0] if first else None
    if not isinstance(first, str):
        return None
    found = _port_or_zero(first, name=f"first entry of MLX_HOSTFILE={environ['MLX_HOSTFILE']!r}")
    return None if found.host == MLX_PLACEHOLDER else Meeting(found.host, found.port or None)


def _meet_at_jaccl(environ: Environ) -> Meeting | None:
    """JACCL: its coordinator's host; on the port JACCL itself listens."""
    for name in ("JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"):
        if name in environ:
            return Meeting(*_host_and_port(environ[name], name))
    return None


def _meet_at_nccl(environ: Environ) -> Meeting | None:
    """MLX with NCCL: the host and port of NCCL's own coordinator."""
    if "NCCL_HOST_IP" not in environ:
        return None
    port = environ.get("NCCL_PORT")
    taken = None if port is None else parse_port(port, name="NCCL_PORT")
    return Meeting(environ["NCCL_HOST_IP"], taken)


def _meet_under_mpi(environ: Environ) -> Meeting | None:
    """MPI has none: MASTER_ADDR, if it was passed on, with a port that the job's name gives.

    PMIX_SERVER_URI is the local daemon's address, not rank 0's.
    """
    meeting = _meet_at_master(environ)
    job = environ.get("PMIX_NAMESPACE")
    if meeting is None or meeting.taken_port or job is None:
        return meeting
    return Meeting(meeting.host, free_port=derived_port(zlib.crc32(job.encode())))


def _meet_in_slurm(environ: Environ) -> Meeting | None:
    """Slurm: the step's first host, where rank 0 is, with a port that the job's number gives.

    SLURM_LAUNCH_NODE_IPADDR is where srun ran.
    """
    name = "SLURM_STEP_NODELIST"
    if name not in environ:
        return None
    job = Rule(("SLURM_JOB_ID", "SLURM_JOBID")).read(environ)
    free = slurm.port(job.value) if job else None
    return Meeting(slurm.hosts(name, environ[name])[0], free_port=free)


def _meet_at_leader(environ: Environ) -> Meeting | None:
    """LeaderWorkerSet: the leader's name."""
    return Meeting(environ["LWS_LEADER_ADDRESS"]) if "LWS_LEADER_ADDRESS" in environ else None


def _meet_at_pet_master(environ: Environ) -> Meeting | None:
    """Kubeflow: its master, whose port is torchrun's."""
    if "PET_MASTER_ADDR" not in environ:
        return None
    port = environ.get("PET_MASTER_PORT")
    taken = None if port is None else parse_port(port, name="PET_MASTER_PORT")
    return Meeting(environ["PET_MASTER_ADDR"], taken)


def _meet_at_first_ip(environ: Environ) -> Meeting | None:
    """SkyPilot: the first of the nodes' addresses, one per line."""
    words = environ.get("SKYPILOT_NODE_IPS", "").split()
    return Meeting(words[0]) if words else None


def _host_and_port(text: str, name: str) -> tuple[str, int]:
    endpoint = parse_endpoint(text, name=name)
    return endpoint.host, endpoint.port


OURS = Launcher(
    "standfast",
    rank=Rule(("STANDFAST_RANK",)),
    size=Rule(("STANDFAST_WORLD_SIZE",)),
    inside=CLUSTERS,
)

# In the order in which they are asked; the first complete one wins.
LAUNCHERS: tuple[Launcher, ...] = (
    Launcher(
        "mlx",
        rank=Rule(("JACCL_RANK", "MLX_RANK")),
        size=Rule(("JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"), matrix_size),
        meeting=_meet_at_jaccl,
        inside=CLUSTERS,
    ),
    Launcher(
        "mlx",
        rank=Rule(("MLX_RANK",)),
        size=Rule(("MLX_HOSTFILE",), hostfile_size),
        meeting=_meet_in_ring,
        inside=CLUSTERS,
    ),
    Launcher(
        "mlx",
        rank=Rule(("MLX_RANK",)),
        size=Rule(("MLX_WORLD_SIZE",)),
        meeting=_meet_at_nccl,
        inside=CLUSTERS,
    ),
    Launcher(
        "torch",
        rank=Rule(("RANK",)),
        size=Rule(("WORLD_SIZE",)),
        local_rank=Rule(("LOCAL_RANK",)),
        generation=Rule(("TORCHELASTIC_RESTART_COUNT",), restarts),
        job_id=("TORCHELASTIC_RUN_ID",),
        meeting=_meet_at_master,
        inside=CLUSTERS,
    ),
    Launcher(
        "ompi",
        rank=Rule(("OMPI_COMM_WORLD_RANK",)),
        size=Rule(("OMPI_COMM_WORLD_SIZE",)),
        local_rank=Rule(("OMPI_COMM_WORLD_LOCAL_RANK",)),
        job_id=("PMIX_NAMESPACE",),
        meeting=_meet_under_mpi,
        inside=CLUSTERS,
        hint="tell mpirun the host of rank 0: -x MASTER_ADDR=host; or install mpi4py",
        over_mpi=True,
    ),
    Launcher(
        "mpich",
        rank=Rule(("PMI_RANK",)),
        size=Rule(("PMI_SIZE",)),
        local_rank=Rule(("MPI_LOCALRANKID",)),
        meeting=_meet_under_mpi,
        inside=CLUSTERS,
        hint="tell mpirun the host of rank 0, and a port: "
        "-genv MASTER_ADDR host -genv STANDFAST_PORT 29400; or install mpi4py",
        over_mpi=True,
    ),
    Launcher(
        "slurm",
        rank=Rule(("SLURM_PROCID",)),
        size=Rule(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")),
        local_rank=Rule(("SLURM_LOCALID",)),
        generation=Rule(("SLURM_RESTART_COUNT",), restarts),
        job_id=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        meeting=_meet_in_slurm,
        hint="start each rank with srun: it says which hosts the step has",
    ),
)

# These tell a process which node it is on, so they are asked only by name (STANDFAST_LAUNCHER), by
# a job that has one rank per node; else nodes.py reads them for `standfast run`.
NODE_LAUNCHERS: tuple[Launcher, ...] = (
    Launcher(
        "lws",
        rank=Rule(("LWS_WORKER_INDEX",)),
        size=Rule(("LWS_GROUP_SIZE",)),
        meeting=_meet_at_leader,
    ),
    Launcher(
        "job",
        rank=Rule(("JOB_COMPLETION_INDEX",)),
        size=Rule(("STANDFAST_WORLD_SIZE",)),
    ),
    Launcher(
        "pet",
        rank=Rule(("PET_NODE_RANK",)),
        size=Rule(("PET_NNODES",)),
        meeting=_meet_at_pet_master,
    ),
    Launcher(
        "sky",
        rank=Rule(("SKYPILOT_NODE_RANK",)),
        size=Rule(("SKYPILOT_NUM_NODES",)),
        job_id=("SKYPILOT_TASK_ID",),
        meeting=_meet_at_first_ip,
    ),
)
