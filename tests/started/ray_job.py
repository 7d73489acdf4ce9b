"""Four ranks as actors of Ray, on a cluster of four raylets on this machine; for Ray's Python.

    python ray_job.py

Ray has no environment for ranks: the driver tells each actor its number and where to meet. One
actor is killed; the others raise PeerDied; the driver starts all again as the next generation.
Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SIZE = 4
VICTIM = 2


@ray.remote(num_cpus=1, max_restarts=0)
class Rank:
    """One rank; `sum_for_ever` ends when the group does."""

    def meeting_point(self) -> str:
        """Return where this actor, as rank 0, will listen."""
        with socket.socket() as sock:
            sock.bind(("", 0))
            port = sock.getsockname()[1]
        return f"{ray.util.get_node_ip_address()}:{port}"

    def join(self, rank: int, coordinator: str, generation: int) -> int:
        """Form the group; return this process's id."""
        import standfast

        self.group = standfast.init(
            rank=rank, size=SIZE, coordinator=coordinator, generation=generation
        )
        return os.getpid()

    def add(self) -> int:
        """Return a sum over all ranks."""
        return int(self.group.all_sum(self.group.rank + 1))

    def sum_until_it_fails(self) -> dict[str, Any]:
        """Sum; return what ended it, and when."""
        import standfast

        try:
            while True:
                self.group.all_sum(1)
                time.sleep(0.002)
        except standfast.StandfastError as error:
            return {**error.to_dict(), "ended_s": time.monotonic()}


def form(nodes: list[str], generation: int) -> tuple[list[Any], list[int]]:
    """Start a rank on each raylet, and let them meet."""
    actor: Any = Rank  # what the decorator makes of the class
    ranks = [
        actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    ]
    where = ray.get(ranks[0].meeting_point.remote())
    pids = ray.get([each.join.remote(i, where, generation) for i, each in enumerate(ranks)])
    assert ray.get([each.add.remote() for each in ranks]) == [SIZE * (SIZE + 1) // 2] * SIZE
    return ranks, pids


def main() -> None:
    """Run two generations, and tell how the first ended."""
    cluster = Cluster()
    for _ in range(SIZE):
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes()]
    ranks, pids = form(nodes, 1)
    calls = [each.sum_until_it_fails.remote() for each in ranks]
    killed_s = time.monotonic()
    os.kill(pids[VICTIM], signal.SIGKILL)
    ends = ray.get([call for rank, call in enumerate(calls) if rank != VICTIM], timeout=30)
    try:
        ray.get(calls[VICTIM], timeout=30)
        victim = "returned"
    except ray.exceptions.RayActorError as error:
        victim = type(error).__name__
    for each in ranks:
        ray.kill(each)
    form(nodes, 2)
    story = {"nodes": len(nodes), "killed_s": killed_s, "ends": ends, "victim": victim}
    print(json.dumps(story), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
