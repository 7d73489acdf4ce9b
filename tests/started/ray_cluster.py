"""A Ray cluster of several raylets on this machine, until stdin ends; for Ray's Python.

    python ray_cluster.py COUNT

Prints one JSON object: the cluster's address, and the process ids of its raylets and its GCS.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

# A raylet that is gone is missed after about two seconds, not fifteen; and who misses the GCS gives
# up after five, not sixty.
IMPATIENT = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
    "gcs_rpc_server_reconnect_timeout_s": 5,
}


def main(count: int) -> None:
    """Start it, say where it is, and end it with whoever wanted it."""
    cluster = Cluster()
    nodes: list[Any] = []
    for number in range(count):
        system = {"_system_config": IMPATIENT} if number == 0 else {}
        nodes.append(cluster.add_node(num_cpus=1, object_store_memory=80 << 20, **system))
    started = {
        "address": cluster.address,
        "raylets": [node.all_processes["raylet"][0].process.pid for node in nodes],
        "gcs": nodes[0].all_processes["gcs_server"][0].process.pid,
    }
    print(json.dumps(started), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
