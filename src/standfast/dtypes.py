"""The element types that travel: codes (those of core/base/dtype.h), names, sizes, buffer formats.

Imports nothing: names of other libraries' types are compared as text.
"""

from __future__ import annotations

import struct
from typing import Final

BOOL: Final = 0
INT64: Final = 4
UINT8: Final = 5
BFLOAT16: Final = 10
FLOAT64: Final = 12
COMPLEX64: Final = 13

NAMES: Final = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
)
SIZES: Final = (1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8)
"""Bytes per element, by code."""

FORMATS: Final = ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "bfloat16", "f", "d", "Zf")
"""Buffer formats by code, as PEP 3118 has them; bfloat16's is MLX's, which PEP 3118 lacks."""

SUPPORTED: Final = (
    "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64 and complex64"
)

CODES: Final = {name: code for code, name in enumerate(NAMES)}


def _formats() -> dict[str, int]:
    """Map every spelling of a native buffer format to its code; `l` depends on the platform."""
    codes = {form: code for code, form in enumerate(FORMATS)}
    for letter in "lnLN":
        sign = "int" if letter in "ln" else "uint"
        codes[letter] = CODES[f"{sign}{8 * struct.calcsize(letter)}"]
    codes["c"] = UINT8
    native = {f"@{form}": code for form, code in codes.items()}
    standard = {f"{mark}{form}": code for code, form in enumerate(FORMATS) for mark in "<="}
    return codes | native | standard


BY_FORMAT: Final = _formats()


def from_format(form: str) -> int | None:
    """Return the code for a buffer format in native byte order, or None."""
    return BY_FORMAT.get(form)


def shape_text(dtype: int, shape: tuple[int, ...]) -> str:
    """Return e.g. ``float32[4,3]``; a 0-d array is ``float32[]``."""
    return f"{NAMES[dtype]}[{','.join(map(str, shape))}]"
