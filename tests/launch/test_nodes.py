"""Who comes in to node 0's launcher, and who does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from standfast.endpoint import Endpoint
from standfast.launch.nodes import Comer, NodeSpec, hosts_of, objection
from standfast.launch.options import settle_nodes
from standfast.launch.placement import place_ranks
from standfast.launch.spec import LaunchError
from standfast.rendezvous.protocol import AGAIN

OURS = Comer("1.0", count=3, slots=2, watch=False, job_id="job", attempt=2, host="a", pid=1)
LWS = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "3", "LWS_LEADER_ADDRESS": "leader"}
OPTIONS = {
    "ranks": 2,
    "spares": 0,
    "hosts": (),
    "hostfile": None,
    "nnodes": None,
    "node_rank": None,
    "coordinator": None,
    "wait_nodes_s": 9.0,
}


def comer(**changes: Any) -> Comer:
    """Return what node 0's launcher would say, were it another's."""
    return msgspec.structs.replace(OURS, host="b", **changes)


def test_who_belongs_to_the_job() -> None:
    """The same version, start, job, number of nodes and ranks, and one of the other nodes."""
    assert objection(comer(), 1, OURS) is None
    assert objection(comer(), 2, OURS) is None


@pytest.mark.parametrize(
    ("changes", "node", "kind", "words"),
    [
        ({"version": "2.0"}, 1, "config", "node 1 on b has standfast 2.0, node 0 on a has 1.0"),
        ({"attempt": 1}, 1, "stale", "node 1 on b belongs to start 1 of the job; this is start 2"),
        ({"attempt": 3}, 1, AGAIN, "node 1 on b is of job job, start 3"),
        ({"job_id": "other"}, 1, AGAIN, "node 1 on b is of job other, start 2"),
        ({"count": 4}, 1, "config", "node 1 on b is one of 4 nodes; node 0 on a has 3"),
        ({}, 0, "config", "node 0 on b is one of 3 nodes"),
        ({}, 3, "config", "node 3 on b is one of 3 nodes"),
        ({"slots": 1}, 1, "config", "node 1 on b has -n 1, node 0 on a has -n 2"),
        ({"watch": True}, 1, "config", "node 1 on b has --watch and node 0 has not"),
    ],
)
def test_who_does_not(changes: dict[str, Any], node: int, kind: str, words: str) -> None:
    """What differs is named with both sides; who may come back later is told so."""
    refusal = objection(comer(**changes), node, OURS)
    assert refusal is not None
    assert refusal.kind == kind
    assert words in refusal.text


def test_ranks_are_numbered_by_node() -> None:
    """Node 0's ranks come first."""
    node = NodeSpec(0, 2, Endpoint("h", 1))
    placed = place_ranks(4, hosts_of(node, 2))
    assert [(name, place.local_rank, place.node) for name, place in placed] == [
        ("node-0", 0, 0),
        ("node-0", 1, 0),
        ("node-1", 0, 1),
        ("node-1", 1, 1),
    ]


def settled(environ: dict[str, str], **changes: Any) -> dict[str, Any]:
    """Return the options after settle_nodes."""
    options = {**OPTIONS, **changes}
    settle_nodes(options, environ)
    return options


def test_by_hand() -> None:
    """--nnodes, --node-rank and --coordinator make a node; -n counts its own ranks."""
    options = settled({}, nnodes=3, node_rank=1, coordinator="h:5")
    assert options["node"] == NodeSpec(1, 3, Endpoint("h", 5), wait_s=9.0)
    assert (options["ranks"], len(options["hosts"])) == (6, 3)


def test_by_a_scheduler() -> None:
    """What nodes.py makes of the environment counts without an option; an option wins."""
    environ = {**LWS, "STANDFAST_PORT": "5"}
    assert settled(environ)["node"] == NodeSpec(1, 3, Endpoint("leader", 5), wait_s=9.0)
    options = settled(environ, nnodes=2, node_rank=0, coordinator="h:6")
    assert (options["node"].rank, options["node"].count) == (0, 2)
    kubeflow = {
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "m",
        "STANDFAST_PORT": "5",
    }
    assert settled(kubeflow, ranks=None)["ranks"] == 8


def test_starts_are_counted() -> None:
    """A scheduler's count of starts keeps an earlier start's launchers out."""
    environ = {**LWS, "STANDFAST_PORT": "5", "STANDFAST_GENERATION": "4"}
    assert settled(environ)["node"].attempt == 4


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        ({}, {}),
        ({"STANDFAST_NODE_RANK": "0", "STANDFAST_NNODES": "1"}, {}),
        ({**LWS, "STANDFAST_PORT": "5", "STANDFAST_RANK": "3"}, {}),
        ({**LWS, "STANDFAST_PORT": "5"}, {"hosts": ("h",)}),
        ({}, {"nnodes": 1, "node_rank": 0}),
    ],
)
def test_one_launcher(environ: dict[str, str], changes: dict[str, Any]) -> None:
    """Without nodes, with one, with hosts, or inside of a rank, there is one launcher."""
    assert "node" not in settled(environ, **changes)


def test_what_a_node_lacks() -> None:
    """Without node 0's address, or with a number that is none, it ends with 78 and says why."""
    with pytest.raises(LaunchError, match="node 1 of 3 does not know where node 0 is") as caught:
        settled(LWS)
    assert caught.value.status == 78
    with pytest.raises(LaunchError, match="LWS_WORKER_INDEX='x'") as caught:
        settled({**LWS, "LWS_WORKER_INDEX": "x"})
    assert caught.value.status == 78
