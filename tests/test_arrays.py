"""arrays.py, kinds.py and dlpack.py: any array -> address, bytes, dtype; or a clear refusal."""

from __future__ import annotations

import array
import ctypes
import mmap
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import dtypes, kinds
from standfast.arrays import as_wire, element_type, empty_like, out_wire, overlap
from tests.conformance.data import DTYPES, moved

ALL = pytest.mark.parametrize("name", dtypes.NAMES)
UNICODE: Any = "w" if sys.version_info >= (3, 13) else "u"  # what array.array calls characters


def bits(x: Any) -> bytes:
    """Return the bytes that the core would read."""
    wire = as_wire(x)
    return ctypes.string_at(wire.address, wire.nbytes)


def view_of(x: Any) -> memoryview:
    """Return a memoryview of any array."""
    return memoryview(x)


def fill(x: Any, content: bytes) -> None:
    """Write as the core would."""
    wire = as_wire(x, writable=True)
    assert wire.nbytes == len(content)
    ctypes.memmove(wire.address, content, len(content))


# --- NumPy ----------------------------------------------------------------------------------------


@ALL
def test_numpy_arrays_are_used_in_place(name: str) -> None:
    """Address, bytes, elements, dtype and shape are the array's own; nothing is copied."""
    x = moved(1, 12, DTYPES[name]).reshape(3, 4).copy()
    wire = as_wire(x)
    assert wire.address == x.ctypes.data
    assert (wire.nbytes, wire.elements, wire.shape) == (x.nbytes, 12, (3, 4))
    assert dtypes.NAMES[wire.dtype] == name
    assert wire.owner is x
    assert as_wire(x, writable=True) == wire


@ALL
def test_a_new_array_is_like_the_old(name: str) -> None:
    """empty_like makes a writable array of the same sort and dtype."""
    made = empty_like(np.zeros(3, DTYPES[name]), (2, 5))
    assert isinstance(made, np.ndarray)
    assert (made.dtype, made.shape) == (DTYPES[name], (2, 5))
    as_wire(made, writable=True)


@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    steps=st.lists(st.sampled_from([1, 2, -1, -2]), min_size=3, max_size=3),
    transposed=st.booleans(),
    name=st.sampled_from(["uint8", "float32", "bfloat16", "complex64"]),
)
def test_any_layout_is_read_in_c_order(
    shape: tuple[int, ...], steps: list[int], transposed: bool, name: str
) -> None:
    """Views with any strides give their elements in C order, 0-d and empty ones too."""
    whole = moved(3, int(np.prod(shape)), DTYPES[name]).reshape(shape)
    view = whole[tuple(slice(None, None, step) for step in steps[: len(shape)])]
    view = view.T if transposed else view
    assert bits(view) == view.tobytes()
    assert as_wire(view).shape == view.shape


def test_a_copy_is_kept_alive_by_its_wire() -> None:
    """The owner of a non-contiguous input's wire is the copy, at the wire's address."""
    wire = as_wire(np.arange(6).reshape(2, 3).T)
    assert isinstance(wire.owner, np.ndarray)
    assert wire.owner.ctypes.data == wire.address


def test_more_than_two_gigabytes() -> None:
    """Sizes are not cut to 32 bits. (The memory is never touched.)"""
    x = np.empty(3 * 2**30, np.uint8)
    assert as_wire(x).nbytes == 3 * 2**30
    assert as_wire(x.view(np.float64)).elements == 3 * 2**27


def test_numpy_scalars_are_0d_arrays() -> None:
    """numpy.float32(3) is sent as a 0-d array, and its 0-d results are scalars again."""
    wire = as_wire(np.float32(3))
    assert (wire.shape, wire.elements, bits(np.float32(3))) == ((), 1, np.float32(3).tobytes())
    made = wire.kind.make(wire.dtype, ())
    made[...] = 4
    assert isinstance(wire.kind.finish(made), np.float32)
    assert dtypes.NAMES[as_wire(ml_dtypes.bfloat16(1)).dtype] == "bfloat16"


REFUSED_INPUTS = [
    (np.zeros(2, np.complex128), "x has dtype complex128; supported are bool, int8 to int64"),
    (np.zeros(2, np.longdouble), f"x has dtype {np.dtype(np.longdouble).name}; supported"),
    (np.zeros(2, "S3"), "x has dtype bytes24; supported are"),
    (np.zeros(2, "M8[s]"), "x has dtype datetime64[s]; supported are"),
    (np.zeros(2, [("a", "f4")]), "x has dtype void32; supported are"),
    (np.array([None]), "x has dtype object; supported are"),
    (np.zeros(2, ">f4"), "x has dtype float32 in foreign byte order; convert it to native"),
    (view_of(np.zeros(2, ">f4")), "x has dtype >f in foreign byte order; convert it to native"),
    (np.ma.masked_array([1, 2]), "x is a masked array, whose mask would be lost"),
    ([1, 2], "x is a list, which is no array: pass an array of it, such as numpy.asarray(x)"),
    ((1, 2), "x is a tuple, which is no array: pass an array of it"),
    ("text", "x is a str, which is no array: pass x.encode()"),
    (None, "x is a NoneType, which is no array: this rank has to pass an array"),
    (object(), "x is a object, which is no array"),
    (array.array(UNICODE, "ab"), "x has dtype 'w' (a buffer format); supported are"),
]


@pytest.mark.parametrize(("x", "text"), REFUSED_INPUTS, ids=lambda value: type(value).__name__)
def test_refused_inputs(x: Any, text: str) -> None:
    """Each unusable input is a TypeError that says what it is and what to do, every time."""
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            as_wire(x)
        assert str(caught.value).startswith(text)


def read_only() -> Any:
    """Return an array that cannot be written."""
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    return x


REFUSED_OUTPUTS = [
    (read_only(), ValueError, "out is a read-only numpy ndarray; pass a writable one"),
    (np.broadcast_to(np.float32(1), (4,)), ValueError, "out is a read-only numpy ndarray"),
    (
        np.zeros(8, np.float32)[::2],
        ValueError,
        "out is a non-contiguous numpy ndarray of shape (4,",
    ),
    (np.zeros(8, DTYPES["bfloat16"])[::2], ValueError, "out is a non-contiguous numpy ndarray"),
    (np.float32(1), ValueError, "out is a read-only numpy float32"),
    (np.zeros(4, ">f4"), TypeError, "out has dtype float32 in foreign byte order"),
    (np.zeros(4, "O"), TypeError, "out has dtype object; supported are"),
    (np.zeros(4, np.float64), TypeError, "out has dtype float64, but all_sum gives float32"),
    (np.zeros(5, np.float32), ValueError, "out has shape (5,), but all_sum gives shape (4,)"),
    (
        np.zeros((4, 1), np.float32),
        ValueError,
        "out has shape (4, 1), but all_sum gives shape (4,)",
    ),
    (bytes(16), ValueError, "out is a read-only bytes; pass a writable one"),
    (memoryview(bytes(16)), ValueError, "out is a read-only buffer memoryview"),
    (1.0, TypeError, "out is float 1.0, which cannot be written"),
    ([0.0], TypeError, "x is a list, which is no array"),
]


@pytest.mark.parametrize(("out", "kind", "text"), REFUSED_OUTPUTS, ids=lambda v: type(v).__name__)
def test_refused_outputs(out: Any, kind: type[Exception], text: str) -> None:
    """Each unusable out= is an error that says what is wrong with it."""
    with pytest.raises(kind) as caught:
        out_wire(out, dtypes.CODES["float32"], (4,), "all_sum")
    assert str(caught.value).startswith(text)


def test_overlap() -> None:
    """Two wires overlap where they share a byte; neighbours and empty ones do not."""
    x = np.zeros(10)
    assert overlap(as_wire(x[:5]), as_wire(x[4:]))
    assert not overlap(as_wire(x[:5]), as_wire(x[5:]))
    assert not overlap(as_wire(x[:0]), as_wire(x))


# --- bytes and buffers ----------------------------------------------------------------------------


@pytest.mark.parametrize("sort", [bytes, bytearray, memoryview])
def test_bytes_are_uint8(sort: Any) -> None:
    """bytes, bytearray and memoryview are one-dimensional uint8; results are of the same sort."""
    x = sort(b"hello")
    wire = as_wire(x)
    assert (wire.dtype, wire.shape, bits(x)) == (dtypes.UINT8, (5,), b"hello")
    made = empty_like(x, (3,))
    fill(made, b"abc")
    finished = wire.kind.finish(made)
    assert isinstance(finished, sort)
    assert bytes(finished) == b"abc"


def test_a_bytearray_cannot_be_resized_while_it_is_held() -> None:
    """The wire holds a view, so that the memory stays where it is."""
    x = bytearray(b"hello")
    wire = as_wire(x)
    with pytest.raises(BufferError):
        x.extend(b"more")
    del wire
    x.extend(b"more")


@pytest.mark.parametrize("letter", "bBhHiIlLqQfd")
def test_python_arrays(letter: str) -> None:
    """array.array of every number type, `l` as wide as the platform has it."""
    x = array.array(letter, [1, 2, 3])
    wire = as_wire(x)
    assert dtypes.SIZES[wire.dtype] == x.itemsize
    assert bits(x) == x.tobytes()
    made = empty_like(x, (2,))
    assert isinstance(made, array.array)
    assert (made.itemsize, len(made)) == (x.itemsize, 2)
    assert isinstance(empty_like(x, (2, 2)), memoryview)


def test_memoryviews_keep_format_and_shape() -> None:
    """A memoryview of numbers gives memoryviews of numbers; a strided one is copied."""
    x = memoryview(array.array("f", range(6))).cast("B").cast("f", (2, 3))
    made = empty_like(x, (4, 2))
    assert (made.format, made.shape, made.readonly) == ("f", (4, 2), False)
    assert empty_like(x, ()).shape == ()
    assert empty_like(x, (0, 3)).nbytes == 0
    assert bits(memoryview(b"abcdef")[::2]) == b"ace"
    assert isinstance(empty_like(view_of(np.zeros(2, np.float16)), (3,)), np.ndarray)


def test_other_exporters() -> None:
    """mmap and ctypes arrays have the buffer protocol, and that is enough."""
    with mmap.mmap(-1, 4096) as memory:
        wire = as_wire(memory, writable=True)
        assert (wire.nbytes, wire.dtype) == (4096, dtypes.UINT8)
        del wire
    x = ((ctypes.c_long * 3) * 2)()
    assert (as_wire(x).shape, as_wire(x).dtype) == ((2, 3), dtypes.INT64)


def test_a_released_memoryview_is_refused() -> None:
    """A view that was released gives a TypeError, not a crash."""
    x = memoryview(b"abc")
    x.release()
    with pytest.raises(TypeError, match="gives no access to its memory"):
        as_wire(x)


# --- Python's scalars -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "name"), [(True, "bool"), (3, "int64"), (0.5, "float64"), (1 + 2j, "complex64")]
)
def test_python_scalars(x: Any, name: str) -> None:
    """Scalars are 0-d arrays; 0-d results are scalars again, 1-d results lists of them."""
    wire = as_wire(x)
    assert (dtypes.NAMES[wire.dtype], wire.shape) == (name, ())
    made = wire.kind.make(wire.dtype, ())
    fill(made, bits(x))
    assert wire.kind.finish(made) == x
    assert type(wire.kind.finish(made)) is type(x)
    several = wire.kind.make(wire.dtype, (3,))
    fill(several, bits(x) * 3)
    assert wire.kind.finish(several) == [x, x, x]


@pytest.mark.parametrize("x", [2**63, -(2**63) - 1, 1e300 + 0j])
def test_scalars_that_do_not_fit(x: Any) -> None:
    """A scalar beyond its dtype's range is a ValueError."""
    with pytest.raises(ValueError, match="does not fit into"):
        as_wire(x)


# --- DLPack ---------------------------------------------------------------------------------------


class Foreign:
    """An array of a library we do not know, over a NumPy array; versions before 1.0 too."""

    def __init__(self, x: Any, *, device: tuple[int, int] = (1, 0), versioned: bool = True) -> None:
        self.x, self.device, self.versioned = x, device, versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.x.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("name", [name for name in dtypes.NAMES if name != "bfloat16"])
def test_dlpack(name: str, versioned: bool) -> None:
    """Any object with CPU DLPack is used in place, by either form of capsule."""
    x = moved(2, 6, DTYPES[name]).reshape(2, 3).copy()
    wire = as_wire(Foreign(x, versioned=versioned), writable=True)
    assert (wire.address, wire.nbytes, wire.shape) == (x.ctypes.data, x.nbytes, (2, 3))
    assert dtypes.NAMES[wire.dtype] == name
    assert isinstance(empty_like(Foreign(x), (4,)), np.ndarray)


def test_dlpack_refusals() -> None:
    """Memory of a GPU, read-only memory and strides are told apart."""
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match=r"x is a DLPack Foreign on cuda:1; only CPU memory"):
        as_wire(Foreign(x, device=(2, 1)))
    with pytest.raises(ValueError, match=r"out is a read-only DLPack Foreign"):
        as_wire(Foreign(read_only()), writable=True)
    with pytest.raises(
        ValueError, match=r"out is a non-contiguous DLPack Foreign of shape \(3, 2\)"
    ):
        as_wire(Foreign(x.T), writable=True)
    with pytest.raises(ValueError, match=r"x is a non-contiguous DLPack Foreign"):
        as_wire(Foreign(x.T))
    with pytest.raises(TypeError, match=r"x has dtype DLPack type 5 of 128 bits x 1; supported"):
        as_wire(Foreign(np.zeros(2, np.complex128)))


# --- torch, MLX, JAX ------------------------------------------------------------------------------


@ALL
def test_torch_tensors_are_used_in_place(name: str) -> None:
    """Every dtype, bfloat16 too; strided tensors are copied; results are tensors."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    x = torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
    wire = as_wire(x, writable=True)
    assert (wire.address, wire.elements, wire.shape) == (x.data_ptr(), 6, (2, 3))
    assert dtypes.NAMES[wire.dtype] == name
    assert bits(x.T) == bits(x.T.contiguous())
    made = empty_like(x, (4,))
    assert (made.dtype, tuple(made.shape)) == (x.dtype, (4,))
    assert element_type(x.dtype) == (kinds.TORCH, wire.dtype)


def test_torch_refusals() -> None:
    """Gradients, other devices, sparse tensors and foreign dtypes are refused by name."""
    torch = pytest.importorskip("torch")
    x = torch.zeros(4)
    with pytest.raises(TypeError, match="x is a torch tensor that requires grad"):
        as_wire(torch.zeros(4, requires_grad=True))
    with pytest.raises(TypeError, match="out is a torch tensor that requires grad"):
        as_wire(torch.zeros(4, requires_grad=True), writable=True)
    with pytest.raises(TypeError, match="x is a torch Tensor on meta; only CPU memory"):
        as_wire(torch.zeros(4, device="meta"))
    with pytest.raises(TypeError, match="sparse_coo tensor; pass a dense one"):
        as_wire(x.to_sparse())
    with pytest.raises(TypeError, match=r"x has dtype torch\.complex128; supported are"):
        as_wire(torch.zeros(4, dtype=torch.complex128))
    with pytest.raises(ValueError, match="out is a non-contiguous torch Tensor"):
        as_wire(torch.zeros(4, 4).T, writable=True)
    conjugated = torch.tensor([1 + 2j]).conj()
    assert bits(conjugated) == np.array([1 - 2j], np.complex64).tobytes()
    with pytest.raises(ValueError, match="out is a non-contiguous torch Tensor"):
        as_wire(conjugated, writable=True)


@ALL
def test_mlx_arrays_are_used_in_place(name: str) -> None:
    """Every dtype, lazy arrays too; what is written into one is seen by MLX."""
    mx = pytest.importorskip("mlx.core")
    if name == "float64":
        pytest.skip("MLX has float64 on the CPU stream only")
    dtype = getattr(mx, "bool_" if name == "bool" else name)
    x = (mx.arange(6) + 1).astype(dtype).reshape(2, 3)
    wire = as_wire(x)
    assert (wire.shape, dtypes.NAMES[wire.dtype]) == ((2, 3), name)
    assert bits(x.T) == bits(mx.contiguous(x.T))
    made = empty_like(x, (2, 3))
    fill(made, bits(x))
    assert made.dtype == dtype
    assert mx.array_equal(made, x).item()
    assert element_type(dtype) == (kinds.MLX, wire.dtype)


def test_mlx_out_must_be_contiguous() -> None:
    """A strided MLX array is no out."""
    mx = pytest.importorskip("mlx.core")
    with pytest.raises(ValueError, match="out is a non-contiguous mlx array"):
        as_wire(mx.zeros((3, 4)).T, writable=True)


def test_jax_arrays_are_read_and_never_written() -> None:
    """Inputs of every float dtype; as out= refused; results are handed over as JAX arrays."""
    jax = pytest.importorskip("jax")
    for name in ("float32", "bfloat16", "int32", "bool"):
        x = jax.numpy.arange(6).reshape(2, 3).astype(name)
        wire = as_wire(x)
        assert (dtypes.NAMES[wire.dtype], wire.shape) == (name, (2, 3))
        assert bits(x) == np.asarray(x).tobytes()
        made = empty_like(x, (2, 3))
        fill(made, bits(x))
        assert isinstance(wire.kind.finish(made), jax.Array)
        assert (wire.kind.finish(made) == x).all()
        with pytest.raises(TypeError, match="out is a jax array, which must never be written"):
            as_wire(x, writable=True)


# --- dtypes of recv -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("int16"), "int16"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        (DTYPES["bfloat16"], "bfloat16"),
        ("f8", "float64"),
        (float, "float64"),
        (int, "int64"),
        (bool, "bool"),
    ],
)
def test_element_types(dtype: Any, name: str) -> None:
    """A recv's dtype may be NumPy's, a name, or one of Python's types."""
    kind, code = element_type(dtype)
    assert (kind, dtypes.NAMES[code]) == (kinds.NUMPY, name)


@pytest.mark.parametrize("dtype", [">f4", "complex128", object, "float8", 3, "U3"])
def test_unknown_element_types(dtype: Any) -> None:
    """What is no dtype, or none of ours, is a TypeError that names it."""
    with pytest.raises(TypeError, match="dtype is"):
        element_type(dtype)


# --- without any library --------------------------------------------------------------------------


def test_no_library_is_imported_that_the_caller_has_not() -> None:
    """NumPy, torch, MLX and JAX stay unloaded; bytes, arrays and scalars work without them."""
    script = """
import array, sys
from standfast import arrays, kinds
for x in (b"abc", bytearray(3), array.array("f", [1]), memoryview(b"a"), 1, 2.0, True, 1j):
    wire = arrays.as_wire(x)
    wire.kind.finish(wire.kind.make(wire.dtype, (2,)))
kind, code = arrays.element_type("float32")
assert kind.make(code, (2, 2)).format == "f"
for bad in ("float16", "bfloat16", "complex64"):
    kind, code = arrays.element_type(bad)
    try:
        kind.make(code, (2,))
    except TypeError as error:
        assert "needs NumPy" in str(error)
    else:
        raise AssertionError(bad)
loaded = {"numpy", "torch", "mlx", "jax", "ml_dtypes", "ctypes", "asyncio"} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy alone cannot hold bfloat16: the error says what to import."""
    monkeypatch.delitem(sys.modules, "ml_dtypes")
    monkeypatch.setattr(kinds, "NUMPY", kinds.NumPy())
    with pytest.raises(TypeError, match="import ml_dtypes"):
        kinds.NUMPY.make(dtypes.BFLOAT16, (2,))


def test_an_object_without_any_memory() -> None:
    """A class that only looks like an array is refused."""
    with pytest.raises(TypeError, match="x is a SimpleNamespace, which is no array"):
        as_wire(SimpleNamespace(shape=(2,), dtype=np.float32))
