"""NumPy arrays and torch tensors on the CPU as Ray's collectives pass them. Pure but for copies.

collective.py is the caller. Ray's functions work in place, on arrays of any strides: an operation
gets the array's own memory where it is contiguous, and a copy that is brought back where it is not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from standfast import dtypes
from standfast.arrays import as_wire, empty_like

Finish = Callable[[], None]


def only(tensors: Any, what: str) -> Any:
    """Return the one tensor of a list.

    Raises:
        ValueError: there are several: one for each GPU of the process.
    """
    if not isinstance(tensors, list):
        return tensors
    if len(tensors) != 1:
        raise ValueError(
            f"{what} got {len(tensors)} tensors: the backend standfast carries one CPU tensor per"
            " rank; forms for several GPUs in one process are NCCL's"
        )
    return tensors[0]


def check(x: Any, what: str, *, written: bool = False) -> Any:
    """Refuse what cannot travel, before any byte is sent; return x without its gradient.

    Args:
        x: array of any shape and strides.
        what: the operation, for messages.
        written: the operation writes into x.

    Raises:
        TypeError: neither a NumPy array nor a torch tensor; not on the CPU; a dtype that is not
            supported.
        ValueError: it would be written, and is read-only.
    """
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach()
    elif numpy is None or not isinstance(x, numpy.ndarray):
        raise TypeError(
            f"{what} of a {type(x).__module__}.{type(x).__name__}: the backend standfast carries"
            " NumPy arrays and torch tensors on the CPU; copy it there first"
        )
    elif written and not x.flags.writeable:
        raise ValueError(
            f"{what} writes into its array, and this one is read-only, as all are that come out of"
            " Ray's object store: pass array.copy()"
        )
    _type_of(x)
    return x


def _type_of(x: Any) -> tuple[int, int]:
    """Return dtype code and number of elements, without a copy; TypeError if x cannot travel."""
    is_dense = str(getattr(x, "layout", "torch.strided")) == "torch.strided"
    probe = x[:0] if is_dense and not is_plain(x) else x
    return as_wire(probe).dtype, math.prod(x.shape)


def is_plain(x: Any) -> bool:
    """Tell whether the memory holds the elements in C order, without gaps or pending negations."""
    if hasattr(x, "flags"):
        return bool(x.flags.c_contiguous)
    return bool(x.is_contiguous() and not x.is_conj() and not x.is_neg())


def target(x: Any) -> tuple[Any, Finish | None]:
    """Return contiguous memory like x for a result, and what brings it into x if it is not x's."""
    if is_plain(x):
        return x, None
    made = empty_like(x, tuple(x.shape))
    return made, lambda: copy(x, made)


def copy(into: Any, source: Any) -> None:
    """Copy the elements of one array into another of as many; either may be torch's."""
    source = source.reshape(tuple(into.shape))
    if hasattr(into, "copy_"):
        into.copy_(source if hasattr(source, "copy_") else _as_torch(source, into.dtype))
    else:
        into[...] = _as_numpy(source, into.dtype) if hasattr(source, "copy_") else source


def _as_torch(x: Any, dtype: Any) -> Any:
    """See an ndarray as a tensor. torch has bfloat16 where NumPy has ml_dtypes', by its bits."""
    torch: Any = sys.modules["torch"]
    bits = x if dtype != torch.bfloat16 else x.view("int16")
    return torch.from_numpy(bits).view(dtype)


def _as_numpy(x: Any, dtype: Any) -> Any:
    """Undo _as_torch()."""
    torch: Any = sys.modules["torch"]
    return (x if x.dtype != torch.bfloat16 else x.view(torch.int16)).numpy().view(dtype)


def same(tensors: Sequence[Any], like: Any, what: str) -> None:
    """Check that tensors have the dtype and number of elements of another.

    Raises:
        ValueError: they have not.
    """
    wanted = _type_of(like)
    for number, tensor in enumerate(tensors):
        found = _type_of(tensor)
        if found != wanted:
            raise ValueError(
                f"{what}: tensor {number} of the list is"
                f" {dtypes.shape_text(found[0], tuple(tensor.shape))}, and must be like"
                f" {dtypes.shape_text(wanted[0], tuple(like.shape))}"
            )


def joined(tensors: Sequence[Any]) -> Any:
    """Copy tensors of one size into a new one-dimensional one, one after the other."""
    length = math.prod(tensors[0].shape)
    whole = empty_like(tensors[0], (len(tensors) * length,))
    for number, tensor in enumerate(tensors):
        copy(whole[number * length : (number + 1) * length], tensor)
    return whole


def part(whole: Any, tensors: Sequence[Any]) -> None:
    """Undo joined(): copy the parts of a one-dimensional tensor into the tensors of a list."""
    length = whole.shape[0] // len(tensors)
    for number, tensor in enumerate(tensors):
        copy(tensor, whole[number * length : (number + 1) * length])
