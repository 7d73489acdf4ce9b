"""One of our ranks in a JACCL group; does what the independent one (tests/emulator) does.

    JACCL_RANK=0 JACCL_IBV_DEVICES=... JACCL_COORDINATOR=... python rank.py all_sum:1000 barrier

The same operations and data. --frames 26.3|4k, --repeat N, --say as there; --in-place: results go
where the input was; --keyword NAME=VALUE: a setting. A failure of the group ends it with status 75
and the error as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import standfast.jaccl
from standfast import StandfastError
from standfast.jaccl import Group
from tests.emulator.jaccl_rank import Ints, compare, data_of


def carry_out(group: Group, words: list[str], serial: int, *, in_place: bool) -> None:
    """Do one operation and compare its result with the answer."""
    rank, size, name = group.rank, group.size, words[0]
    if name == "barrier":
        group.barrier()
        return
    count = int(words[-1])
    if name == "send":
        move(group, int(words[1]), int(words[2]), data_of(int(words[1]), serial, count))
        return
    blocks = size if name == "sum_scatter" else 1
    everyone = [data_of(each, serial, count * blocks) for each in range(size)]
    mine = everyone[rank].copy()
    out = mine if in_place and name in ("all_sum", "all_max", "all_min") else None
    if name in ("all_sum", "all_max", "all_min"):
        operator = {"all_sum": np.add, "all_max": np.maximum, "all_min": np.minimum}[name]
        compare(name, getattr(group, name)(mine, out=out), operator.reduce(everyone, dtype="i4"))
    elif name == "all_gather":
        compare(name, group.all_gather(mine), np.concatenate(everyone))
    elif name == "sum_scatter":
        total: Ints = np.add.reduce(everyone, dtype=np.int32)
        compare(name, group.sum_scatter(mine), total.reshape(size, count)[rank])
    else:
        raise ValueError(f"there is no operation {name!r}")


def move(group: Group, source: int, to: int, data: Ints) -> None:
    """Send from one rank to another, if this is one of them."""
    if group.rank == source:
        group.send(data, to)
    elif group.rank == to:
        compare("send", group.recv_like(data, source), data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("operations", nargs="*")
    parser.add_argument("--frames", default="26.3")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--say", action="store_true")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--timeout-s", type=float, default=20)
    parser.add_argument("--keyword", action="append", default=[])
    chosen = parser.parse_args()
    settings: dict[str, Any] = dict(each.split("=") for each in chosen.keyword)
    options = standfast.jaccl.Options(
        timeout_s=chosen.timeout_s, frames=chosen.frames, settings=settings
    )
    try:
        with standfast.jaccl.init(options=options) as group:
            for serial in range(chosen.repeat):
                for each in chosen.operations:
                    began = time.perf_counter()
                    carry_out(group, each.split(":"), serial, in_place=chosen.in_place)
                    if chosen.say:
                        print("done", each, f"{time.perf_counter() - began:.6f}", flush=True)
            group.barrier()
    except StandfastError as error:
        print(json.dumps(error.to_dict()), flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
