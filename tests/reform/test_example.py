"""examples/survive.py: a killed rank is replaced, and the training ends as if nothing had been."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ranks import ROOT, listener, rank_environment
from tests.reform.printing import LIMIT_S, Printing

PROGRAM = ROOT / "examples/survive.py"


class Process(Printing):
    """A rank."""

    def __init__(self, env: dict[str, str], *options: str, fds: tuple[int, ...] = ()) -> None:
        super().__init__([sys.executable, str(PROGRAM), *options], env, fds)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts processes, and ends them."""
    started: list[Process] = []

    def start_one(*args: Any, **more: Any) -> Process:
        started.append(Process(*args, **more))
        return started[-1]

    yield start_one
    for one in started:
        one.process.kill()
        one.end()


def test_training_survives(start: Callable[..., Process]) -> None:
    """Rank 0 of 3 is killed; the others wait for a newcomer, send it their state, and finish."""
    options = ("--epochs", "12", "--slow-ms", "10", "--wait-s", "60")
    sock, address = listener()
    with sock:
        env = [rank_environment(rank, 3, address) for rank in range(3)]
        env[0]["STANDFAST_LISTEN_FD"] = str(sock.fileno())
        ranks = [
            start(env[rank], *options, fds=(sock.fileno(),) if rank == 0 else ())
            for rank in range(3)
        ]
        join = ranks[0].wait_for("STANDFAST_JOIN=").string.partition("=")[2]
    ranks[0].wait_for("epoch 3 is done")
    ranks[0].process.kill()
    killed = time.monotonic()
    for rank in (1, 2):
        ranks[rank].wait_for(f"rank {rank} lost rank 0")
    new = {name: text for name, text in env[1].items() if not name.startswith("STANDFAST_")}
    newcomer = start({**new, "STANDFAST_JOIN": join}, *options)
    newcomer.wait_for("rank 2 of 3, new, generation 2")
    ranks[1].wait_for("rank 0 of 3, rank 1 before, generation 2")
    ranks[2].wait_for("rank 1 of 3, rank 2 before, generation 2")
    final = ranks[1].wait_for("final test accuracy").string
    assert time.monotonic() - killed < LIMIT_S
    assert [one.end() for one in (ranks[1], ranks[2], newcomer)] == [0, 0, 0]
    found = re.search(r"accuracy ([\d.]+) with 3 ranks", final)
    assert found is not None
    assert float(found[1]) > 0.95
    assert "epoch 2 is done" not in ranks[1].lines  # nobody began again
    assert "epoch 4 is done" in ranks[1].lines
