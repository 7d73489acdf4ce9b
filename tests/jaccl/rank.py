"""One of our ranks in a JACCL group; does what the independent one (tests/emulator) does.

    JACCL_RANK=0 JACCL_IBV_DEVICES=... JACCL_COORDINATOR=... python rank.py all_sum:1000 barrier

The same operations and data, and those of MORE below. --frames 26.3|4k, --repeat N, --say as there;
--in-place: results go where the input was; --keyword NAME=VALUE: a setting; --files FOLDER: no
coordinator, but files; --linger-s S: do nothing before the end; --after OP: one more operation,
behind the last barrier; --rounds N: so many groups, one after the other. A failure ends it with
the error's status, and the error as a line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import standfast.jaccl
from standfast import StandfastError
from standfast.jaccl import Group
from tests.emulator.jaccl_rank import Ints, compare, data_of
from tests.jaccl import order


def carry_out(group: Group, words: list[str], serial: int, *, in_place: bool) -> None:
    """Do one operation and compare its result with the answer."""
    rank, size, name = group.rank, group.size, words[0]
    if name == "barrier":
        group.barrier()
        return
    if name in MORE:
        MORE[name](group, *map(int, words[1:]))
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


def same_bits(name: str, got: order.Floats, wanted: order.Floats) -> None:
    """Compare bit patterns."""
    wrong = np.flatnonzero(got.view(np.uint32) != wanted.view(np.uint32))
    assert wrong.size == 0, f"{name}: {wrong.size} of {got.size} differ, the first at {wrong[0]}"


def add_in_order(group: Group, count: int, wires: int) -> None:
    """Add floats; all ranks must have the bits that follow from the contract's order."""
    rank, size = group.rank, group.size
    parts = [order.data_of(each, count) for each in range(size)]
    blocks = [order.data_of(each, count * size) for each in range(size)]
    if group.topology == "mesh":
        total, share = order.mesh_all_sum(parts), order.mesh_sum_scatter(blocks, rank)
    else:
        total = order.ring_all_sum(parts, wires)
        share = order.ring_sum_scatter(blocks, wires, rank)
    same_bits("all_sum", group.all_sum(parts[rank]), total)
    mine = parts[rank].copy()
    same_bits("all_sum in place", group.all_sum(mine, out=mine), total)
    same_bits("sum_scatter", group.sum_scatter(blocks[rank]), share)


def use_all_dtypes(group: Group, count: int) -> None:
    """Sum, maximum and minimum of every dtype that JACCL has."""
    for name in ("int8", "int16", "int64", "uint8", "uint32", "float16", "float32", "float64"):
        parts = [(np.arange(count) % 13 - 3 * each).astype(name) for each in range(group.size)]
        mine = parts[group.rank]
        assert np.array_equal(group.all_sum(mine), sum(parts[1:], parts[0]))
        assert np.array_equal(group.all_max(mine), np.maximum.reduce(parts))
        assert np.array_equal(group.all_min(mine), np.minimum.reduce(parts))
    flags = np.arange(count) % (group.rank + 2) == 0
    wanted = np.any([np.arange(count) % (r + 2) == 0 for r in range(group.size)], axis=0)
    assert np.array_equal(group.all_sum(flags), wanted)
    waves = np.exp(1j * np.arange(count)).astype(np.complex64)
    assert np.allclose(group.all_sum(waves), group.size * waves)


def use_the_rest(group: Group) -> None:
    """Empty arrays, agreement, handles, and the operations that JACCL has not."""
    assert group.all_sum(np.empty(0, np.float32)).size == 0
    assert group.all_gather(np.empty(0, np.float32)).size == 0
    assert group.agree(True)
    assert not group.agree(group.rank == 0)
    handles = [group.all_sum_async(np.full(100, i, np.int32)) for i in range(8)]
    for i, handle in enumerate(handles):
        assert np.array_equal(handle.result(), np.full(100, i * group.size, np.int32))
    x = np.zeros(group.size, np.float32)
    for refused in (
        lambda: group.broadcast(x),
        lambda: group.all_reduce(x, "prod"),
        lambda: group.all_to_all(x),
        lambda: group.gather(x),
        lambda: group.gather(b"x"),
        lambda: group.scatter(x),
        lambda: group.reduce_scatter(x, "max"),
        lambda: group.all_reduce_async(x, "prod"),
        lambda: group.split(0),
    ):
        raises(refused, "JACCL's protocol has no ")
    other = (group.rank + 1) % group.size
    raises(lambda: group.send(x, other, tag=3), "have no tag, and tag is 3")
    raises(lambda: group.recv(None, bytes, other), "recv needs a shape")
    if group.topology == "ring" and group.size > 3:
        far = (group.rank + 2) % group.size
        raises(lambda: group.send(x, far), f"rank {far} is no neighbour of rank {group.rank}")
    assert group.healthy()
    assert f"rank {group.rank} of {group.size}, {group.topology}, open" in repr(group)
    assert all("rdma rdma_en" in text for text in group.links().values())


def raises(call: Any, words: str) -> None:
    """Make sure that a call is refused, in these words."""
    said = ""
    try:
        call()
    except ValueError as error:
        said = str(error)
    assert words in said, f"{words!r} is not in {said!r}"


def exchange(group: Group, count: int) -> None:
    """Send to and receive from a neighbour at once, more than any frame holds."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    mine = data_of(group.rank, 1, count)
    handle = group.send_async(mine, right)
    compare("exchange", group.recv_like(mine, left), data_of(left, 1, count))
    handle.result()


def go_wrong(group: Group, culprit: int) -> None:
    """Raise on one rank; the others wait for it."""
    if group.rank == culprit:
        raise RuntimeError(f"rank {culprit} does what it should not")
    group.barrier()


def leave_early(group: Group, culprit: int) -> None:
    """Close on one rank; another waits for its message."""
    if group.rank == culprit:
        group.close()
        sys.exit()
    group.recv_like(np.zeros(5), culprit)


MORE: dict[str, Callable[..., None]] = {
    "order": add_in_order,
    "dtypes": use_all_dtypes,
    "rest": use_the_rest,
    "exchange": exchange,
    "wrong": go_wrong,
    "leave": leave_early,
    "sleep": lambda group, milliseconds: time.sleep(milliseconds / 1000),
}


class Files:
    """An all_gather over files of a folder that all ranks see."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.numbers = itertools.count()

    def __call__(self, data: bytes) -> list[bytes]:
        number = next(self.numbers)
        own = self.folder / f"{number}.{self.rank}"
        own.with_suffix(f".{self.rank}.new").write_bytes(data)
        own.with_suffix(f".{self.rank}.new").rename(own)
        until, found = time.monotonic() + 20, list[bytes]()
        while len(found) < self.size:
            assert time.monotonic() < until
            with contextlib.suppress(FileNotFoundError):
                found.append((self.folder / f"{number}.{len(found)}").read_bytes())
                continue
            time.sleep(0.002)
        return found


def config_of(folder: str | None) -> standfast.jaccl.Config | None:
    """Return a config that needs no coordinator, or None: the environment has it."""
    if folder is None:
        return None
    rank, devices = int(os.environ["JACCL_RANK"]), os.environ["JACCL_IBV_DEVICES"]
    size = len(json.loads(Path(devices).read_text()))
    files = Files(Path(folder), rank, size)
    return standfast.jaccl.Config(rank=rank, devices=devices, all_gather=files)


def work(group: Group, chosen: argparse.Namespace) -> None:
    """Do what the command line says."""
    for serial in range(chosen.repeat):
        for each in chosen.operations:
            began = time.perf_counter()
            carry_out(group, each.split(":"), serial, in_place=chosen.in_place)
            if chosen.say:
                print("done", each, f"{time.perf_counter() - began:.6f}", flush=True)
    group.barrier()
    time.sleep(chosen.linger_s)
    if chosen.after:
        carry_out(group, chosen.after.split(":"), 0, in_place=False)


def main() -> None:
    # Whoever runs tests in the background may have it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser()
    parser.add_argument("operations", nargs="*")
    parser.add_argument("--frames", default="26.3")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--say", action="store_true")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--timeout-s", type=float, default=20)
    parser.add_argument("--keyword", action="append", default=[])
    parser.add_argument("--files")
    parser.add_argument("--linger-s", type=float, default=0)
    parser.add_argument("--after")
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    settings: dict[str, Any] = dict(each.split("=") for each in chosen.keyword)
    options = standfast.jaccl.Options(
        timeout_s=chosen.timeout_s, frames=chosen.frames, settings=settings
    )
    try:
        for _ in range(chosen.rounds):
            with standfast.jaccl.init(config_of(chosen.files), options) as group:
                work(group, chosen)
    except StandfastError as error:
        print(json.dumps(error.to_dict()), flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
