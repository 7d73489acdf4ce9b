"""Ranks on a cluster of Ray: actors in a placement group start them, watch them, replace them.

    import standfast.ray

    results = standfast.ray.run(train, ranks=4, args=(20,), strategy="STRICT_SPREAD", restarts=3)

The same from the command line: `standfast run --on ray -n 4 -- python train.py`. Ray is imported
only where it is used; docs/design/ray.md has the picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.ray.api import run
    from standfast.ray.failures import RayJobFailed

__all__ = ["RayJobFailed", "run"]


def __getattr__(name: str) -> Any:
    """Import what run() needs when it is asked for: the command line needs none of it."""
    if name == "run":
        from standfast.ray.api import run

        return run
    if name == "RayJobFailed":
        from standfast.ray.failures import RayJobFailed

        return RayJobFailed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
