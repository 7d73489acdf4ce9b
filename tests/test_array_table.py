"""Whose memory is used in place, by address: each library's arrays as input and as out=.

Where a library is not installed its tests are skipped; `make test-integrations` has them all.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import standfast
from standfast import Group, as_wire, dtypes
from tests.ranks import Pool
from tests.test_arrays import Foreign, bits, fill

FLOATS = pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])


def address_of(x: Any) -> int:
    """Return where an ndarray lies."""
    return int(x.__array_interface__["data"][0])


# --- NumPy, ml_dtypes, Python ---------------------------------------------------------------------


def test_views_are_used_where_they_lie() -> None:
    """A contiguous part of an array, of bfloat16 too, is not copied; one with gaps is."""
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = np.arange(24).astype(dtype).reshape(6, 4)
        assert as_wire(x[2:4], writable=True).address == address_of(x) + 8 * x.itemsize
        strided = as_wire(x[:, 1])
        assert not address_of(x) <= strided.address < address_of(x) + x.nbytes
        assert bits(x[:, 1]) == x[:, 1].tobytes()


def test_python_memory_is_used_in_place() -> None:
    """array.array, bytearray, ctypes, mmap and whatever else has the buffer protocol."""
    numbers = array.array("d", [1, 2, 3])
    assert as_wire(numbers, writable=True).address == numbers.buffer_info()[0]
    assert as_wire(memoryview(numbers)[1:]).address == numbers.buffer_info()[0] + 8
    held = (ctypes.c_int16 * 5)()
    assert as_wire(held, writable=True).address == ctypes.addressof(held)
    memory = bytearray(16)
    own = ctypes.addressof((ctypes.c_char * 16).from_buffer(memory))
    assert as_wire(memory, writable=True).address == own
    assert as_wire(pickle.PickleBuffer(memory)).address == own
    text = b"never copied"
    assert as_wire(text).address == ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value
    with mmap.mmap(-1, 4096) as page:
        view = memoryview(page)
        assert as_wire(page).address == address_of(np.frombuffer(view, np.uint8))
        view.release()


def test_dlpack_alone_is_enough() -> None:
    """An object that has nothing but DLPack is used in place, as input and as out=."""
    x = np.arange(6, dtype=np.int32)
    assert as_wire(Foreign(x)).address == address_of(x)
    fill(Foreign(x), np.full(6, 7, np.int32).tobytes())
    assert (x == 7).all()


# --- torch ----------------------------------------------------------------------------------------


@FLOATS
def test_torch(name: str) -> None:
    """A tensor's own memory, and its parts; gaps are copied, and gradients refused."""
    torch = pytest.importorskip("torch")
    x = torch.arange(12).to(getattr(torch, name)).reshape(3, 4)
    assert as_wire(x, writable=True).address == x.data_ptr()
    assert as_wire(x[1:], writable=True).address == x.data_ptr() + 4 * x.element_size()
    assert as_wire(x.view(-1)).address == x.data_ptr()
    copied = as_wire(x.T)
    assert copied.address == copied.owner.data_ptr() != x.data_ptr()  # type: ignore[attr-defined]
    assert bits(x.T) == bits(x.T.contiguous())
    parameter = x.clone().requires_grad_()
    with pytest.raises(TypeError, match=r"requires grad.*pass x\.detach\(\)"):
        as_wire(parameter)
    assert as_wire(parameter.detach(), writable=True).address == parameter.data_ptr()


def test_torch_and_numpy_share() -> None:
    """One memory, whichever library it is passed as."""
    torch = pytest.importorskip("torch")
    x = np.arange(6, dtype=np.float32)
    assert as_wire(torch.from_numpy(x)).address == as_wire(x).address == address_of(x)
    tensor = torch.zeros(6)
    assert as_wire(tensor.numpy(), writable=True).address == tensor.data_ptr()


# --- MLX ------------------------------------------------------------------------------------------


def seen_by_numpy(x: Any) -> Any:
    """Return an MLX array's memory as NumPy's, through its bits where NumPy has no such dtype."""
    mx = pytest.importorskip("mlx.core")
    return np.array(mx.view(x, mx.uint16) if x.dtype == mx.bfloat16 else x, copy=False)


@FLOATS
def test_mlx(name: str) -> None:
    """An evaluated array is used in place, both ways: what is written there, MLX sees."""
    mx = pytest.importorskip("mlx.core")
    x = mx.arange(6).astype(getattr(mx, name)).reshape(2, 3)
    wire = as_wire(x, writable=True)
    assert wire.address == address_of(seen_by_numpy(x))
    assert dtypes.NAMES[wire.dtype] == name
    assert as_wire(x).address == wire.address, "asking again does not move it"
    fill(x, bits(mx.full((2, 3), 5, getattr(mx, name))))
    assert mx.all(x == 5).item()
    assert as_wire(x.T).address != wire.address
    assert bits(x.T) == bits(mx.contiguous(x.T))


def test_mlx_through_other_libraries() -> None:
    """MLX's memory as NumPy's or torch's is the same memory; MLX itself copies what it is given."""
    mx = pytest.importorskip("mlx.core")
    x = mx.arange(4).astype(mx.float32)
    mx.eval(x)
    assert as_wire(np.array(x, copy=False), writable=True).address == as_wire(x).address
    given = np.arange(4, dtype=np.float32)
    assert as_wire(mx.array(given)).address != address_of(given)


def test_mlx_through_torch() -> None:
    """torch.from_dlpack() shares MLX's memory, bfloat16 too."""
    mx, torch = pytest.importorskip("mlx.core"), pytest.importorskip("torch")
    for dtype in (mx.float32, mx.bfloat16):
        x = mx.arange(4).astype(dtype)
        mx.eval(x)
        assert as_wire(torch.from_dlpack(x), writable=True).address == as_wire(x).address


# --- JAX ------------------------------------------------------------------------------------------


@FLOATS
def test_jax(name: str) -> None:
    """A JAX array is read where it lies, and never written: not through NumPy's view either."""
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(1000).astype(name)
    assert as_wire(x).address == x.unsafe_buffer_pointer()
    with pytest.raises(TypeError, match="out is a jax array, which must never be written"):
        as_wire(x, writable=True)
    with pytest.raises(ValueError, match="out is a read-only numpy ndarray"):
        as_wire(np.asarray(x), writable=True)


# --- standfast.empty() ----------------------------------------------------------------------------


def test_empty_as_torch() -> None:
    """Memory of empty() is torch's as well, bfloat16 through its bits, and goes with the tensor."""
    torch = pytest.importorskip("torch")
    made = standfast.empty((2, 3))
    tensor = torch.from_numpy(made)
    assert as_wire(tensor, writable=True).address == address_of(made)
    tensor.fill_(3)
    assert (made == 3).all()
    half = torch.from_numpy(standfast.empty(4, "uint16").view(np.int16)).view(torch.bfloat16)
    half.fill_(2)
    assert dtypes.NAMES[as_wire(half).dtype] == "bfloat16"
    del made
    assert (tensor == 3).all()


def test_empty_as_mlx() -> None:
    """MLX takes the contents over into memory of its own; results come back into empty()'s."""
    mx = pytest.importorskip("mlx.core")
    made = standfast.empty(4)
    made[...] = [1, 2, 3, 4]
    x = mx.array(made)
    assert as_wire(x).address != address_of(made)
    made[...] = 0
    assert mx.array_equal(x, mx.array([1.0, 2.0, 3.0, 4.0])).item()
    np.copyto(made, np.array(x * 2, copy=False))
    assert made.tolist() == [2, 4, 6, 8]


def torch_in_empty(group: Group) -> float:
    """Add up tensors that lie in memory of empty(), in place; large enough to be lent."""
    import torch

    x = torch.from_numpy(standfast.empty(1 << 20))
    x.fill_(group.rank + 1.0)
    for _ in range(2):
        assert group.all_sum(x, out=x) is x
    return float(x.sum()) / (1 << 20)


def test_torch_in_empty(pool: Pool) -> None:
    """Tensors over such memory go through real operations."""
    pytest.importorskip("torch")
    assert [ended.value for ended in pool.run(2, torch_in_empty)] == [6.0, 6.0]


def into_an_mlx_out(group: Group) -> list[Any]:
    """Receive into an MLX array: nothing moves, and aliases see it."""
    import mlx.core as mx

    out = mx.zeros((4,), mx.bfloat16)
    mx.eval(out)
    before = as_wire(out).address
    assert group.all_sum(mx.ones((4,), mx.bfloat16), out=out) is out
    return [as_wire(out).address == before, out.astype(mx.float32).tolist()]


def test_an_mlx_out_is_written_in_place(pool: Pool) -> None:
    """bfloat16 results arrive in the memory of the array that was passed."""
    pytest.importorskip("mlx.core")
    for ended in pool.run(2, into_an_mlx_out):
        assert ended.value == [True, [2.0] * 4]
