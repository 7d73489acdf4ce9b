"""Every fabric and topology, 2 to 8 ranks: all operations agree with NumPy, and all ranks agree."""

from __future__ import annotations

import pytest

from tests import emulated
from tests.conformance import cases
from tests.ranks import Pool

FAMILIES = {
    "reductions": ["small_reductions", "border_reductions", "named_forms", "special_values"],
    "random": ["random_sums", "sequences"],
    "moves": ["gathers", "gather_shapes", "gather_of_bytes", "broadcasts", "all_to_alls"],
    "scatter": ["scatters", "scatter_refused"],
    "messages": ["messages", "many_messages"],
    "manners": ["together", "layouts", "mistakes"],
}


def test_every_case_runs() -> None:
    """No case is forgotten."""
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(cases.CASES)


# Over RDMA, which is emulated, one group of each kind of size has to do.
PLACES = [
    *((fabric, size) for fabric in ("shm", "tcp") for size in range(2, 9)),
    *(("verbs", size) for size in (2, 3, 4, 8)),
]


@pytest.mark.parametrize("topology", ["mesh", "ring"])
@pytest.mark.parametrize(("fabric", "size"), PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_conformance(pool: Pool, family: str, fabric: str, topology: str, size: int) -> None:
    """The family's cases hold on every rank, with the same bits and the same errors."""
    init = {"fabric": fabric, "topology": topology}
    ended = pool.run(size, cases.run, FAMILIES[family], init=init, timeout_s=100)
    for name in FAMILIES[family]:
        alike = {rank.value[name] for rank in ended}
        assert len(alike) == 1, f"{name} differs among ranks: {alike}"


@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_ring_of_cables(pool: Pool, family: str, size: int) -> None:
    """So they do over RDMA between neighbours, where no other ranks have a cable."""
    init = {"fabric": "verbs", "devices": emulated.ring(size)}
    ended = pool.run(size, cases.run, FAMILIES[family], init=init, timeout_s=100)
    for name in FAMILIES[family]:
        alike = {rank.value[name] for rank in ended}
        assert len(alike) == 1, f"{name} differs among ranks: {alike}"
