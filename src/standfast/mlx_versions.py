"""Which MLX goes with which build of standfast-mlx: pure, no MLX needed."""

from __future__ import annotations

import re

# Before it, an error that meets a memoryview, with 0.32.2 async_eval() too, aborts the process
# (tests/mlx/test_failures.py was run with each).
OLDEST = (0, 32, 4)
Version = tuple[int, int, int]


def parse(text: str) -> Version | None:
    """Return the three numbers with which a version begins, or None."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def objection(found: str, built_for: str) -> str | None:
    """Say why MLX `found` cannot be used by a native module that was built for another, or None.

    MLX's group interface has no promise of staying as it is, so only the minor version for which
    the module was built will do.
    """
    here, built = parse(found), parse(built_for)
    if here is None or built is None:
        return f"MLX calls itself {found!r}: that is no version such as {built_for}"
    if here < OLDEST:
        return (
            f"MLX {found} is too old: before 0.32.4 an error in its communication thread, such as "
            f"a lost peer, can abort the whole process; pip install 'mlx>=0.32.4'"
        )
    if here[:2] != built[:2]:
        return (
            f"standfast-mlx was built for MLX {built_for}, and this is {found}: the two may not "
            f"agree about what a group is; install the standfast-mlx for this MLX, or build it: "
            f"pip install --force-reinstall --no-binary standfast-mlx standfast-mlx"
        )
    return None


def foreign_abi(found: str, built_for: str, abi: str) -> str:
    """Say that MLX and the native module were built with nanobinds that do not fit together."""
    return (
        f"standfast-mlx was built for MLX {built_for} and version {abi} of nanobind's internals; "
        f"MLX {found} has another one, so that the two cannot exchange objects; build it for this "
        f"MLX: pip install --force-reinstall --no-binary standfast-mlx standfast-mlx"
    )
