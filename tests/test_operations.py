"""operations.py and splitting.py where they need no group: plans, metas, blobs, teams."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import kinds, operations, splitting
from standfast.arrays import as_wire
from standfast.operations import Member

TWO = Member(0, 2)


@given(
    dtype=st.integers(0, 13),
    share=st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    kind=st.sampled_from([kinds.NUMPY, kinds.BUFFER, kinds.BYTES, kinds.PYARRAY]),
)
def test_scatter_meta(dtype: int, share: tuple[int, ...], kind: kinds.Kind) -> None:
    """What the root says about its shares is read back as it was."""
    meta = operations.scatter_meta(kind, dtype, share)
    assert operations.read_scatter_meta(meta) == (kind, dtype, share)


@given(st.lists(st.binary(max_size=50)))
def test_split_bytes(texts: list[bytes]) -> None:
    """A gathered blob is taken apart into each rank's bytes, empty ones too."""
    blob = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    assert operations.split_bytes(memoryview(blob)) == texts


def test_scatter_with_another_out_than_the_root_sends() -> None:
    """A non-root whose out does not fit hears so after the exchange; other ranks are not harmed."""
    meta = operations.scatter_meta(kinds.NUMPY, 11, (2,))
    blob = memoryview(struct.pack("<I", len(meta)) + meta + np.ones(2, np.float32).tobytes())
    out = np.zeros(2, np.float32)
    target = as_wire(out, writable=True)
    assert operations.scattered(blob, out, target) is out
    assert out.tolist() == [1, 1]
    wrong = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"out has shape \(3,\), but scatter gives shape \(2,\)"):
        operations.scattered(blob, wrong, as_wire(wrong, writable=True))


def test_plans_say_what_they_are() -> None:
    """Names and arrays of a plan are the words of error messages."""
    x = np.zeros((4, 2), np.float32)
    plans = {
        "all_sum": operations.all_reduce(TWO, x, "sum", None, None),
        "all_prod": operations.all_reduce(TWO, x, "prod", None, None),
        "sum_scatter": operations.reduce_scatter(TWO, x, "sum", None, None),
        "reduce_scatter": operations.reduce_scatter(TWO, x, "max", None, None),
        "all_to_all": operations.all_to_all(TWO, x, None, None),
        "gather": operations.gather(TWO, x, 1, None, None),
        "send": operations.send(TWO, x, 1, 0, None),
        "recv": operations.recv(TWO, (4, 2), "float32", 1, 0, None, None),
    }
    for name, plan in plans.items():
        assert (plan.name, plan.describe()) == (name, "float32[4,2]")
    assert operations.barrier(TWO, None).describe() == ""
    assert operations.send(TWO, 1.5, 1, 0, None).describe() == "float64[]"


@pytest.mark.parametrize("out", ["part", "shifted"])
def test_overlapping_outs_are_refused(out: str) -> None:
    """Memory that is read and written by one operation is x itself, or not shared at all."""
    memory = np.zeros(8, np.float32)
    x = memory[:4]
    shared = {"part": memory[2:6], "shifted": memory[1:5]}[out]
    makes: list[Callable[[], Any]] = [
        lambda: operations.all_reduce(TWO, x, "sum", shared, None),
        lambda: operations.broadcast(TWO, x, 0, shared, None),
        lambda: operations.all_to_all(TWO, x, shared, None),
        lambda: operations.reduce_scatter(TWO, x, "sum", shared[:2], None),
    ]
    for make in makes:
        with pytest.raises(ValueError, match="out overlaps x"):
            make()
    with pytest.raises(ValueError, match="they may only share x's own place in out"):
        operations.all_gather(Member(1, 2), x, memory, None)
    operations.all_gather(TWO, x, memory, None)
    operations.all_reduce(TWO, x, "sum", memory[:4], None)


@pytest.mark.parametrize(
    ("timeout_s", "found"), [(None, 0.0), (3, 3.0), (0.25, 0.25), (np.float32(2), 2.0)]
)
def test_seconds(timeout_s: Any, found: float) -> None:
    """No limit is 0 for the core; anything else is a number of seconds."""
    assert operations.seconds(timeout_s) == found


# --- splitting ------------------------------------------------------------------------------------


def test_teams() -> None:
    """Ranks of a color belong together, ordered by key, then by old rank; -1 belongs nowhere."""
    entries = [(0, 3), (1, -1), (0, 3), (-1, 0), (0, -7), (1, -1)]
    assert splitting.teams(entries) == {0: [4, 0, 2], 1: [1, 5]}


@pytest.mark.parametrize(
    ("color", "key", "found"),
    [(None, -1, (-1, -1)), (-5, 2, (-1, 2)), (3, -9, (3, -9)), (np.int8(2), True, (2, 1))],
)
def test_colors_and_keys(color: Any, key: Any, found: tuple[int, int]) -> None:
    """None and every negative color mean none; numbers of other libraries are numbers."""
    assert splitting.check(color, key) == found


def test_colors_and_keys_that_are_none() -> None:
    """Texts, fractions and numbers beyond 64 bits are refused."""
    wrong: Any
    for wrong in ("red", 1.5):
        with pytest.raises(TypeError):
            splitting.check(wrong, 0)
    with pytest.raises(ValueError, match="color is 9223372036854775808, which does not fit"):
        splitting.check(2**63, 0)
    with pytest.raises(ValueError, match="key is -9223372036854775809"):
        splitting.check(0, -(2**63) - 1)
