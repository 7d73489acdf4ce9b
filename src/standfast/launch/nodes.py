"""What the launchers of a job's nodes say to each other before they are one, and the rules. Pure.

`standfast run --nnodes N --node-rank R` runs on each node. Node 0's launcher is the job's; the
others come to it and are its agents. switchboard.py is node 0's side, node.py that of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from standfast.endpoint import Endpoint
from standfast.launch.placement import Host
from standfast.rendezvous.protocol import AGAIN, Refused

WAIT_S = 300.0
"""How long nodes wait for each other: one may still be loading the program's image."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Which of a job's nodes this is.

    Fields:
        rank, count: as in --node-rank and --nnodes.
        coordinator: where node 0's launcher listens.
        wait_s: how long the nodes' launchers wait for each other.
        job_id: the scheduler's name for the job, the same on all nodes; "" if it has none.
        attempt: how often the scheduler has started the job, where it says so.
    """

    rank: int
    count: int
    coordinator: Endpoint
    wait_s: float = WAIT_S
    job_id: str = ""
    attempt: int = 1


class Comer(msgspec.Struct, frozen=True):
    """What a node's launcher says about itself: the body of its Begin."""

    version: str
    count: int
    slots: int
    watch: bool
    job_id: str
    attempt: int
    host: str
    pid: int


def name_of(node: int) -> str:
    """Return what a node is called among the job's hosts."""
    return f"node-{node}"


def hosts_of(node: NodeSpec, slots: int) -> tuple[Host, ...]:
    """Return the hosts of a job with one launcher per node; ranks are numbered by node."""
    return tuple(Host(name_of(rank), slots) for rank in range(node.count))


def objection(comer: Comer, node: int, ours: Comer) -> Refused | None:
    """Say why node 0's launcher does not take in another's, or None. AGAIN: it may come back.

    Args:
        comer: what it said about itself.
        node: which one it is.
        ours: the same of node 0's.
    """
    who = f"node {node} on {comer.host}"
    if comer.version != ours.version:
        text = f"{who} has standfast {comer.version}, node 0 on {ours.host} has {ours.version}"
        return Refused("config", text, "install the same standfast on all nodes")
    if comer.attempt < ours.attempt:
        text = f"{who} belongs to start {comer.attempt} of the job; this is start {ours.attempt}"
        return Refused("stale", text)
    if comer.attempt > ours.attempt or comer.job_id != ours.job_id:
        text = (
            f"node 0 on {ours.host} is of job {ours.job_id or '(no name)'}, start {ours.attempt}; "
            f"{who} is of job {comer.job_id or '(no name)'}, start {comer.attempt}"
        )
        return Refused(AGAIN, text)
    if not 0 < node < ours.count or comer.count != ours.count:
        text = f"{who} is one of {comer.count} nodes; node 0 on {ours.host} has {ours.count}"
        return Refused("config", text, "give all nodes the same --nnodes, each its --node-rank")
    if comer.slots != ours.slots:
        text = f"{who} has -n {comer.slots}, node 0 on {ours.host} has -n {ours.slots}"
        return Refused("config", text, "give all nodes the same number of ranks")
    if comer.watch != ours.watch:
        has, lacks = (who, "node 0") if comer.watch else ("node 0", who)
        return Refused("config", f"{has} has --watch and {lacks} has not", "give it to all nodes")
    return None
