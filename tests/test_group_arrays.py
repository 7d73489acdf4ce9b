"""The arrays of torch, MLX, JAX and Python itself through real operations of a group."""

from __future__ import annotations

import array
import importlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from standfast import Group
from tests.ranks import Pool


def torch_arrays(group: Group) -> list[Any]:
    torch = importlib.import_module("torch")
    total = sum(range(1, group.size + 1))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        x = torch.full((3, 2), group.rank + 1, dtype=dtype)
        found = group.all_sum(x)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == dtype
        assert (found == total).all()
        assert group.all_sum(x, out=x) is x
        assert (x == total).all()
        assert tuple(group.all_gather(x).shape) == (3 * group.size, 2)
    share = group.scatter(torch.arange(group.size * 2) if group.rank == 0 else None)
    assert isinstance(share, torch.Tensor), "the root's sort, since torch is loaded here"
    assert share.tolist() == [2 * group.rank, 2 * group.rank + 1]
    if group.rank == 0:
        group.send(torch.ones(4, dtype=torch.bfloat16), 1)
    if group.rank == 1:
        received = group.recv(4, torch.bfloat16, 0)
        assert isinstance(received, torch.Tensor)
        assert received.tolist() == [1.0] * 4
    flags = group.all_sum(torch.tensor([group.rank == 0, False]))
    assert flags.tolist() == [True, False]
    texts = []
    for bad in (torch.zeros(2, requires_grad=True), torch.zeros(2, device="meta")):
        try:
            group.all_sum(bad)
        except TypeError as error:
            texts.append(str(error))
    group.barrier()
    return texts


def test_torch(pool: Pool) -> None:
    """Tensors in, tensors out, in place too; mistakes are the same on all ranks."""
    pytest.importorskip("torch")
    texts = [ended.value for ended in pool.run(2, torch_arrays)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2


def mlx_arrays(group: Group) -> None:
    mx = importlib.import_module("mlx.core")
    total = sum(range(1, group.size + 1))
    for dtype in (mx.float32, mx.bfloat16, mx.float16, mx.int32):
        lazy = mx.ones((3, 2), dtype) * (group.rank + 1)
        found = group.all_sum(lazy)
        assert isinstance(found, mx.array)
        assert found.dtype == dtype
        assert mx.all(found == total).item()
        out = mx.zeros((3, 2), dtype)
        assert group.all_sum(lazy, out=out) is out
        assert mx.all(out == total).item()
        assert group.all_gather(lazy.T).shape == (2 * group.size, 3)
    received = group.broadcast(mx.array([group.rank + 5.0]), root=group.size - 1)
    assert received.item() == group.size + 4
    if group.rank == 0:
        group.send(mx.ones(4, mx.bfloat16), 1)
    if group.rank == 1:
        assert mx.all(group.recv((4,), mx.bfloat16, 0) == 1).item()
    group.barrier()


def test_mlx(pool: Pool) -> None:
    """MLX arrays, lazy and bfloat16 ones too; results are MLX arrays."""
    pytest.importorskip("mlx.core")
    pool.run(2, mlx_arrays)


def jax_arrays(group: Group) -> str:
    jax = importlib.import_module("jax")
    x = jax.numpy.arange(4.0) + group.rank
    kept = np.asarray(x).copy()
    found = group.all_sum(x)
    assert isinstance(found, jax.Array)
    assert found.tolist() == [group.size * i + sum(range(group.size)) for i in range(4)]
    half = group.all_sum(x.astype("bfloat16"))
    assert str(half.dtype) == "bfloat16"
    assert (np.asarray(x) == kept).all()
    try:
        group.all_sum(x, out=x)
    except TypeError as error:
        return str(error)
    raise AssertionError("a jax array was written")


def test_jax(pool: Pool) -> None:
    """JAX arrays in and out, never written."""
    pytest.importorskip("jax")
    texts = {ended.value for ended in pool.run(2, jax_arrays)}
    assert texts == {"out is a jax array, which must never be written; leave out= away"}


def python_arrays(group: Group) -> None:
    found = group.all_sum(array.array("d", [1, 2, group.rank]))
    assert found == array.array("d", [group.size, 2 * group.size, sum(range(group.size))])
    view = memoryview(array.array("i", range(4))).cast("B").cast("i", (2, 2))
    assert group.all_sum(view).tolist() == [[0, group.size], [2 * group.size, 3 * group.size]]
    assert group.all_gather(bytes([group.rank])) == bytes(range(group.size))
    assert group.broadcast(bytearray([group.rank]), 1) == bytearray([1])
    assert group.all_max(np.float32(group.rank)) == np.float32(group.size - 1)
    assert isinstance(group.all_max(np.float32(group.rank)), np.float32)
    out = bytearray(8 * group.size)
    group.all_gather(array.array("d", [group.rank]), out=memoryview(out).cast("d"))
    assert memoryview(out).cast("d").tolist() == list(range(group.size))
    share = group.scatter(array.array("h", range(group.size)) if group.rank == 1 else None, 1)
    assert share == array.array("h", [group.rank])


def test_python_arrays(pool: Pool) -> None:
    """array.array, memoryview, bytes and NumPy scalars; results are of the same sort."""
    pool.run(3, python_arrays)


def mixed_sorts(group: Group) -> str:
    """Each rank passes another sort of array: only dtype and size must agree."""
    sorts = [np.array([1.0, 2.0]), array.array("d", [1, 2]), memoryview(array.array("d", [1, 2]))]
    found = group.all_sum(sorts[group.rank])
    assert list(found) == [3.0, 6.0]
    x = ml_dtypes.bfloat16(2)
    assert group.all_sum(x) == 6
    return type(found).__name__


def test_ranks_may_use_different_sorts(pool: Pool) -> None:
    """The sort of an array is each rank's own affair."""
    names = [ended.value for ended in pool.run(3, mixed_sorts)]
    assert names == ["ndarray", "array", "memoryview"]


def scatter_to_a_poor_rank(group: Group) -> str:
    """Rank 0 has a sort of array whose library rank 1 pretends not to have."""
    x = None
    if group.rank == 0:
        x = importlib.import_module("torch").arange(4)
    elif "torch" in sys.modules:
        hidden = {name: sys.modules.pop(name) for name in ["torch"]}
        try:
            return type(group.scatter(x)).__name__
        finally:
            sys.modules.update(hidden)
    return type(group.scatter(x)).__name__


def test_scatter_without_the_roots_library(pool: Pool) -> None:
    """Where the root's library is not loaded, the share comes as a NumPy array."""
    pytest.importorskip("torch")
    names = [ended.value for ended in pool.run(2, scatter_to_a_poor_rank)]
    assert names == ["Tensor", "ndarray"]
