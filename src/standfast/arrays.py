"""Any array -> address, bytes, dtype, owner; or an error that says what to do about it.

group.py's operations are the callers, in the caller's thread, before any byte is sent.

Accepted are NumPy arrays and scalars (ml_dtypes' bfloat16 too), torch tensors on the CPU, MLX and
JAX arrays, whatever has the buffer protocol (bytes, bytearray, memoryview, array.array) or CPU
DLPack, and Python's own scalars. Results are of the caller's sort. JAX arrays are never written.
"""

from __future__ import annotations

import sys
from typing import Any

from standfast import dtypes, kinds
from standfast.kinds import Kind, Wire

__all__ = ["Kind", "Wire", "as_wire", "element_type", "empty_like", "out_wire", "overlap"]


def as_wire(x: Any, *, writable: bool = False) -> Wire:
    """Find the memory of an array of any library: the one way by which arrays come in.

    Nothing is copied but non-contiguous inputs, Python's scalars, and torch's conjugated or
    negated views. MLX arrays are evaluated.

    Args:
        x: array of any shape: NumPy's (with ml_dtypes), torch's on the CPU, MLX's, JAX's, with the
            buffer protocol, or with CPU DLPack; or bool, int, float, complex.
        writable: x is an ``out=``: a copy would not do, and it must allow writing.

    Raises:
        TypeError: not an array; on another device; a dtype that is not supported; a torch tensor
            that requires grad; a JAX array to be written.
        ValueError: an ``out=`` that is read-only or not contiguous.

    >>> import array, standfast
    >>> wire = standfast.as_wire(array.array("f", [1, 2, 3]))
    >>> wire.nbytes, wire.elements, wire.shape, standfast.dtypes.NAMES[wire.dtype]
    (12, 3, (3,), 'float32')
    """
    kind = kinds.BY_TYPE.get(type(x)) or kind_of(x)
    return kind.wire(x, writable)


def out_wire(out: Any, dtype: int, shape: tuple[int, ...], what: str) -> Wire:
    """Find the memory of an ``out=`` for a result of this dtype and shape.

    Raises:
        TypeError: as as_wire(); the wrong dtype.
        ValueError: as as_wire(); the wrong shape.
    """
    wire = as_wire(out, writable=True)
    if wire.dtype != dtype:
        raise TypeError(
            f"out has dtype {dtypes.NAMES[wire.dtype]}, but {what} gives {dtypes.NAMES[dtype]}"
        )
    if wire.shape != shape:
        raise ValueError(f"out has shape {wire.shape}, but {what} gives shape {shape}")
    return wire


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a new array of x's sort and dtype with undefined contents.

    For bytes, JAX arrays and scalars, which cannot be written, it is the memory from which the
    sort's ``finish()`` makes them.
    """
    wire = as_wire(x)
    return wire.kind.make(wire.dtype, shape)


def overlap(a: Wire, b: Wire) -> bool:
    """Tell whether two arrays share any byte."""
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes


def element_type(dtype: Any) -> tuple[Kind, int]:
    """Return the kind and dtype code that a recv's dtype stands for.

    Args:
        dtype: a name such as ``"float32"``, a NumPy, torch or MLX dtype, or bool, int, float.

    Raises:
        TypeError: it is none of these, or not a supported dtype.
    """
    if isinstance(dtype, str) and dtype in dtypes.CODES:
        return kinds.default(), dtypes.CODES[dtype]
    torch, mx, numpy = (sys.modules.get(name) for name in ("torch", "mlx.core", "numpy"))
    if torch is not None and isinstance(dtype, torch.dtype):
        return kinds.TORCH, _supported(kinds.TORCH.codes().get(dtype), dtype)
    if mx is not None and isinstance(dtype, mx.Dtype):
        return kinds.MLX, _supported(dtypes.CODES.get(str(dtype).rpartition(".")[2]), dtype)
    if isinstance(dtype, type) and dtype in kinds.SCALARS:
        return kinds.default(), kinds.SCALARS[dtype]
    if numpy is None:
        return kinds.default(), _supported(None, dtype)
    try:
        found = numpy.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype is {dtype!r}, which is no dtype: {error}") from None
    return kinds.NUMPY, _supported(dtypes.CODES.get(found.name) if found.isnative else None, dtype)


def _supported(code: int | None, dtype: Any) -> int:
    if code is None:
        raise TypeError(
            f"dtype is {dtype!r}; supported are {dtypes.SUPPORTED} in native byte order"
        )
    return code


def kind_of(x: Any) -> Kind:
    """Find the kind of x, and remember it for its type."""
    kind = _kind_of(x)
    kinds.BY_TYPE[type(x)] = kind
    return kind


def _kind_of(x: Any) -> Kind:
    numpy, torch, jax = (sys.modules.get(name) for name in ("numpy", "torch", "jax"))
    if numpy is not None and isinstance(x, numpy.ndarray):
        if isinstance(x, numpy.ma.MaskedArray):
            raise TypeError("x is a masked array, whose mask would be lost; pass x.filled(...)")
        kinds.NUMPY.teach()
        return kinds.NUMPY
    if numpy is not None and isinstance(x, numpy.generic):
        return kinds.NUMPY_SCALAR
    if torch is not None and isinstance(x, torch.Tensor):
        return kinds.TORCH
    if type(x).__module__ == "mlx.core" and type(x).__name__ == "array":
        return kinds.MLX
    if jax is not None and isinstance(x, jax.Array):
        return kinds.JAX
    for base, kind in ((bytes, kinds.BYTES), (bytearray, kinds.BYTEARRAY)):
        if isinstance(x, base):
            return kind
    return _kind_by_protocol(x)


def _kind_by_protocol(x: Any) -> Kind:
    try:
        memoryview(x)
    except TypeError:
        pass
    except (BufferError, ValueError):
        return kinds.BUFFER
    else:
        return kinds.BUFFER
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return kinds.DLPACK
    hint = ""
    if isinstance(x, (list, tuple)):
        hint = ": pass an array of it, such as numpy.asarray(x)"
    elif isinstance(x, str):
        hint = ": pass x.encode()"
    elif x is None:
        hint = ": this rank has to pass an array"
    raise TypeError(f"x is a {type(x).__name__}, which is no array{hint}")
