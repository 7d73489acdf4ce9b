"""What MLX's own tests ask of a backend, on our groups."""

from __future__ import annotations

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from tests.mlx import programs
from tests.mlx.here import needs_extension
from tests.ranks import Pool

pytestmark = needs_extension


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", programs.CASES)
def test_case(pool: Pool, case: str, size: int, fabric: str) -> None:
    """Every case of MLX's backends holds, with the results of one process."""
    pool.run(size, programs.run_case, case, init={"fabric": fabric}, form=False)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("case", programs.GRIDS)
def test_groups_in_groups(pool: Pool, case: str, size: int) -> None:
    """split() makes groups of MLX's within groups, which its ring cannot."""
    pool.run(size, programs.run_case, case, init={"fabric": "shm"}, form=False)
