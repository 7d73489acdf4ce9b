"""Arrays that ranks of one host read in place: standfast.empty().

Operations know such memory by its address, so every array that is made of it counts: slices, views,
`torch.from_numpy(...)`. Where ranks are not on one host it is memory like any other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from standfast import _core, dtypes, kinds
from standfast.arrays import element_type

__all__ = ["empty"]


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """Return a new array in memory that the other ranks of this host can read.

    Large messages from and to such arrays skip a copy: the others read them where they lie. An
    operation on them returns when nobody reads any more, so a ``send`` of more than 256 KiB waits
    for its ``recv``, as it may with any other memory. The contents are undefined. A process that
    forks shares these arrays with its child: what either writes, both see.

    Args:
        shape: an extent, or one for each axis.
        dtype: a name such as ``"float32"``, or a dtype of NumPy.

    Returns:
        A NumPy array where NumPy is installed, otherwise a memoryview. The memory is given back
        when the last array of it goes.

    Raises:
        TypeError: dtype is none, or is not supported.
        ValueError: an extent is negative.
        MemoryError: there is not so much memory.

    >>> import standfast
    >>> x = standfast.empty((4, 3), "float16")
    >>> x.shape, x.dtype.name
    ((4, 3), 'float16')
    """
    extents = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape is {extents}; extents must not be negative")
    _, code = element_type(dtype)
    kind = _kind()
    nbytes = math.prod(extents) * dtypes.SIZES[code]
    if nbytes == 0:
        return kind.make(code, extents)
    try:
        memory = _core.shared_memory(nbytes)
    except MemoryError:
        raise MemoryError(
            f"no shared memory for {dtypes.shape_text(code, extents)}, {nbytes} bytes;"
            f" {_core.shared_memory_taken()} bytes are in use by arrays of standfast.empty()"
        ) from None
    if memory is None:
        return kind.make(code, extents)
    return kind.adopt(memory, code, extents)


def _kind() -> kinds.NumPy | kinds.Buffer:
    """Prefer NumPy, if need be by loading it."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        return kinds.BUFFER
    return kinds.NUMPY
