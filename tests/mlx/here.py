"""Whether the native module of standfast-mlx is here, for the tests that need it."""

from __future__ import annotations

import pytest


def why_skipped() -> str:
    """Return why MLX's groups cannot be made here, or ""."""
    try:
        import mlx.core  # noqa: F401 - `mlx` alone may be the folder of this repository
    except ImportError:
        return "MLX is not installed"
    from standfast.mlx import why_not

    return why_not() or ""


needs_extension = pytest.mark.skipif(bool(why_skipped()), reason=why_skipped() or "never")
