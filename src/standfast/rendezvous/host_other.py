"""What tells one machine from all others where there is no /proc: macOS."""

from __future__ import annotations

import ctypes
import uuid

BOOT_SESSION = b"kern.bootsessionuuid"


def identities() -> list[str]:
    """Return the hardware's number, and this boot's where the system tells it."""
    return [f"{uuid.getnode():012x}", _sysctl(BOOT_SESSION)]


def _sysctl(name: bytes) -> str:
    try:
        read = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return ""
    value = ctypes.create_string_buffer(128)
    length = ctypes.c_size_t(len(value))
    failed = read(name, value, ctypes.byref(length), None, ctypes.c_size_t(0))
    return "" if failed else value.value.decode("ascii", "replace")
