"""Which of a job's machines is this one? For `standfast run` on each of them. Pure.

Kubernetes, Kubeflow, SkyPilot and Slurm tell a process which node it is on: what a launcher that is
started on every node needs to know. launchers.py has the variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from standfast import slurm
from standfast.endpoint import Endpoint, parse_endpoint
from standfast.errors import ConfigError
from standfast.launchers import (
    FIRST_GENERATION,
    LAUNCHERS,
    NODE_LAUNCHERS,
    Environ,
    Launcher,
    Reading,
    Rule,
    number,
    our_port,
)

OURS = Launcher("standfast", Rule(("STANDFAST_NODE_RANK",)), Rule(("STANDFAST_NNODES",)))
POD_OF_ITS_OWN = (
    "set STANDFAST_NNODES (or STANDFAST_WORLD_SIZE) in the manifest; "
    "or STANDFAST_NODE_RANK=0 and STANDFAST_NNODES=1 if each pod is a job of its own"
)


@dataclass(frozen=True)
class Node:
    """One of the machines of a job.

    rank: 0 to count - 1; node 0 has the coordinator. ranks_per_node: if the environment says it.
    coordinator: host:port of node 0, or None if the environment does not say it. job_id: the same
    on all nodes, or None. source: the variables, for messages. attempt: which start of the job this
    is, as far as the scheduler counts them: STANDFAST_GENERATION, or its own variable; else 1.
    """

    rank: int
    count: int
    ranks_per_node: int | None
    coordinator: str | None
    job_id: str | None
    source: str
    attempt: int = FIRST_GENERATION


@dataclass(frozen=True)
class _Claim:
    """A scheduler that says which node this is."""

    launcher: Launcher
    rank: Reading
    count: Reading

    def seen(self) -> str:
        return ", ".join(f"{each.variable}={each.text!r}" for each in (self.rank, self.count))


def resolve(environ: Environ, *, ranks_per_node: int) -> Node | None:
    """Return which node this is, or None where nothing speaks of nodes.

    Args:
        environ: the environment of the launcher.
        ranks_per_node: how many ranks it will start (`-n`). An Indexed Job says its size only as
            STANDFAST_WORLD_SIZE, the number of all ranks.

    Raises:
        ConfigError: half of a pair is set, two schedulers disagree, a number is none, or the node
            is not one of those that there are. Names the variables and their values.
    """
    rows = (OURS, *NODE_LAUNCHERS, *_slurm(environ))
    claims = [claim for row in rows if (claim := _claim(row, environ, ranks_per_node))]
    if not claims:
        return None
    claim = _agreed(claims)
    if not claim.rank.value < claim.count.value:
        raise ConfigError(
            f"{claim.seen()}: node {claim.rank.value} is not one of the {claim.count.value} nodes"
        )
    return Node(
        rank=claim.rank.value,
        count=claim.count.value,
        ranks_per_node=_ranks_per_node(claim.launcher, environ),
        coordinator=_coordinator(claim.launcher, environ),
        job_id=claim.launcher.job(environ),
        source=claim.seen(),
        attempt=_attempt(claim.launcher, environ),
    )


def _slurm(environ: Environ) -> Sequence[Launcher]:
    """Return Slurm's row, if its step has one task per node, which then is a launcher of ours."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    if name not in environ or set(slurm.tasks_per_node(name, environ[name])) != {1}:
        return ()
    row = next(row for row in LAUNCHERS if row.name == "slurm")
    rank, count = Rule(("SLURM_NODEID",)), Rule(("SLURM_STEP_NUM_NODES",))
    return (replace(row, rank=rank, size=count),)


def _claim(row: Launcher, environ: Environ, ranks_per_node: int) -> _Claim | None:
    rank, count = row.rank.read(environ), row.size.read(environ)
    if row.name == "job" and rank:
        count = OURS.size.read(environ) or _per_node(count, ranks_per_node)
    if rank and count:
        return _Claim(row, rank, count)
    if rank is None and (count is None or row is OURS or row.name == "job"):
        return None  # a number of nodes of ours completes JOB_COMPLETION_INDEX
    found, lacking = (rank, row.size) if rank else (count, row.rank)
    assert found is not None
    raise ConfigError(
        f"{found.variable}={found.text!r} is set, but {' or '.join(lacking.variables)} is not",
        hint=POD_OF_ITS_OWN if row.name == "job" else None,
    )


def _per_node(ranks: Reading | None, ranks_per_node: int) -> Reading | None:
    """Turn a number of ranks into one of nodes."""
    if ranks is None:
        return None
    nodes, rest = divmod(ranks.value, ranks_per_node)
    if rest or not nodes:
        raise ConfigError(
            f"{ranks.variable}={ranks.text!r} is not a multiple of {ranks_per_node} ranks per node"
        )
    return ranks._replace(value=nodes)


def _agreed(claims: Sequence[_Claim]) -> _Claim:
    """Return the first claim; refuse others that say something else, unless the first is ours."""
    first = claims[0]
    for other in claims[1:] if first.launcher is not OURS else ():
        if (first.rank.value, first.count.value) != (other.rank.value, other.count.value):
            raise ConfigError(
                f"two schedulers disagree about which node this is: {first.seen()} and "
                f"{other.seen()}",
                hint="unset one of them, or say it: STANDFAST_NODE_RANK and STANDFAST_NNODES",
            )
    return first


def _ranks_per_node(row: Launcher, environ: Environ) -> int | None:
    """Kubeflow says it, as a number or as a word of torchrun's ("auto", "gpu")."""
    text = environ.get("PET_NPROC_PER_NODE", "")
    if row.name != "pet" or not text.isdigit():
        return None
    return number("PET_NPROC_PER_NODE", text)


def _attempt(row: Launcher, environ: Environ) -> int:
    found = Rule(("STANDFAST_GENERATION",)).read(environ) or row.generation.read(environ)
    return found.value if found else FIRST_GENERATION


def _coordinator(row: Launcher, environ: Environ) -> str | None:
    given = environ.get("STANDFAST_COORDINATOR")
    if given is not None:
        parse_endpoint(given, name="STANDFAST_COORDINATOR")
        return given
    meeting = row.meeting(environ)
    port = our_port(meeting, environ) if meeting else None
    return str(Endpoint(meeting.host.strip("[]"), port)) if meeting and port else None
