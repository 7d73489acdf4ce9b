"""standfast on a cluster of Ray: ranks of its own, or the collectives of Ray's actors.

    import standfast.ray

    results = standfast.ray.run(train, ranks=4, args=(20,), strategy="STRICT_SPREAD", restarts=3)

has actors in a placement group start ranks, watch them and replace them, as does the command
`standfast run --on ray -n 4 -- python train.py`; docs/design/ray.md has the picture.

    standfast.ray.register()
    ray.util.collective.init_collective_group(4, rank, "standfast")

gives actors that a program has started itself a group; docs/how-to/ray.md. Ray is imported only
where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.ray.api import run
    from standfast.ray.failures import RayJobFailed
    from standfast.ray.registration import register

__all__ = ["RayJobFailed", "register", "run"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: the command line needs none of it."""
    if name == "run":
        from standfast.ray.api import run

        return run
    if name == "RayJobFailed":
        from standfast.ray.failures import RayJobFailed

        return RayJobFailed
    if name == "register":
        from standfast.ray.registration import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
