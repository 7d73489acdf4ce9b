"""What ranks do in the tests of MLX's groups. Each compares with what one process computes alone.

The cases are those that MLX's own tests of its backends have (mlx_distributed_tests.py,
ring_test_distributed.py, mpi_test_distributed.py), and what those leave out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.nn.utils import average_gradients, clip_grad_norm_sharded

import standfast.mlx

INTEGERS = (mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64)
FLOATS = (mx.float16, mx.bfloat16, mx.float32)
DTYPES = (*INTEGERS, *FLOATS, mx.complex64)
SHAPES = ((), (1,), (7,), (3, 5), (1024,), (300, 1000))
SEED = 20261130


def made(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Make the same small whole numbers on every rank: their sums are exact in every dtype."""
    numbers = mx.random.randint(0, 9, shape, key=mx.random.key(seed))
    if dtype == mx.complex64:
        return numbers.astype(mx.complex64) * mx.array(1 - 2j)
    return numbers.astype(dtype)


def same(found: Any, expected: Any) -> None:
    """Assert that two arrays are equal, element by element, and of one dtype and shape."""
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert mx.array_equal(found, expected).item()


def close(found: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Assert that two arrays are nearly equal: sums in another order."""
    assert found.shape == expected.shape
    assert mx.allclose(found, expected, rtol=rtol, atol=atol).item()


# --- cases ----------------------------------------------------------------------------------------


def ranks_and_sizes(group: Any, size: int) -> None:
    assert isinstance(group, mx.distributed.Group)
    assert (group.size(), group.rank()) == (size, group.standfast.rank)


def reductions(group: Any, size: int) -> None:
    """Sums, largest and smallest of every dtype and size, donated input and views too."""
    for dtype in DTYPES:
        for shape in SHAPES:
            every = [made(SEED + rank, shape, dtype) for rank in range(size)]
            mine = every[group.rank()]
            total = every[0]
            for each in every[1:]:
                total = total + each
            same(mx.distributed.all_sum(mine, group=group), total)
            if dtype == mx.complex64:
                continue
            stacked = mx.stack(every)
            same(mx.distributed.all_max(mine, group=group), stacked.max(axis=0))
            same(mx.distributed.all_min(mine, group=group), stacked.min(axis=0))
    flags = mx.array([group.rank() == 0, False, True])
    same(mx.distributed.all_sum(flags, group=group), mx.array([True, False, True]))
    wide = mx.arange(24).reshape(4, 6) + group.rank()
    expected = size * mx.arange(24).reshape(4, 6).T + size * (size - 1) // 2
    same(mx.distributed.all_sum(wide.T, group=group), expected)
    with mx.stream(mx.cpu):
        doubles = mx.array([0.1, 2.0**40], dtype=mx.float64)
        same(mx.distributed.all_max(doubles * (group.rank() + 1), group=group), doubles * size)


def gathers(group: Any, size: int) -> None:
    """Each rank's part is its own, for sizes that no frame divides evenly."""
    for count in (1, 7, 1024, 1000003):
        base = mx.arange(count, dtype=mx.int32) % 100003
        found = mx.distributed.all_gather(base + group.rank(), group=group)
        same(found, mx.concatenate([base + rank for rank in range(size)]))
    for dtype in DTYPES:
        every = [made(SEED - rank, (2, 2, 4), dtype) for rank in range(size)]
        found = mx.distributed.all_gather(every[group.rank()], group=group)
        same(found, mx.concatenate(every))
    scalar = mx.distributed.all_gather(mx.array(group.rank()), group=group)
    same(scalar, mx.arange(size))


def messages(group: Any, size: int) -> None:
    """Around the ring, all dtypes; even ranks send first."""
    right, left = (group.rank() + 1) % size, (group.rank() - 1) % size
    for dtype in DTYPES:
        for shape in SHAPES:
            every = [made(SEED + 7 * rank, shape, dtype) for rank in range(size)]
            mine = every[group.rank()]
            if group.rank() % 2 == 0:
                sent = mx.distributed.send(mine, right, group=group)
                mx.eval(sent)
                got = mx.distributed.recv_like(mine, left, group=group)
            else:
                got = mx.distributed.recv(mine.shape, mine.dtype, left, group=group)
                mx.eval(got)
                sent = mx.distributed.send(mine, right, group=group)
            mx.eval(sent, got)
            same(sent, mine)
            same(got, every[left])


def scatters(group: Any, size: int) -> None:
    """The sum's share of this rank; of stock's backends NCCL alone has it."""
    every = [made(SEED + rank, (3 * size, 2), mx.float32) for rank in range(size)]
    at = 3 * group.rank()
    total = mx.sum(mx.stack(every), axis=0)
    same(mx.distributed.sum_scatter(every[group.rank()], group=group), total[at : at + 3])
    same(mx.distributed.sum_scatter(every[group.rank()].T.T, group=group), total[at : at + 3])
    wide = mx.stack([each.T for each in every])[group.rank()].T  # not contiguous
    same(mx.distributed.sum_scatter(wide, group=group), total[at : at + 3])


def splits(group: Any, size: int) -> None:
    """Rows and columns of a grid of ranks: groups within a group, of MLX's own kind."""
    rows, columns = group.split(group.rank() // 2), group.split(group.rank() % 2)
    assert (rows.size(), rows.rank()) == (2, group.rank() % 2)
    assert (columns.size(), columns.rank()) == (size // 2, group.rank() // 2)
    x = mx.full((1, 8), group.rank())
    found = mx.distributed.all_gather(mx.distributed.all_sum(x, group=rows), group=columns)
    pairs = mx.arange(size).reshape(-1, 2).sum(axis=1, keepdims=True)
    same(found, mx.broadcast_to(pairs, (size // 2, 8)))
    backwards = group.split(0, size - group.rank())
    assert backwards.rank() == size - 1 - group.rank()
    by_mlx = mx.distributed.Group.split(group, 5)  # as C++ would
    assert (by_mlx.size(), by_mlx.rank()) == (size, group.rank())
    same(mx.distributed.all_sum(mx.ones(3), group=by_mlx), mx.full(3, float(size)))
    for one in (rows, columns, backwards):
        one.close()


def ping_pong(group: Any, size: int) -> None:
    """Two ranks double a number in turns, ten times; then a message beside other work."""
    pair = group.split(group.rank() // 2)
    other, mine = 1 - pair.rank(), pair.rank() == 0
    x = mx.ones(10)
    for _ in range(10):
        if mine:
            mx.eval(mx.distributed.send(2 * x, other, group=pair))
        else:
            x = mx.distributed.recv_like(x, other, group=pair)
            mx.eval(x)
        mine = not mine
    same(x, mx.full(10, 1024.0 if pair.rank() == 0 else 512.0))
    y = mx.ones((5, 5)) + mx.array(2.0)
    if mine:
        x = mx.distributed.send(2 * x, other, group=pair)
    else:
        x = mx.distributed.recv_like(x, other, group=pair)
    mx.eval(y, x)
    same(y, mx.full((5, 5), 3.0))
    pair.close()


@contextmanager
def counted() -> Iterator[list[Any]]:
    """Note with what mx.distributed.all_sum is called."""
    original, calls = mx.distributed.all_sum, []

    def count(x: Any, **arguments: Any) -> Any:
        calls.append(x)
        return original(x, **arguments)

    mx.distributed.all_sum = count
    try:
        yield calls
    finally:
        mx.distributed.all_sum = original


def averages(group: Any, size: int) -> None:
    """nn.average_gradients in one piece, in pieces, one by one, and in a stream of its own."""
    gradients = [mx.full(10, float(group.rank())) for _ in range(10)]
    mean = mx.full(10, (size - 1) / 2)
    for limit, calls in ((32 << 20, 1), (4 * 50, 2), (0, 10)):
        with counted() as seen:
            found = average_gradients(gradients, group=group, all_reduce_size=limit)
        assert len(seen) == calls
        for each in found:
            same(each, mean)
    stream = mx.new_stream(mx.cpu)
    for each in average_gradients(gradients, group=group, communication_stream=stream):
        same(each, mean)


def donation(group: Any, size: int) -> None:
    """The result may take its input's memory: work on it costs no more."""
    x = mx.random.normal((1024,))
    mx.eval(x)
    mx.synchronize()
    mx.reset_peak_memory()
    scale = mx.array(2.0)
    mx.eval(mx.distributed.all_sum(x, group=group))
    mx.synchronize()
    alone = mx.get_peak_memory()
    mx.eval(mx.distributed.all_sum(x, group=group) * scale)
    mx.synchronize()
    assert mx.get_peak_memory() == alone


def sharded_layers(group: Any, size: int) -> None:
    """shard_linear, plain and quantized, forwards."""
    mx.random.seed(SEED)
    part = slice(group.rank() * 1024 // size, (group.rank() + 1) * 1024 // size)
    x = mx.random.normal((4, 1024))
    plain = nn.Linear(1024, 1024, bias=True)
    for layer in (plain, plain.to_quantized()):
        whole = layer(x)
        close(shard_linear(layer, "all-to-sharded", group=group)(x), whole[:, part])
        close(shard_linear(layer, "sharded-to-all", group=group)(x[:, part]), whole)


def sharded_gradients(group: Any, size: int) -> None:
    """A chain of sharded layers has the loss and the gradients of the whole one."""
    mx.random.seed(SEED + 1)
    whole = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))
    ways = ("all-to-sharded", "sharded-to-all") * 2
    layers = zip(whole.layers, ways, strict=True)
    shards = nn.Sequential(*(shard_linear(layer, way, group=group) for layer, way in layers))

    def loss(model: Any, x: Any, y: Any) -> Any:
        return (model(x) * y).sum()

    x, y = mx.random.normal((4, 128)), mx.random.normal((4, 128))
    expected, gradients = nn.value_and_grad(whole, loss)(whole, x, y)
    found, parts = nn.value_and_grad(shards, loss)(shards, x, y)
    close(found, expected, rtol=1e-3)
    mine = slice(group.rank() * 128 // size, (group.rank() + 1) * 128 // size)
    for number, (one, part) in enumerate(zip(gradients["layers"], parts["layers"], strict=True)):
        if number % 2 == 0:
            close(part["weight"], one["weight"][mine], atol=1e-4)
            close(part["bias"], one["bias"][mine], atol=1e-4)
        else:
            close(part["weight"], one["weight"][:, mine], atol=1e-4)
            close(part["bias"], one["bias"], atol=1e-4)


class Convolution(nn.Module):  # type: ignore[misc]
    """A convolution whose result may have to be added up over the ranks."""

    def __init__(self, *sizes: int, group: Any = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*sizes, kernel_size=3)
        self._group = group

    def __call__(self, x: Any) -> Any:
        x = self.conv(x)
        return x if self._group is None else mx.distributed.all_sum(x, group=self._group)


def sharded_by_rule(group: Any, size: int) -> None:
    """shard_inplace with a function that says which axis of which weight is split."""
    mx.random.seed(SEED + 2)
    channels = ((3, 64), (64, 64), (64, 64), (64, 3))
    whole = nn.Sequential(*(Convolution(*pair) for pair in channels))
    shards = nn.Sequential(
        *(Convolution(*pair, group=group if i % 2 else None) for i, pair in enumerate(channels))
    )
    shards.update(whole.parameters())

    def rule(path: str, weight: Any) -> int | None:
        parts = path.split(".")
        if int(parts[1]) % 2 == 0:
            return 0
        return None if parts[-1] == "bias" else -1

    shard_inplace(shards, rule, group=group)
    x = mx.random.normal((2, 12, 12, 3))
    close(shards(x), whole(x), rtol=1e-3, atol=1e-4)


def clipped(group: Any, size: int) -> None:
    """The norm of gradients of which each rank has a part."""
    gradients = {"a": mx.full((4, 3), 3.0), "b": mx.full((5,), 3.0)}
    norm = 3.0 * math.sqrt(size * 17)
    same_ones, found = clip_grad_norm_sharded(gradients, max_norm=1e9, group=group)
    close(found, mx.array(norm))
    close(same_ones["a"], gradients["a"])
    smaller, _ = clip_grad_norm_sharded(gradients, max_norm=1.0, group=group)
    close(smaller["b"], gradients["b"] / norm)


def compiled(group: Any, size: int) -> None:
    """Under mx.compile, called twice, with other work around it."""

    @mx.compile  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        return mx.distributed.all_sum(mx.exp(x) * 2, group=group) + 1

    for start in (0.0, 1.0):
        x = mx.full((33,), start)
        close(step(x), 2 * size * mx.exp(x) + 1)


def differentiated(group: Any, size: int) -> None:
    """Gradients of sums and gathers are what MLX says they are for every backend."""

    def summed(x: Any) -> Any:
        return (mx.distributed.all_sum(x * x, group=group) * (group.rank() + 1)).sum()

    x = mx.arange(5, dtype=mx.float32)
    close(mx.grad(summed)(x), 2 * x * (group.rank() + 1))

    def gathered(x: Any) -> Any:
        return mx.distributed.all_gather(x, group=group)[0].sum()

    found = mx.grad(gathered)(mx.ones((2, 2)))
    expected = mx.zeros((2, 2))
    if group.rank() == 0:
        expected[0] = 1.0
    close(found, expected)


def many_at_once(group: Any, size: int) -> None:
    """A lazy graph of many operations, handed over without waiting."""
    results = [mx.distributed.all_sum(mx.full(100, float(i)), group=group) for i in range(50)]
    mx.async_eval(results)
    for number, found in enumerate(results):
        same(found, mx.full(100, float(size * number)))


def refusals(group: Any, size: int) -> None:
    """A caller's mistake is an error that leaves the group as it is."""
    mistakes: tuple[Callable[[], Any], ...] = (
        lambda: mx.distributed.all_max(mx.array([1j]), group=group),
        lambda: mx.distributed.send(mx.ones(2), group.rank(), group=group),
        lambda: mx.distributed.recv((2,), mx.float32, group.rank(), group=group),
    )
    for mistake in mistakes:
        try:
            mx.eval(mistake())
        except (RuntimeError, ValueError) as error:
            assert "standfast" in str(error)  # noqa: PT017 - in a rank, where pytest is not
        else:
            raise AssertionError("no error")
    assert group.healthy()
    assert group.last_failure() is None
    same(mx.distributed.all_sum(mx.ones(2), group=group), mx.full(2, float(size)))


CASES: dict[str, Callable[[Any, int], None]] = {
    case.__name__: case
    for case in (
        ranks_and_sizes,
        reductions,
        gathers,
        messages,
        scatters,
        averages,
        donation,
        sharded_layers,
        sharded_gradients,
        sharded_by_rule,
        clipped,
        compiled,
        differentiated,
        many_at_once,
        refusals,
    )
}
GRIDS: dict[str, Callable[[Any, int], None]] = {case.__name__: case for case in (splits, ping_pong)}


def run_case(arguments: dict[str, Any], name: str) -> None:
    """One case in a group of its own."""
    with standfast.mlx.init(**arguments) as group:
        (CASES | GRIDS)[name](group, arguments["size"])
