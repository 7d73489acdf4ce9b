"""What every fabric and topology must do; each function runs on all ranks of a group.

A case returns a digest of its results where all ranks must hold the same bits, or else None.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from standfast import Group, _core
from tests.conformance.data import (
    DTYPES,
    MOVED,
    OPS,
    WIDE,
    Array,
    alike,
    combined,
    frame_counts,
    moved,
    reduced,
    same,
)


def allowed(dtype: np.dtype[Any], op: str) -> bool:
    """Tell whether a reduction has a meaning."""
    return dtype.kind != "c" or op in ("sum", "prod")


def small_reductions(group: Group) -> str:
    """Every dtype and operator, on few elements: all_reduce and reduce_scatter."""
    digest = hashlib.sha256()
    for name, dtype in DTYPES.items():
        for op in OPS:
            if not allowed(dtype, op):
                continue
            for count in (1, group.size + 3, 1000):
                found = group.all_reduce(reduced(group.rank, count, dtype, op), op)
                expected = functools.partial(all_reduced, group, count, dtype, op)
                digest.update(alike(group, found, expected, f"all_{op} {name}[{count}]"))
            check_reduce_scatter(group, dtype, op, 3)
    return digest.hexdigest()


def border_reductions(group: Group) -> str:
    """Sums at the borders of frames, for one dtype per element size."""
    digest = hashlib.sha256()
    for name in WIDE:
        dtype = DTYPES[name]
        slices = 6 * group.size * _core.FRAME_BYTES // dtype.itemsize // 5 + 1
        counts = [*frame_counts(dtype, group.size), *([slices] if dtype.itemsize < 5 else [])]
        for count in counts:
            found = group.all_sum(reduced(group.rank, count, dtype, "sum"))
            expected = functools.partial(all_reduced, group, count, dtype, "sum")
            digest.update(alike(group, found, expected, f"all_sum {name}[{count}]"))
            check_reduce_scatter(group, dtype, "sum", count // group.size)
    return digest.hexdigest()


def all_reduced(group: Group, count: int, dtype: np.dtype[Any], op: str) -> Array:
    """Return the answer of an all_reduce over what reduced() gives."""
    return combined([reduced(r, count, dtype, op) for r in range(group.size)], op)


def check_reduce_scatter(group: Group, dtype: np.dtype[Any], op: str, share: int) -> None:
    """Compare this rank's share, of a 2-d array."""
    shape = (group.size * share, 1)
    inputs = [reduced(r, group.size * share, dtype, op).reshape(shape) for r in range(group.size)]
    found = group.reduce_scatter(inputs[group.rank], op)
    mine = slice(group.rank * share, (group.rank + 1) * share)
    expected = combined([x[mine] for x in inputs], op)
    same(found, expected, f"reduce_scatter {op} {dtype}[{shape}]")


def named_forms(group: Group) -> str:
    """all_sum, all_max, all_min and sum_scatter are what they say; out may be x."""
    inputs = [reduced(r, 5 * group.size, np.dtype("int32"), "sum") for r in range(group.size)]
    x = inputs[group.rank]
    kept = x.copy()
    for form, op in ((group.all_sum, "sum"), (group.all_max, "max"), (group.all_min, "min")):
        same(form(x), combined(inputs, op), op)
        out = np.zeros_like(x)
        assert form(x, out=out) is out
        same(out, combined(inputs, op), f"{op} with out")
        in_place = x.copy()
        assert form(in_place, out=in_place) is in_place
        same(in_place, combined(inputs, op), f"{op} in place")
    mine = combined(inputs, "sum")[5 * group.rank : 5 * (group.rank + 1)]
    same(group.sum_scatter(x), mine, "sum_scatter")
    out = np.zeros(5, np.int32)
    assert group.sum_scatter(x, out=out) is out
    same(out, mine, "sum_scatter with out")
    same(x, kept, "the input afterwards")
    return ""


def random_sums(group: Group) -> str:
    """Large random sums agree with float64 within rounding, and in every bit among the ranks."""
    digest = hashlib.sha256()
    for name, tolerance in (("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)):
        dtype = DTYPES[name]
        rng = np.random.default_rng(7)
        count = 2 * _core.FRAME_BYTES // dtype.itemsize + 12345
        inputs = [rng.normal(size=count).astype(dtype) for _ in range(group.size)]
        wide = sum(x.astype(np.float64) for x in inputs)
        found = group.all_sum(inputs[group.rank])
        assert np.allclose(found.astype(np.float64), wide, rtol=tolerance, atol=tolerance), name
        digest.update(found.tobytes())
    return digest.hexdigest()


def special_values(group: Group) -> str:
    """A NaN of any rank wins max and min; infinities add up as IEEE says; integers wrap."""
    digest = hashlib.sha256()
    for name in ("float16", "bfloat16", "float32", "float64"):
        dtype = DTYPES[name]
        x = np.full(group.size + 2, group.rank, dtype)
        x[group.rank] = np.nan
        x[group.size] = np.inf
        x[group.size + 1] = -np.inf if group.rank == 0 else np.inf
        for op in ("max", "min", "sum"):
            found = group.all_reduce(x, op)
            assert np.isnan(found[: group.size]).all(), f"{op} {name} lost a NaN: {found}"
            assert np.isposinf(found[group.size])
            digest.update(np.isnan(found).tobytes())
        assert np.isnan(group.all_sum(x)[-1]), "inf - inf"
        assert np.isneginf(group.all_min(x)[-1])
    top = np.array([np.iinfo(np.int64).max], np.int64)
    wrapped = int(top[0]) * group.size
    expected = (wrapped + 2**63) % 2**64 - 2**63
    assert int(group.all_sum(top)[0]) == expected
    return digest.hexdigest()


def gathers(group: Group) -> str:
    """all_gather and gather: every dtype on few elements, and the borders of frames."""
    digest = hashlib.sha256()
    for name, dtype in DTYPES.items():
        counts = frame_counts(dtype, group.size) if name in MOVED else [1, 7]
        for count in counts:
            inputs = [moved(r, count, dtype) for r in range(group.size)]
            expected = functools.partial(np.concatenate, inputs)
            found = group.all_gather(inputs[group.rank])
            digest.update(alike(group, found, expected, f"all_gather {name}[{count}]"))
            root = count % group.size
            found = group.gather(inputs[group.rank], root)
            if group.rank == root:
                same(found, expected(), f"gather {name}[{count}] at {root}")
            else:
                assert found is None
    return digest.hexdigest()


def gather_shapes(group: Group) -> str:
    """Arrays are put together along axis 0; 0-d arrays count as length 1; x may lie in out."""
    x = np.full((2, 3), group.rank, np.int16)
    expected = np.repeat(np.arange(group.size, dtype=np.int16), 6).reshape(2 * group.size, 3)
    same(group.all_gather(x), expected, "all_gather of 2-d")
    one = np.array(group.rank, np.float64)
    same(group.all_gather(one), np.arange(group.size, dtype=np.float64), "all_gather of 0-d")
    out = np.zeros_like(expected)
    mine = out[2 * group.rank : 2 * group.rank + 2]
    mine[...] = x
    assert group.all_gather(mine, out=out) is out
    same(out, expected, "all_gather in place")
    assert group.gather(one, group.size - 1, out=_at_root(group, group.size - 1)) is not one
    return ""


def _at_root(group: Group, root: int) -> Array | None:
    return np.zeros(group.size) if group.rank == root else None


def gather_of_bytes(group: Group) -> str:
    """Bytes of different lengths come as a list, empty and large ones too."""
    lengths = [0, 1, _core.FRAME_BYTES, _core.FRAME_BYTES + 1, 5, 300_000, 2, 0]
    texts = [bytes([65 + r]) * lengths[r] for r in range(group.size)]
    for root in range(group.size):
        for sort in (bytes, bytearray, memoryview):
            found = group.gather(sort(texts[group.rank]), root)
            assert found == (texts if group.rank == root else None)
    return ""


def broadcasts(group: Group) -> str:
    """Every rank is root once, over all dtypes and the borders of frames."""
    digest = hashlib.sha256()
    for name, dtype in DTYPES.items():
        counts = frame_counts(dtype, group.size) if name in MOVED else [1, 7]
        for turn, count in enumerate(counts):
            root = turn % group.size
            x = moved(group.rank, count, dtype)
            found = group.broadcast(x, root)
            expected = functools.partial(moved, root, count, dtype)
            digest.update(alike(group, found, expected, f"broadcast {name}[{count}] of {root}"))
            same(x, moved(group.rank, count, dtype), "the input afterwards")
    for root in range(group.size):
        x = moved(group.rank, 9, DTYPES["int32"]).reshape(3, 3).copy()
        assert group.broadcast(x, root, out=x) is x
        same(x, moved(root, 9, DTYPES["int32"]).reshape(3, 3), "broadcast in place")
    return digest.hexdigest()


def shares(dtype: np.dtype[Any]) -> list[int]:
    """Return lengths of one rank's share, at the borders of frames."""
    frame = _core.FRAME_BYTES // dtype.itemsize
    return [0, 1, frame - 1, frame, frame + 1] if dtype == np.float32 else [1, 7]


def all_to_alls(group: Group) -> str:
    """Share i of rank j becomes share j of rank i."""
    for name, dtype in DTYPES.items():
        for share in shares(dtype):
            inputs = [moved(r, share * group.size, dtype) for r in range(group.size)]
            mine = slice(group.rank * share, (group.rank + 1) * share)
            expected = np.concatenate([x[mine] for x in inputs])
            found = group.all_to_all(inputs[group.rank])
            same(found, expected, f"all_to_all {name}[{share} each]")
    return ""


def scatters(group: Group) -> str:
    """Non-roots need no array; they get the root's dtype and shape, or fill their out."""
    for name, dtype in DTYPES.items():
        for turn, share in enumerate(shares(dtype)):
            root = turn % group.size
            full = moved(root, share * group.size, dtype).reshape(share * group.size, 1)
            expected = full[group.rank * share : (group.rank + 1) * share]
            x = full if group.rank == root else None
            same(group.scatter(x, root), expected, f"scatter {name}[{share} each] of {root}")
            out = np.zeros_like(expected)
            assert group.scatter(x, root, out=out) is out
            same(out, expected, f"scatter {name}[{share} each] with out")
    return ""


def scatter_refused(group: Group) -> str:
    """What is wrong with the root's array is one ValueError on all ranks; the group goes on."""
    texts = []
    for bad in (np.zeros(group.size + 1), np.float32(1), [1, 2], np.zeros(group.size, "S3")):
        try:
            group.scatter(bad if group.rank == 0 else None, 0)
        except ValueError as error:
            texts.append(str(error))
    assert len(texts) == 4, texts
    same(group.all_sum(np.ones(1)), np.full(1, float(group.size)), "all_sum afterwards")
    return "\n".join(texts)


def messages(group: Group) -> str:
    """A ring of sends and receives: every dtype, the borders of frames, tags, bytes, shapes."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for name, dtype in DTYPES.items():
        for count in frame_counts(dtype, group.size) if name in MOVED else [1, 7]:
            expected = moved(before, count, dtype)
            sending = group.send_async(moved(group.rank, count, dtype), after, tag=count)
            found = group.recv(count, dtype, before, tag=count)
            sending.wait()
            same(found, expected, f"recv {name}[{count}]")
    x = moved(group.rank, 6, DTYPES["float32"]).reshape(2, 3)
    sending = group.send_async(x, after)
    same(group.recv_like(x, before), moved(before, 6, x.dtype).reshape(2, 3), "recv_like")
    sending.result()
    for length in (0, 1, _core.FRAME_BYTES, _core.FRAME_BYTES + 1, 500_000):
        for known in (None, length):
            sending = group.send_async(bytes([group.rank]) * length, after)
            assert group.recv(known, bytes, before) == bytes([before]) * length
            sending.wait()
    return ""


def many_messages(group: Group) -> str:
    """Messages between two ranks arrive in the order in which they were sent."""
    if group.rank == 0:
        for turn in range(200):
            group.send(np.array([turn]), 1, tag=turn)
    elif group.rank == 1:
        for turn in range(200):
            assert group.recv(1, np.int64, 0, tag=turn)[0] == turn
    group.barrier()
    return ""


def together(group: Group) -> str:
    """barrier, agree and Python's scalars."""
    for _ in range(20):
        group.barrier()
    assert group.agree(True) is True
    assert group.agree(group.rank != 0) is False
    assert group.agree(group.rank != group.size - 1) is False
    assert group.agree(False) is False
    assert group.all_sum(3) == 3 * group.size
    assert isinstance(group.all_sum(3), int)
    assert group.all_sum(0.5) == 0.5 * group.size
    assert group.all_max(group.rank) == group.size - 1
    assert group.all_reduce(2, "prod") == 2**group.size
    assert group.all_sum(group.rank == 0) is True
    assert group.all_sum(1 + 2j) == (1 + 2j) * group.size
    assert group.all_gather(group.rank) == list(range(group.size))
    assert group.broadcast(group.rank, group.size - 1) == group.size - 1
    return ""


def layouts(group: Group) -> str:
    """Non-contiguous inputs are copied; results are contiguous; 0-d stays 0-d."""
    base = moved(group.rank, 24, DTYPES["float32"]).reshape(4, 6)
    everybody = [moved(r, 24, DTYPES["float32"]).reshape(4, 6) for r in range(group.size)]
    views: list[Callable[[Array], Array]]
    views = [lambda a: a.T, lambda a: a[::2, ::-1], lambda a: a[:, 1:4]]
    for view in views:
        inputs = [view(a) for a in everybody]
        found = group.all_sum(view(base))
        same(found, combined([np.ascontiguousarray(x) for x in inputs], "sum"), "all_sum of a view")
        assert found.flags.c_contiguous
        same(group.broadcast(view(base), 1), view(everybody[1]).copy(), "broadcast of a view")
    zero = np.array(group.rank + 1, np.float32)
    same(group.all_sum(zero), np.array(sum(range(1, group.size + 1)), np.float32), "0-d")
    empty = np.zeros((0, 3), np.float32)
    same(group.all_sum(empty), empty, "size 0")
    same(group.all_gather(empty), empty, "size 0")
    same(group.all_to_all(empty), empty, "size 0")
    return ""


def mistakes(group: Group) -> str:
    """Mistakes raise the same ValueError or TypeError on every rank, and nothing is sent."""
    x = np.ones(group.size, np.float32)
    calls: list[tuple[Any, ...]] = [
        (group.all_reduce, x, "mean"),
        (group.all_max, x.astype(np.complex64)),
        (group.all_sum, x.astype(np.complex128)),
        (group.all_sum, x.astype(">f4")),
        (group.all_sum, np.array([None])),
        (group.all_sum, [1.0, 2.0]),
        (group.all_sum, "text"),
        (group.all_sum, None),
        (group.reduce_scatter, np.ones(group.size + 1)),
        (group.reduce_scatter, np.float32(1)),
        (group.all_to_all, np.ones(group.size * 2 - 1)),
        (group.broadcast, x, group.size),
        (group.broadcast, x, -1),
        (group.gather, x, 1.5),
        (group.send, x, group.rank),
        (group.recv, 1, np.float32, group.rank),
        (group.recv, 1, "float8", (group.rank + 1) % group.size),
        (group.recv, -1, np.float32, (group.rank + 1) % group.size),
        (group.recv, None, np.float32, (group.rank + 1) % group.size),
        (group.split, "red"),
    ]
    outs = [
        x[::2].repeat(2)[: group.size - 1],
        np.ones(group.size, np.float64),
        np.ones((1, group.size), np.float32),
        np.ones(2 * group.size, np.float32)[::2],
        np.broadcast_to(np.float32(0), (group.size,)),
        bytes(4 * group.size),
        [0.0] * group.size,
    ]
    texts = []
    for call, *args in calls:
        texts.append(_refused(call, args, {}))
    for out in outs:
        texts.append(_refused(group.all_sum, [x], {"out": out}))
    for timeout in (0, -1, float("nan"), float("inf")):
        texts.append(_refused(group.barrier, [], {"timeout_s": timeout}))
    texts.append(_refused(group.send, [x, (group.rank + 1) % group.size, -1], {}))
    same(group.all_sum(x), x * group.size, "all_sum afterwards")
    rank = str(group.rank)
    peers = ("send to itself", "receive from itself")
    return "\n".join(t.replace(rank, "R") if any(p in t for p in peers) else t for t in texts)


def _refused(call: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    try:
        call(*args, **kwargs)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{call.__name__}{args} was not refused")


def sequences(group: Group) -> str:
    """Random sequences of operations and sizes, the same on all ranks, plain and async mixed."""
    rng = np.random.default_rng(group.size)
    digest = hashlib.sha256()
    waiting = []
    for _ in range(60):
        count = int(rng.choice([1, 3, 100, 5000, 40_000]))
        op = str(rng.choice(["all_sum", "all_gather", "broadcast", "barrier", "all_to_all"]))
        root = int(rng.integers(group.size))
        x = moved(group.rank, count * group.size, DTYPES["int32"])
        everybody = [moved(r, count * group.size, DTYPES["int32"]) for r in range(group.size)]
        mine = slice(group.rank * count, (group.rank + 1) * count)
        expected = answer(op, everybody, root, mine)
        args = [] if op == "barrier" else [x, root] if op == "broadcast" else [x]
        if rng.integers(2):
            waiting.append((getattr(group, f"{op}_async")(*args), expected, op))
            continue
        waiting.append((None, expected, op))
        check(getattr(group, op)(*args), expected, op)
    for handle, expected, op in waiting:
        if handle is not None:
            check(handle.result(), expected, op)
    return digest.hexdigest()


def answer(op: str, everybody: list[Array], root: int, mine: slice) -> Array | None:
    """Return what an operation should give."""
    if op == "barrier":
        return None
    if op == "all_sum":
        return combined(everybody, "sum")
    if op == "broadcast":
        return everybody[root]
    return np.concatenate(everybody if op == "all_gather" else [x[mine] for x in everybody])


def check(found: Any, expected: Array | None, op: str) -> None:
    """Compare, where there is something to compare."""
    if expected is None:
        assert found is None
    else:
        same(found, expected, op)


CASES = {
    function.__name__: function
    for function in (
        small_reductions,
        border_reductions,
        named_forms,
        random_sums,
        special_values,
        gathers,
        gather_shapes,
        gather_of_bytes,
        broadcasts,
        all_to_alls,
        scatters,
        scatter_refused,
        messages,
        many_messages,
        together,
        layouts,
        mistakes,
        sequences,
    )
}


def run(group: Group, names: list[str]) -> dict[str, str]:
    """Run cases one after the other; return what all ranks must have alike."""
    found = {}
    for name in names:
        try:
            found[name] = CASES[name](group)
        except BaseException as error:
            error.add_note(f"in case {name}")
            raise
    return found
