"""Loads the native module of standfast-mlx, once it has seen that it fits the MLX that is here."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import mlx.core as mx

from standfast import mlx_versions as versions
from standfast.errors import ConfigError


class Misfit(Exception):
    """The native module is not there, or cannot be used; the text says why."""


@functools.cache
def _load() -> Any:
    try:
        built = importlib.import_module("standfast_mlx")
    except ImportError as error:
        raise Misfit(f"standfast-mlx is not installed ({error})") from error
    found: str = mx.__version__
    trouble = versions.objection(found, built.MLX_VERSION)
    if trouble is not None:
        raise Misfit(trouble)
    try:
        native = importlib.import_module("standfast_mlx._group")
    except ImportError as error:
        raise Misfit(
            f"standfast-mlx, built for MLX {built.MLX_VERSION}, cannot be loaded beside MLX "
            f"{found}: {error}"
        ) from error
    if not native.knows_mlx():
        raise Misfit(versions.foreign_abi(found, built.MLX_VERSION, built.NANOBIND_ABI))
    return native


def why_not() -> str | None:
    """Say why ``init()`` cannot make groups of MLX's here, or return None if it can."""
    try:
        _load()
    except Misfit as trouble:
        return str(trouble)
    return None


def native() -> Any:
    """Return the native module.

    Raises:
        ConfigError: it is not there, or does not fit this MLX.
    """
    try:
        return _load()
    except Misfit as trouble:
        raise ConfigError(
            f"standfast.mlx.init() cannot make a group of MLX's: {trouble}",
            hint="pip install standfast-mlx; without it, pass a group of standfast.init() to "
            "standfast.mlx.all_sum(x, group=group), which is computed at once",
        ) from trouble
