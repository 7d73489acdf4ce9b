"""Reads a DLPack capsule of CPU memory with ctypes; for libraries that arrays.py has no kind for.

Layouts from dlpack.h 1.1 (https://github.com/dmlc/dlpack). The capsule is not consumed: it stays
the owner, and its own destructor frees the tensor.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from standfast import dtypes

CPU_DEVICES = {1: "cpu", 3: "cuda pinned host memory", 11: "rocm pinned host memory"}
OTHER_DEVICES = {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda managed", 14: "oneapi"}
READ_ONLY = 1

_CODES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (6, 8): "bool",
}


class _Tensor(ctypes.Structure):
    """A DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """A DLManagedTensorVersioned, which begins differently from the older DLManagedTensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class View(NamedTuple):
    """What a capsule says. dtype is None where it is none of ours; dtype_text always says it."""

    address: int
    shape: tuple[int, ...]
    dtype: int | None
    dtype_text: str
    contiguous: bool
    readonly: bool
    capsule: object


def device(x: Any) -> str | None:
    """Return None for memory that this process can read, or else the name of x's device."""
    kind, index = x.__dlpack_device__()
    if int(kind) in CPU_DEVICES:
        return None
    return f"{OTHER_DEVICES.get(int(kind), f'DLPack device type {int(kind)}')}:{index}"


def view(x: Any) -> View:
    """Return what x's capsule says. x must be in this process's memory."""
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # made before DLPack 1.0
        capsule = x.__dlpack__()
    pointer = _pointer(capsule, b"dltensor_versioned")
    if pointer is not None:
        versioned = _Versioned.from_address(pointer)
        return _view(versioned.tensor, bool(versioned.flags & READ_ONLY), capsule)
    pointer = _pointer(capsule, b"dltensor")
    if pointer is None:
        raise TypeError(f"{type(x).__name__}.__dlpack__ returned no DLPack capsule")
    return _view(_Tensor.from_address(pointer), False, capsule)


def _pointer(capsule: object, name: bytes) -> int | None:
    """Return the capsule's pointer if it has this name."""
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.argtypes, valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    if not valid(capsule, name):
        return None
    pointer: int | None = get(capsule, name)
    return pointer


def _view(tensor: _Tensor, readonly: bool, capsule: object) -> View:
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))
    name = _CODES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return View(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        dtype=None if name is None else dtypes.CODES[name],
        dtype_text=name or f"DLPack type {tensor.code} of {tensor.bits} bits x {tensor.lanes}",
        contiguous=strides is None or _contiguous(shape, strides),
        readonly=readonly,
        capsule=capsule,
    )


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether strides, counted in elements, are those of C order."""
    if 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
