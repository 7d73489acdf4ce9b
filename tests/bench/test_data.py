"""The second computation: right results are found right, and every sort of damage is counted."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from standfast import dtypes
from standfast.bench import data
from standfast.bench.adapters import buffers
from standfast.bench.plan import OPERATIONS, Cell, cells, is_meaningful

RANKS = 3
COUNT = 3 * data.PERIOD + 17


def run_by_hand(cell: Cell, ranks: int) -> list[data.Array]:
    """Do the operation on all ranks' inputs in the plainest way; return each rank's result."""
    inputs, results = [], []
    for rank in range(ranks):
        source, target = buffers(cell, rank, ranks)
        if len(source):
            data.fill(source, data.row(cell, rank, ranks))
        inputs.append(source.copy())
        results.append(target)
    count, root = cell.count(ranks), cell.root
    for rank, result in enumerate(results):
        match cell.op:
            case "all_reduce":
                result[:] = by_hand(cell, inputs)
            case "reduce_scatter":
                result[:] = by_hand(cell, inputs)[rank * count :][:count]
            case "all_gather":
                result[:] = np.concatenate(inputs)
            case "gather" if rank == root:
                result[:] = np.concatenate(inputs)
            case "scatter":
                result[:] = inputs[root][rank * count :][:count]
            case "broadcast":
                result[:] = inputs[root]
            case "all_to_all":
                result[:] = np.concatenate([x[rank * count :][:count] for x in inputs])
            case "send_recv":
                result[:] = inputs[(rank - 1) % ranks]
            case "ping_pong":
                result[:] = inputs[1 - rank]
    return results


def by_hand(cell: Cell, inputs: list[data.Array]) -> data.Array:
    """Reduce in float64 or complex128, where everything is exact, or in the integers' own type."""
    if cell.dtype == "bool":
        both = np.logical_or if cell.redop in ("sum", "max") else np.logical_and
        return functools.reduce(both, inputs)
    wide = {"f": np.float64, "V": np.float64, "c": np.complex128}.get(inputs[0].dtype.kind)
    with np.errstate(over="ignore"):
        found = functools.reduce(
            data.COMBINE[cell.redop], [x.astype(wide) if wide else x for x in inputs]
        )
    return found.astype(inputs[0].dtype)


@pytest.mark.parametrize("dtype", dtypes.NAMES)
@pytest.mark.parametrize("op", [name for name in OPERATIONS if name != "barrier"])
def test_right_results_are_right(op: str, dtype: str) -> None:
    """An operation done by hand has no wrong element, for every dtype and operator."""
    ranks = OPERATIONS[op].ranks or RANKS
    nbytes = COUNT * ranks * 8
    for cell in cells([op], [nbytes], [dtype], ["sum", "prod", "max", "min"], ranks=ranks):
        for rank, result in enumerate(run_by_hand(cell, ranks)):
            assert data.count_wrong(result, cell, rank, ranks) == 0, cell


@pytest.mark.parametrize("redop", ["sum", "prod", "max", "min"])
def test_a_lost_contribution_is_counted(redop: str) -> None:
    """A reduction that lacks one rank's input is wrong in a part of its elements at least."""
    cell = Cell("all_reduce", COUNT * 4, "float32", redop)
    rows = [data.row(cell, rank, RANKS) for rank in range(RANKS - 1)]
    lacking = np.resize(functools.reduce(data.COMBINE[redop], rows), COUNT)
    assert data.count_wrong(lacking, cell, 0, RANKS) > COUNT // 20


def test_a_shifted_frame_is_counted() -> None:
    """Data that comes from a place a power of two away is wrong nearly everywhere."""
    cell = Cell("broadcast", COUNT * 4, "float32", root=0)
    result = np.empty(COUNT, np.float32)
    data.fill(result, data.row(cell, 0, RANKS, start=1024))
    assert data.count_wrong(result, cell, 1, RANKS) > COUNT // 2


def test_swapped_parts_are_counted() -> None:
    """Parts of two ranks in the wrong order are wrong."""
    cell = Cell("all_gather", 2 * COUNT * 4, "float32")
    right = run_by_hand(cell, 2)[0]
    swapped = np.concatenate([right[COUNT:], right[:COUNT]])
    assert data.count_wrong(swapped, cell, 0, 2) > COUNT


@pytest.mark.parametrize("at", [0, data.PERIOD, COUNT - 1])
def test_one_wrong_element_is_counted(at: int) -> None:
    """One element is enough, in whole periods and in the rest behind them."""
    cell = Cell("all_reduce", COUNT * 4, "float32", "sum")
    right = run_by_hand(cell, RANKS)[0]
    right[at] += 1
    assert data.count_wrong(right, cell, 0, RANKS) == 1


@pytest.mark.parametrize("redop", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", dtypes.NAMES)
def test_repeated_reductions_in_place_stay_as_they_are(redop: str, dtype: str) -> None:
    """What is timed in place does not grow from call to call."""
    if not is_meaningful("all_reduce", redop, dtype, RANKS):
        return
    x = np.empty(5, data.dtype_of(dtype))
    data.still(x, Cell("all_reduce", 5 * x.itemsize, dtype, redop))
    again = x | x if dtype == "bool" else data.COMBINE[redop](x, x)
    assert (again == x).all()
