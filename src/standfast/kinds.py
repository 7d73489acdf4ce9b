"""One class per sort of array: how to find its memory, and how to make another one like it.

arrays.py is the caller. NumPy, torch, MLX and JAX are never imported here: where somebody hands us
one of their arrays, they are in sys.modules already.
"""

from __future__ import annotations

import abc
import array
import math
import struct
import sys
from typing import Any, NamedTuple, NoReturn

from standfast import _core, dtypes


class Wire(NamedTuple):
    """An array as the core sees it: bytes at an address, and what they mean.

    Fields:
        address: of the first byte; 0 or any number where nbytes is 0.
        nbytes: size in bytes.
        elements: number of elements, in C order without gaps.
        dtype: their code, an index into ``standfast.dtypes.NAMES``.
        shape: () is a 0-d array.
        owner: keeps the memory alive and in place: hold it for as long as anybody may look at
            address. It is not always the caller's object: a non-contiguous input is copied, and
            the owner is then the copy.
        kind: makes results of the caller's sort.
    """

    address: int
    nbytes: int
    elements: int
    dtype: int
    shape: tuple[int, ...]
    owner: object
    kind: Kind


class Kind(abc.ABC):
    """A sort of array."""

    name = "array"

    @abc.abstractmethod
    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory. writable: x is where a result goes, so a copy would not do."""

    @abc.abstractmethod
    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return new memory of this sort, writable and contiguous; its contents are undefined."""

    def finish(self, made: Any) -> Any:
        """Turn what make() returned, now filled, into what the caller gets."""
        return made

    def compact(self, x: Any) -> Any:
        """Return a copy of x that holds its elements in C order, without gaps; x if it does."""
        return x


# For NumPy's arrays every tenth of a microsecond counts: they come with each small operation.
_new_wire = tuple.__new__  # a third of the time of Wire(...)
_buffer_view = _core.buffer_view
_FORMATS = {form: (dtype, dtypes.SIZES[dtype]) for form, dtype in dtypes.BY_FORMAT.items()}


def _wire(
    address: int, nbytes: int, dtype: int, shape: tuple[int, ...], owner: object, kind: Kind
) -> Wire:
    elements = nbytes // dtypes.SIZES[dtype]
    return _new_wire(Wire, (address, nbytes, elements, dtype, shape, owner, kind))


def _buffer_wire(kind: Kind, x: Any, owner: object, writable: bool) -> Wire | None:
    """Find x's memory by the buffer protocol; None if x has none, or not of one of our dtypes."""
    view = _core.buffer_view(x, False)
    if view is None:
        return None
    address, nbytes, form, shape, contiguous, readonly = view
    dtype = dtypes.BY_FORMAT.get(form)
    if dtype is None:
        return None
    if writable and readonly:
        refuse_readonly(x, kind)
    if not contiguous:
        if writable:
            refuse_strided(x, kind, shape)
        owner = kind.compact(x)
        copied = _core.buffer_view(owner, False)
        assert copied is not None
        address = copied[0]
    return _wire(address, nbytes, dtype, shape, owner, kind)


def refuse_readonly(x: Any, kind: Kind) -> NoReturn:
    """Refuse an out= that cannot be written."""
    raise ValueError(
        f"out is a read-only {_sort(x, kind)}; pass a writable one, or leave out= away"
    )


def refuse_strided(x: Any, kind: Kind, shape: tuple[int, ...]) -> NoReturn:
    """Refuse an out= with gaps or in another order."""
    raise ValueError(
        f"out is a non-contiguous {_sort(x, kind)} of shape {shape}; pass a contiguous one"
        " (C order) and copy from it, or leave out= away"
    )


def refuse_dtype(name: str, writable: bool) -> NoReturn:
    """Refuse a dtype that the core cannot add up."""
    raise TypeError(
        f"{'out' if writable else 'x'} has dtype {name}; supported are {dtypes.SUPPORTED}:"
        " convert it first"
    )


def refuse_byte_order(name: str, writable: bool) -> NoReturn:
    """Refuse elements in the other byte order."""
    raise TypeError(
        f"{'out' if writable else 'x'} has dtype {name} in foreign byte order; convert it to native"
        " byte order first, with NumPy: x.astype(x.dtype.newbyteorder('='))"
    )


def refuse_device(x: Any, kind: Kind, device: str, writable: bool) -> NoReturn:
    """Refuse memory of a GPU."""
    raise TypeError(
        f"{'out' if writable else 'x'} is a {_sort(x, kind)} on {device}; only CPU memory can be"
        " sent: copy it to the CPU first"
    )


def _sort(x: Any, kind: Kind) -> str:
    sort = type(x).__name__
    return sort if sort.startswith(kind.name) else f"{kind.name} {sort}"


class NumPy(Kind):
    """numpy.ndarray, with ml_dtypes' bfloat16."""

    name = "numpy"

    def __init__(self) -> None:
        self._dtypes: dict[int, Any] = {}

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory; a contiguous array of a plain dtype takes the short way."""
        view = _buffer_view(x, writable)
        if view is not None:
            address, nbytes, form, shape, contiguous, readonly = view
            known = _FORMATS.get(form)
            if known is not None and contiguous and not (writable and readonly):
                dtype, size = known
                return _new_wire(Wire, (address, nbytes, nbytes // size, dtype, shape, x, self))
        return self._slow_wire(x, writable)

    def teach(self) -> None:
        """Show the core's shortcuts how arrays look, so that they can do without this class."""
        numpy: Any = sys.modules["numpy"]
        samples = [(numpy.zeros((2, 3), form), dtypes.BY_FORMAT[form]) for form in "?bhiqlBHIQLefd"]
        samples += [(numpy.zeros((2, 3), "complex64"), dtypes.COMPLEX64)]
        samples += [(numpy.zeros((2, 3), "float32").T, dtypes.CODES["float32"])]
        samples += [(numpy.frombuffer(bytes(8), "float32"), dtypes.CODES["float32"])]
        _core.learn_numpy(samples, numpy.empty)

    def _slow_wire(self, x: Any, writable: bool) -> Wire:
        dtype = x.dtype
        if not dtype.isnative:
            refuse_byte_order(dtype.name, writable)
        if dtype.name not in dtypes.CODES:
            refuse_dtype(dtype.name, writable)
        if dtype.name != "bfloat16":
            wire = _buffer_wire(self, x, x, writable)
            if wire is None:
                raise TypeError(f"{_sort(x, self)} gives no access to its memory")
            return wire
        _core.learn_numpy_dtype(dtype, dtypes.BFLOAT16)
        bits = _buffer_wire(self, x.view("uint16"), x, writable)  # no buffer can have this dtype
        assert bits is not None
        return bits._replace(dtype=dtypes.BFLOAT16)

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised ndarray."""
        return sys.modules["numpy"].empty(shape, self._dtypes.get(dtype) or self._dtype(dtype))

    def adopt(self, memory: memoryview, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an ndarray of bytes that are there already, and as many as it needs."""
        return sys.modules["numpy"].ndarray(shape, self._dtype(dtype), memory)

    def _dtype(self, code: int) -> Any:
        module: Any = sys.modules["numpy"]
        if code == dtypes.BFLOAT16:
            if "ml_dtypes" not in sys.modules:
                raise TypeError(
                    "numpy has no bfloat16 of its own; import ml_dtypes in this rank as well, or"
                    " pass out="
                )
            module = sys.modules["ml_dtypes"]
        name = "bool_" if code == dtypes.BOOL else dtypes.NAMES[code]
        made = sys.modules["numpy"].dtype(getattr(module, name))
        return self._dtypes.setdefault(code, made)

    def compact(self, x: Any) -> Any:
        """Copy. ascontiguousarray() would turn a 0-d array into one of length 1."""
        return x.copy(order="C")


class NumPyScalar(NumPy):
    """numpy.generic: 0-d in, and scalars out where the result is 0-d."""

    def wire(self, x: Any, writable: bool) -> Wire:
        """Copy the scalar into a 0-d array."""
        if writable:
            refuse_readonly(x, self)
        return super().wire(sys.modules["numpy"].asarray(x), False)._replace(kind=self)

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an ndarray."""
        return NUMPY.make(dtype, shape)

    def finish(self, made: Any) -> Any:
        """Return a scalar for a 0-d array."""
        return made[()]


class Torch(Kind):
    """torch.Tensor on the CPU."""

    name = "torch"

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}

    def codes(self) -> dict[Any, int]:
        """Map torch.dtype objects to our codes."""
        if not self._codes:
            torch = sys.modules["torch"]
            found = {getattr(torch, name, None): code for name, code in dtypes.CODES.items()}
            found.pop(None, None)
            self._codes = found
        return self._codes

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory; conjugated and negated views are resolved into copies."""
        if x.device.type != "cpu":
            refuse_device(x, self, str(x.device), writable)
        if str(x.layout) != "torch.strided":
            raise TypeError(
                f"{'out' if writable else 'x'} is a {x.layout} tensor; pass a dense one"
            )
        if x.requires_grad:
            self._refuse_grad(writable)
        dtype = (self._codes or self.codes()).get(x.dtype)
        if dtype is None:
            refuse_dtype(str(x.dtype), writable)
        lazy = dtype == dtypes.COMPLEX64 and (x.is_conj() or x.is_neg())
        if lazy or not x.is_contiguous():
            if writable:
                refuse_strided(x, self, tuple(x.shape))
            x = self.compact(x)
        nbytes = x.numel() * dtypes.SIZES[dtype]
        return _wire(x.data_ptr(), nbytes, dtype, tuple(x.shape), x, self)

    def _refuse_grad(self, writable: bool) -> NoReturn:
        raise TypeError(
            f"{'out' if writable else 'x'} is a torch tensor that requires grad, and no gradient"
            " flows through a Group: pass x.detach(), or use it under torch.distributed"
        )

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised tensor."""
        torch: Any = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtypes.NAMES[dtype]), device="cpu")

    def compact(self, x: Any) -> Any:
        """Copy."""
        return x.resolve_conj().resolve_neg().contiguous()


class Mlx(Kind):
    """mlx.core.array. Looking at its memory evaluates it; results are evaluated arrays."""

    name = "mlx"

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory. As out=, aliases of x see the result too, as with NumPy views."""
        wire = _buffer_wire(self, x, x, writable)
        if wire is None:
            refuse_dtype(str(x.dtype), writable)
        return wire

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an evaluated array of its own memory (MLX has no uninitialised ones)."""
        mx: Any = sys.modules["mlx.core"]
        name = "bool_" if dtype == dtypes.BOOL else dtypes.NAMES[dtype]
        made = mx.zeros(shape, getattr(mx, name))
        mx.eval(made)
        return made

    def compact(self, x: Any) -> Any:
        """Copy."""
        return sys.modules["mlx.core"].contiguous(x)


class Jax(Kind):
    """jax.Array on the CPU: never written. Results are received by NumPy and handed over."""

    name = "jax"

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory."""
        if writable:
            raise TypeError("out is a jax array, which must never be written; leave out= away")
        wire = _buffer_wire(self, x, x, False)
        return wire if wire is not None else DLPACK.wire(x, False)._replace(kind=self)

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an ndarray."""
        return NUMPY.make(dtype, shape)

    def finish(self, made: Any) -> Any:
        """Hand the ndarray over to JAX."""
        return sys.modules["jax"].numpy.asarray(made)

    def compact(self, x: Any) -> Any:
        """Copy."""
        return NUMPY.compact(sys.modules["numpy"].asarray(x))


class Buffer(Kind):
    """Anything else with the buffer protocol; results are memoryviews of the same format."""

    name = "buffer"

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory, and hold a memoryview, which keeps it from being resized."""
        try:
            held = memoryview(x)
        except (BufferError, ValueError) as error:
            raise TypeError(f"{type(x).__name__} gives no access to its memory: {error}") from error
        wire = _buffer_wire(self, x, held, writable)
        if wire is None:
            if held.format[:1] in (">", "!"):
                refuse_byte_order(held.format, writable)
            refuse_dtype(f"{held.format!r} (a buffer format)", writable)
        return wire

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return a memoryview of new bytes, in one dimension if the shape has a zero in it."""
        form = dtypes.FORMATS[dtype]
        if len(form) > 1 or form == "e":  # memoryview.cast() knows none of these
            if "numpy" not in sys.modules:
                raise TypeError(f"a new array of {dtypes.NAMES[dtype]} needs NumPy; pass out=")
            return NUMPY.make(dtype, shape)
        memory = memoryview(bytearray(math.prod(shape) * dtypes.SIZES[dtype]))
        return self.adopt(memory, dtype, shape)

    def adopt(self, memory: memoryview, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return a memoryview of bytes that are there already, and as many as it needs."""
        form: Any = dtypes.FORMATS[dtype]
        if len(form) > 1 or form == "e":
            raise TypeError(f"an array of {dtypes.NAMES[dtype]} needs NumPy")
        return memory.cast(form) if 0 in shape else memory.cast(form, list(shape))

    def compact(self, x: Any) -> Any:
        """Copy."""
        return memoryview(x).tobytes()


class Bytes(Buffer):
    """bytes: received into a bytearray."""

    name = "bytes"

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return a bytearray."""
        return bytearray(math.prod(shape))

    def finish(self, made: Any) -> Any:
        """Return bytes."""
        return bytes(made)


class ByteArray(Bytes):
    """bytearray."""

    name = "bytearray"

    def finish(self, made: Any) -> Any:
        """Return the bytearray."""
        return made


class PyArray(Buffer):
    """array.array, which has one dimension."""

    name = "array.array"

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return an array.array of zeros, or what Buffer makes where it has too many dimensions."""
        if len(shape) != 1 or len(dtypes.FORMATS[dtype]) != 1 or dtypes.FORMATS[dtype] in "?e":
            return super().make(dtype, shape)
        return array.array(dtypes.FORMATS[dtype], bytes(shape[0] * dtypes.SIZES[dtype]))


class DLPack(Kind):
    """Any other object with ``__dlpack__``; results are NumPy's, or memoryviews without NumPy."""

    name = "DLPack"

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find x's memory by DLPack."""
        from standfast import dlpack

        where = dlpack.device(x)
        if where is not None:
            refuse_device(x, self, where, writable)
        view = dlpack.view(x)
        if view.dtype is None:
            refuse_dtype(view.dtype_text, writable)
        if writable and view.readonly:
            refuse_readonly(x, self)
        if not view.contiguous:
            if writable:
                refuse_strided(x, self, view.shape)
            raise ValueError(f"x is a non-contiguous {_sort(x, self)}; pass a contiguous copy")
        nbytes = math.prod(view.shape) * dtypes.SIZES[view.dtype]
        return _wire(view.address, nbytes, view.dtype, view.shape, (x, view.capsule), self)

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return what the default kind makes."""
        return default().make(dtype, shape)


class Scalar(Kind):
    """bool, int, float and complex: 0-d arrays of bool, int64, float64 and complex64.

    A 0-d result is a scalar again, a 1-d result a list of scalars.
    """

    name = "scalar"

    def wire(self, x: Any, writable: bool) -> Wire:
        """Put x into memory of its own."""
        if writable:
            raise TypeError(f"out is {type(x).__name__} {x!r}, which cannot be written")
        dtype = SCALARS[type(x)]
        held = bytearray(dtypes.SIZES[dtype])
        try:
            struct.pack_into(_PACK[dtype], held, 0, *_parts(x))
        except (struct.error, OverflowError):
            raise ValueError(f"x is {x}, which does not fit into {dtypes.NAMES[dtype]}") from None
        view = _core.buffer_view(held, False)
        assert view is not None
        return _wire(view[0], view[1], dtype, (), memoryview(held), self)

    def make(self, dtype: int, shape: tuple[int, ...]) -> Any:
        """Return memory that remembers dtype and shape."""
        return Scalars(dtype, shape)

    def finish(self, made: Any) -> Any:
        """Return a scalar or a list of scalars."""
        return made.read()


class Scalars:
    """Memory for results of Scalar."""

    def __init__(self, dtype: int, shape: tuple[int, ...]) -> None:
        self.dtype: int = dtype
        self.shape: tuple[int, ...] = shape
        self.held: bytearray = bytearray(math.prod(shape) * dtypes.SIZES[dtype])

    def read(self) -> Any:
        """Return the contents."""
        found = [
            complex(*parts) if self.dtype == dtypes.COMPLEX64 else parts[0]
            for parts in struct.iter_unpack(_PACK[self.dtype], self.held)
        ]
        return found if self.shape else found[0]


class ScalarMemory(Scalar):
    """Scalars as an out."""

    def wire(self, x: Any, writable: bool) -> Wire:
        """Find the memory."""
        view = _core.buffer_view(x.held, writable)
        assert view is not None
        return _wire(view[0], view[1], x.dtype, x.shape, x, SCALAR)


def _parts(x: Any) -> tuple[Any, ...]:
    return (x.real, x.imag) if isinstance(x, complex) else (x,)


SCALARS: dict[type, int] = {
    bool: dtypes.BOOL,
    int: dtypes.INT64,
    float: dtypes.FLOAT64,
    complex: dtypes.COMPLEX64,
}
# With "<" a float that is too large for float32 is an error; without it, it becomes infinity.
_PACK = {dtypes.BOOL: "<?", dtypes.INT64: "<q", dtypes.FLOAT64: "<d", dtypes.COMPLEX64: "<ff"}

NUMPY = NumPy()
NUMPY_SCALAR = NumPyScalar()
TORCH = Torch()
MLX = Mlx()
JAX = Jax()
BUFFER = Buffer()
BYTES = Bytes()
BYTEARRAY = ByteArray()
PYARRAY = PyArray()
DLPACK = DLPack()
SCALAR = Scalar()

BY_TYPE: dict[type, Kind] = {
    bytes: BYTES,
    bytearray: BYTEARRAY,
    memoryview: BUFFER,
    array.array: PYARRAY,
    bool: SCALAR,
    int: SCALAR,
    float: SCALAR,
    complex: SCALAR,
    Scalars: ScalarMemory(),
}
"""Filled further by arrays.kind_of(), one entry per type ever seen."""


def default() -> Kind:
    """Return the kind for results that nobody named one for: NumPy's where it is loaded."""
    return NUMPY if "numpy" in sys.modules else BUFFER


def available(kind: Kind) -> Kind:
    """Return the kind if this process has loaded its library, or else the default."""
    needed = {"numpy": "numpy", "torch": "torch", "mlx": "mlx.core", "jax": "jax"}.get(kind.name)
    return kind if needed is None or needed in sys.modules else default()
