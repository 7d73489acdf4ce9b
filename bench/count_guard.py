"""Sends and receives 8 bytes between two groups of this process, so often: for guard_cost.py.

No call waits, so that every run executes the same instructions, and callgrind can count them.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

import numpy as np

import standfast


def main() -> None:
    """Form both groups, exchange, and leave without a goodbye, which would have to wait."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    groups: dict[int, standfast.Group] = {}

    def join(rank: int) -> None:
        groups[rank] = standfast.init(rank=rank, size=2, coordinator=coordinator)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = np.ones(2, np.float32)
    taken = np.empty_like(given)
    for _ in range(int(sys.argv[1])):
        groups[0].send(given, 1)
        groups[1].recv(given.shape, given.dtype, 0, out=taken)
    os._exit(0)


if __name__ == "__main__":
    main()
