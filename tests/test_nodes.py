"""Which machine of a job this is: one answer from whatever scheduler started it, or a reason."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.endpoint import derived_port
from standfast.errors import ConfigError
from standfast.nodes import Node, resolve

LWS = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "lws-0.lws.default"}
PET = {
    "PET_NODE_RANK": "1",
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "2",
    "PET_MASTER_ADDR": "job-worker-0-0.job",
    "PET_MASTER_PORT": "29400",
}
SKY = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "4",
    "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n10.0.0.9\n10.0.0.10",
    "SKYPILOT_TASK_ID": "sky-1",
}
JOB = {"JOB_COMPLETION_INDEX": "1", "STANDFAST_WORLD_SIZE": "8"}
SLURM = {
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_STEP_NODELIST": "n[2-5]",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
}
OURS = {"STANDFAST_NODE_RANK": "1", "STANDFAST_NNODES": "4"}
PORT = {"STANDFAST_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OURS, (None, None, None)),
        ({**OURS, "STANDFAST_COORDINATOR": "h:1"}, (None, "h:1", None)),
        (LWS, (None, None, None)),
        ({**LWS, **PORT}, (None, "lws-0.lws.default:29500", None)),
        (PET, (2, f"job-worker-0-0.job:{derived_port(29400)}", None)),
        ({**PET, "PET_NPROC_PER_NODE": "auto", **PORT}, (None, "job-worker-0-0.job:29500", None)),
        ({**SKY, **PORT}, (None, "10.0.0.7:29500", "sky-1")),
        (JOB, (None, None, None)),
        ({**JOB, "STANDFAST_COORDINATOR": "j-0.s:5"}, (None, "j-0.s:5", None)),
        (SLURM, (None, "n2:61447", "7.0")),
    ],
)
def test_each_scheduler(environ: dict[str, str], expected: tuple[Any, ...]) -> None:
    """Node 1 of 4 in each; where the nodes meet and what the job is called, if that is known."""
    found = resolve(environ, ranks_per_node=2)
    assert found is not None
    assert (found.rank, found.count) == (1, 4)
    assert (found.ranks_per_node, found.coordinator, found.job_id) == expected


def test_nothing_speaks_of_nodes() -> None:
    """A single machine, Slurm with many tasks on a node, and a job's size alone are no nodes."""
    many = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}
    for environ in ({}, many, {"STANDFAST_WORLD_SIZE": "8"}, {"STANDFAST_NNODES": "2"}):
        assert resolve(environ, ranks_per_node=2) is None


def test_ours_wins() -> None:
    """What was said to us is meant; two schedulers that agree are one answer."""
    own = {"STANDFAST_NODE_RANK": "0", "STANDFAST_NNODES": "1"}
    assert resolve({**JOB, **LWS, **own}, ranks_per_node=2) == Node(
        0, 1, None, None, None, "STANDFAST_NODE_RANK='0', STANDFAST_NNODES='1'"
    )
    both = resolve({**JOB, **LWS}, ranks_per_node=2)
    assert both is not None
    assert both.count == 4


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**LWS, "LWS_WORKER_INDEX": "4"}, "node 4 is not one of the 4 nodes"),
        ({"LWS_WORKER_INDEX": "1"}, "LWS_WORKER_INDEX='1' is set, but LWS_GROUP_SIZE is not"),
        ({"PET_NNODES": "1:4", "PET_NODE_RANK": "0"}, "PET_NNODES='1:4'"),
        ({"STANDFAST_NODE_RANK": "1"}, "STANDFAST_NNODES is not"),
        ({"JOB_COMPLETION_INDEX": "1"}, "a job of its own"),
        ({**JOB, "STANDFAST_WORLD_SIZE": "7"}, "not a multiple of 2 ranks per node"),
        ({**LWS, **SKY, "SKYPILOT_NODE_RANK": "2"}, "LWS_WORKER_INDEX='1'"),
        ({**LWS, **SKY, "SKYPILOT_NODE_RANK": "2"}, "SKYPILOT_NODE_RANK='2'"),
        ({**SKY, "SKYPILOT_NODE_RANK": "x"}, "SKYPILOT_NODE_RANK='x' is not a whole number"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "?"}, "SLURM_STEP_TASKS_PER_NODE='?'"),
    ],
)
def test_what_is_wrong_is_named(environ: dict[str, str], words: str) -> None:
    """The variables and their values."""
    with pytest.raises(ConfigError) as caught:
        resolve(environ, ranks_per_node=2)
    assert words in str(caught.value)
