"""standfast.mlx without its native module: eager functions on MLX arrays, and words about it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

import mlx.core as mx

import standfast.mlx
from tests.mlx import exchanging
from tests.mlx.here import needs_extension
from tests.ranks import Pool

WITHOUT = """
import sys
sys.modules["standfast_mlx"] = None  # as if it were not installed
import standfast.mlx
print(standfast.mlx.why_not())
try:
    standfast.mlx.init(rank=0, size=1)
except standfast.ConfigError as error:
    print(error)
"""
MISFIT = """
import sys, types
import mlx.core
fake = types.ModuleType("standfast_mlx")
fake.MLX_VERSION, fake.NANOBIND_ABI = "0.31.2", "19"
sys.modules["standfast_mlx"] = fake
import standfast.mlx
print(standfast.mlx.why_not())
"""


def said(program: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eager(pool: Pool) -> None:
    """MLX's functions, on a group of standfast.init(): MLX arrays in and out, at once."""
    pool.run(3, exchanging.eagerly)


def test_without_the_native_module() -> None:
    """init() says what to install, and what works without."""
    text = said(WITHOUT)
    assert text.startswith("standfast-mlx is not installed")
    assert "standfast.mlx.init() cannot make a group of MLX's: standfast-mlx is not" in text
    assert "hint: pip install standfast-mlx; without it, pass a group of standfast.init()" in text


def test_with_one_built_for_another_mlx() -> None:
    """It is not even loaded."""
    assert f"was built for MLX 0.31.2, and this is {mx.__version__}" in said(MISFIT)


def test_a_group_of_others() -> None:
    """Only our groups have a last failure."""
    with pytest.raises(TypeError, match=r"is not a group of standfast.mlx.init\(\)"):
        standfast.mlx.last_failure(mx.distributed.init())


@needs_extension
def test_a_group_of_one() -> None:
    """It is a group of MLX's, too; and min_size refuses it."""
    with standfast.mlx.init(rank=0, size=1) as group:
        assert isinstance(group, mx.distributed.Group)
        assert (group.rank(), group.size()) == (0, 1)
        assert mx.array_equal(mx.distributed.all_sum(mx.ones(2), group=group), mx.ones(2)).item()
        assert standfast.mlx.last_failure(group) is None
        assert "rank 0 of 1, open" in repr(group)
    with pytest.raises(standfast.ConfigError, match="the group has 1 ranks; min_size=2"):
        standfast.mlx.init(rank=0, size=1, min_size=2)
