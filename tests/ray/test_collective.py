"""ray.util.collective over standfast: actors of the real Ray, one of them killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ray.real import PYTHON, ROOT, missing, run

JOB = Path(__file__).with_name("collective_job.py")
REASON = missing("ray.util.collective", "torch")
SIZE, VICTIM = 3, 1
# A death is known within milliseconds; a busy machine may take its time to run who knows it.
KNOWN_S = 20.0
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(240),
]

REFUSALS = [
    "ValueError: allreduce writes into its array, and this one is read-only, as all are that come"
    " out of Ray's object store: pass array.copy()",
    "TypeError: x is a torch Tensor on meta; only CPU memory can be sent",
    "TypeError: x has dtype complex128; supported are",
    "TypeError: x is a torch.sparse_coo tensor; pass a dense one",
    "ValueError: allgather: tensor 0 of the list is float64[3], and must be like float64[2]",
    "ValueError: allreduce got 2 tensors: the backend standfast carries one CPU tensor per rank",
    "ValueError: allgather got 4 tensors for 3 ranks",
    "TypeError: allreduce of a builtins.list: the backend standfast carries NumPy arrays and torch",
    "ValueError: send of 1 elements of a tensor: the backend standfast sends whole tensors",
]


def test_operations() -> None:
    """Every operation on every sort of array, in groups formed in each of Ray's ways."""
    told = run(JOB, "operations", SIZE)
    assert told["joined"] == [0, 1, 2]
    assert told["ran"] == [told["ran"][0]] * SIZE
    assert len(told["ran"][0]) == 28
    assert told["sums"] == [3] * (3 * SIZE)
    for refused in told["refused"]:
        assert len(refused) == len(REFUSALS)
        for found, wanted in zip(refused, REFUSALS, strict=True):
            assert found.startswith(wanted)


@pytest.fixture(scope="module")
def deaths() -> Any:
    """The story of a group that lost a rank in each operation and was formed again each time."""
    return run(JOB, "death", SIZE)


@pytest.mark.parametrize("what", ["allreduce", "barrier", "allgather", "reducescatter", "message"])
def test_death(deaths: Any, what: str) -> None:
    """Every surviving actor gets PeerDied with rank, host and why, soon."""
    ends = deaths["ends"][what]
    assert [end["here"] for end in ends] == [0, 2]
    for end in ends:
        assert (end["type"], end["rank"]) == ("PeerDied", VICTIM), end
        assert end["host"]
        assert end["cause"]
        assert f"rank {VICTIM} of group 'ray:default' on {end['host']} died" in end["message"]
        assert end["after_s"] < KNOWN_S, end


def test_the_driver_gets_what_an_actor_raises(deaths: Any) -> None:
    """ray.get() of a survivor's call raises our PeerDied with its fields; ray.kill() is a death."""
    first, victim, third = deaths["raised"]
    assert victim == [VICTIM]
    for number, told in ((0, first), (2, third)):
        assert told[:2] == [number, VICTIM]
        assert told[2]
        assert f"rank {VICTIM} of group 'ray:default'" in told[3]


def test_the_page() -> None:
    """The programs of docs/how-to/ray.md print what it says."""
    without = missing("ray.train.torch")
    if without is not None:
        pytest.skip(without)
    done = subprocess.run(
        [PYTHON, "-m", "tests.docs.pages", "docs/how-to/ray.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
