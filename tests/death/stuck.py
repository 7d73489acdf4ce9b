"""A thread of a rank is stopped in the middle of the core, while all its other threads go on.

The operation's result goes to a page that cannot be written: the store raises SIGSEGV in the very
thread that copies data in, and the handler holds it there until it is let go. Only over shared
memory: from a socket it is the kernel that writes.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.signal.restype = ctypes.c_void_p
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: list[Any] = []


def _protect(address: int, bytes_: int, how: int) -> None:
    if _libc.mprotect(address, bytes_, how) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def trapped(pages: int, trap: int, hold: Callable[[], None]) -> np.ndarray[Any, Any]:
    """Return an array of bytes; whoever first writes into its page `trap` runs hold() there."""
    memory = mmap.mmap(-1, pages * PAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    address = array.ctypes.data + trap * PAGE
    array[:] = 0  # all pages exist

    def held(number: int) -> None:
        try:
            hold()
        finally:
            _protect(address, PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
            _libc.signal(signal.SIGSEGV, None)

    handler = _HANDLER(held)
    _kept.extend((memory, handler))
    _libc.signal(signal.SIGSEGV, ctypes.cast(handler, ctypes.c_void_p))
    _protect(address, PAGE, mmap.PROT_READ)
    return array
