"""The version of the package that is installed."""

from __future__ import annotations


def version() -> str:
    """Return it, or say that nothing is installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("standfast")
    except PackageNotFoundError:
        return "unknown (not installed)"
