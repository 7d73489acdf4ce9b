"""Every operation of torch.distributed with values that tell rank and place; run by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]
# What only moves may be of any dtype.
OTHERS = [torch.complex128, torch.float8_e4m3fn]


def check_all(rank: int, size: int) -> list[str]:
    """Check all operations, at once and in the background; return what was checked."""
    done = []
    for in_background in (False, True):
        for check in (reductions, gathers, exchanges, shapes, messages, together):
            for name in check(rank, size, in_background):
                done.append(f"{name}{' in the background' if in_background else ''}")
    done += list(mistakes(rank, size))
    return done


def end(work: Any) -> None:
    if work is not None:
        assert work.wait()
        assert work.is_completed()


def same(found: torch.Tensor, expected: Any, what: str) -> None:
    wanted = torch.as_tensor(expected).to(found.dtype)
    assert torch.equal(found.cpu(), wanted.expand_as(found)), f"{what}: {found} is not {wanted}"


def reductions(rank: int, size: int, later: bool) -> Iterator[str]:
    for dtype in DTYPES:
        x = torch.ones(5).to(dtype)
        end(dist.all_reduce(x, async_op=later))
        same(x, 1 if dtype == torch.bool else size, f"all_reduce of {dtype}")
        yield f"all_reduce {dtype}"
    bits = [1 << r for r in range(size)]
    both = (1 << size) - 1
    expected = {"SUM": both, "AVG": both // size, "MAX": bits[-1], "MIN": 1, "BOR": both, "BAND": 0}
    expected |= {"BXOR": both, "PRODUCT": 1 << sum(range(size))}
    for name, value in expected.items():
        op = getattr(ReduceOp, name)
        x = torch.tensor([1 << rank, 1 << rank])
        end(dist.all_reduce(x, op, async_op=later))
        same(x, value, name)
        x = torch.tensor([1 << rank])
        end(dist.reduce(x, 1, op, async_op=later))
        same(x, value if rank == 1 else 1 << rank, f"reduce {name}")
        x = torch.zeros(1, dtype=torch.int64)
        end(dist.reduce_scatter_tensor(x, torch.tensor([1 << rank] * size), op, async_op=later))
        same(x, value, f"reduce_scatter_tensor {name}")
        yield name
    x = torch.tensor([float(rank)])
    end(dist.all_reduce(x, ReduceOp.AVG, async_op=later))
    same(x, (size - 1) / 2, "mean")
    x = torch.tensor([complex(rank, 1)], dtype=torch.complex128)
    end(dist.all_reduce(x, async_op=later))
    same(x, complex(sum(range(size)), size), "complex128")
    parts = [torch.full((2,), float(i)) for i in range(size)]
    x = torch.zeros(2)
    end(dist.reduce_scatter(x, parts, async_op=later))
    same(x, rank * size, "reduce_scatter")
    yield "reduce_scatter"
    x = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 2,), check_invariants=True)
    end(dist.all_reduce(x, async_op=later))
    same(x.to_dense(), [1.0] * size + [2.0 * size, 0.0], "sparse")
    yield "sparse all_reduce"


def gathers(rank: int, size: int, later: bool) -> Iterator[str]:
    for dtype in DTYPES + OTHERS:
        x = torch.full((3,), float(rank)).to(dtype)
        ranks = [torch.full((3,), float(r)).to(dtype) for r in range(size)]
        found = [torch.zeros(3).to(dtype) for _ in range(size)]
        end(dist.all_gather(found, x, async_op=later))
        moved = torch.zeros(3).to(dtype) if rank else x.clone()
        end(dist.broadcast(moved, 0, async_op=later))
        got = torch.zeros(3).to(dtype)
        end(dist.scatter(got, ranks if rank == 1 else None, 1, async_op=later))
        for a, b in (*zip(found, ranks, strict=True), (moved, ranks[0]), (got, ranks[rank])):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), dtype
        yield f"all_gather, broadcast, scatter {dtype}"
    x = torch.zeros(2 * size)
    end(dist.all_gather_into_tensor(x, torch.full((2,), float(rank)), async_op=later))
    same(x, [float(r) for r in range(size) for _ in range(2)], "all_gather_into_tensor")
    rows = [torch.zeros(2) for _ in range(size)] if rank == 1 else None
    end(dist.gather(torch.full((2,), float(rank)), rows, 1, async_op=later))
    for r, each in enumerate(rows or []):
        same(each, float(r), "gather")
    yield "all_gather_into_tensor, gather"


def exchanges(rank: int, size: int, later: bool) -> Iterator[str]:
    x = torch.zeros(size)
    end(dist.all_to_all_single(x, torch.arange(float(size)) + 10 * rank, async_op=later))
    same(x, [10.0 * r + rank for r in range(size)], "all_to_all_single")
    counts = [r + 1 for r in range(size)]
    x = torch.zeros(sum(counts), 2)
    mine = torch.full((size * (rank + 1), 2), float(rank))
    end(dist.all_to_all_single(x, mine, counts, [rank + 1] * size, async_op=later))
    same(x[:, 0], [float(r) for r in range(size) for _ in range(r + 1)], "uneven")
    found = [torch.zeros(r + 1, dtype=torch.bfloat16) for r in range(size)]
    sent = [torch.full((rank + 1,), float(rank), dtype=torch.bfloat16) for _ in range(size)]
    end(dist.all_to_all(found, sent, async_op=later))
    for r, each in enumerate(found):
        same(each, float(r), "all_to_all")
    yield "all_to_all, all_to_all_single"


def shapes(rank: int, size: int, later: bool) -> Iterator[str]:
    total = sum(range(size))
    x = (torch.arange(6.0).view(2, 3) + rank).t()
    end(dist.all_reduce(x, async_op=later))
    same(x, (torch.arange(6.0).view(2, 3) * size + total).t(), "transposed")
    x = torch.zeros(4, 4)
    x[:, 1] = rank
    end(dist.broadcast(x[:, 1], 1, async_op=later))
    same(x, [0.0, 1.0, 0.0, 0.0], "a column")
    found = [torch.zeros(2, 2).t() for _ in range(size)]
    end(dist.all_gather(found, torch.full((2, 2), float(rank)).t(), async_op=later))
    for r, each in enumerate(found):
        same(each, float(r), "transposed all_gather")
    x = torch.tensor([complex(rank, 1)]).conj()
    world = dist.group.WORLD
    assert world is not None
    end(world.allreduce([x]))  # dist.all_reduce refuses it, for Gloo's sake
    same(x.resolve_conj(), complex(total, -size), "conjugated")
    x = torch.tensor(5.0 + rank)
    end(dist.all_reduce(x, async_op=later))
    same(x, 5.0 * size + total, "0-d")
    end(dist.all_reduce(torch.zeros(0), async_op=later))
    x = torch.full((2,), float(rank), requires_grad=True)
    end(dist.all_reduce(x, async_op=later))
    same(x.detach(), float(total), "requires grad")
    yield "non-contiguous, conjugated, 0-d, empty, requires grad"


def messages(rank: int, size: int, later: bool) -> Iterator[str]:
    right, left = (rank + 1) % size, (rank - 1) % size
    x = torch.zeros(300_000)
    sent = dist.isend(torch.full((300_000,), float(rank)), right, tag=rank)
    dist.recv(x, left, tag=left)
    end(sent)
    same(x, float(left), "recv")
    ops = [dist.P2POp(dist.irecv, x, left), dist.P2POp(dist.isend, torch.full_like(x, rank), right)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(x, float(left), "batch")
    yield "send, recv, batch_isend_irecv"
    if rank != 0:
        for tag in (3, 4):
            dist.send(torch.full((4,), float(rank)), 0, tag=tag)
    sources = []
    for _ in range(size - 1 if rank == 0 else 0):
        x = torch.zeros(4, 2)[:, 0]
        work = dist.irecv(x, tag=3)
        work.wait()
        source = work._source_rank()
        same(x, float(source), "recv from any")
        dist.recv(x, source, tag=4)
        same(x, float(source), "recv from the same")
        sources.append(source)
    assert rank != 0 or sorted(sources) == list(range(1, size)), sources
    yield "recv from any"


def together(rank: int, size: int, later: bool) -> Iterator[str]:
    a, b, c = torch.ones(3), torch.ones(2, 2), torch.ones(1, dtype=torch.int64)
    with dist._coalescing_manager(async_ops=later) as manager:
        for each in (a, b, c):
            dist.all_reduce(each)
    if later:
        manager.wait()
    for each in (a, b, c):
        same(each, size, "coalesced")
    x, y = torch.zeros(size), torch.zeros(2)
    with dist._coalescing_manager(async_ops=later) as manager:
        dist.all_gather_into_tensor(x, torch.tensor([float(rank)]))
    if later:
        manager.wait()
    same(x, [float(r) for r in range(size)], "coalesced all_gather")
    with dist._coalescing_manager(async_ops=later) as manager:
        dist.reduce_scatter_tensor(y, torch.ones(2 * size))
    if later:
        manager.wait()
    same(y, size, "coalesced reduce_scatter")
    end(dist.barrier(async_op=later))
    group = dist.group.WORLD
    assert group is not None
    before = group._get_sequence_number_for_group()
    group.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)
    assert group._get_sequence_number_for_group() == before + 1
    yield "coalesced forms, barrier, monitored_barrier, sequence numbers"


def mistakes(rank: int, size: int) -> Iterator[str]:
    """A mistake is told before any byte is sent: the group is as good as before."""
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (
            lambda: dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(2.0)),
            ValueError,
            "PREMUL_SUM",
        ),
        (lambda: dist.all_reduce(torch.ones(1), ReduceOp.BOR), TypeError, "BOR of torch.float32"),
        (lambda: dist.all_reduce(torch.ones(1, device="meta")), TypeError, "on meta"),
        (
            lambda: dist.all_gather_into_tensor(torch.ones(size + 1), torch.ones(1)),
            ValueError,
            "times",
        ),
        (lambda: dist.all_reduce(torch.ones(1).to(torch.float8_e4m3fn)), TypeError, "float8"),
    ]
    for call, kind, words in calls:
        try:
            call()
        except kind as error:
            found = str(error)
        else:
            found = "nothing was wrong"
        assert words in found, f"{found}, not {words}"
        yield words
    x = torch.ones(1)
    dist.all_reduce(x)
    same(x, size, "after the mistakes")
