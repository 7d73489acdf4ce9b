"""The short way past Python: the same results and the same errors as the long one, whatever comes.

A shortcut of Group keeps the method that it stands for as __wrapped__, which is the long way.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import threading
import weakref
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import standfast
from standfast import Group, _core, operations
from standfast import group as groups
from standfast.operations import Member
from tests.ranks import Pool

SHORTCUTS = (
    *("all_reduce", "all_sum", "all_max", "all_min", "all_gather", "reduce_scatter"),
    *("sum_scatter", "broadcast", "all_to_all", "send", "recv", "recv_like", "barrier", "agree"),
)
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "bfloat16", "complex128", ">f4", "longlong"),
)


class Memory(NamedTuple):
    """An array to be made: its sort, dtype, shape and whether it can be written."""

    sort: str
    dtype: str
    shape: tuple[int, ...]
    writable: bool = True


class Call(NamedTuple):
    """A call to be made the same on both ranks. out: Memory, None, or what it shares with x."""

    method: str
    x: Memory
    out: Memory | str | None
    options: dict[str, Any]
    spare: int = 0  # positional arguments too many


class Subclass(np.ndarray[Any, Any]):
    """An array that is not exactly NumPy's."""


def made(memory: Memory, rank: int) -> Any:
    """Make an array whose contents tell its rank and index."""
    dtype = np.dtype(ml_dtypes.bfloat16 if memory.dtype == "bfloat16" else memory.dtype)
    count = int(np.prod(memory.shape))
    values = ((np.arange(count) * 7 + rank * 3) % 5).astype(dtype).reshape(memory.shape)
    if memory.sort == "transposed":
        values = values.T.copy().T
    if memory.sort == "strided":
        values = np.repeat(values, 2, -1)[..., ::2] if memory.shape else values
    values.flags.writeable = memory.writable
    if memory.sort == "subclass":
        return values.view(Subclass)
    if memory.sort == "memoryview" and memory.dtype not in ("bfloat16", ">f4"):
        view: Any = values
        return memoryview(view)
    if memory.sort == "bytes":
        return values.tobytes()
    return memory.sort if memory.sort == "text" else values


class Given(NamedTuple):
    """Arguments of a call, made anew for each way."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    x: Any
    out: Any


def arguments(call: Call, group: Group) -> Given:
    x = made(call.x, group.rank)
    out: Any = None
    match call.out:
        case Memory() as memory:
            out = made(memory, 9)
        case "x":
            out = x
        case "view" if isinstance(x, np.ndarray):
            out = x[...]
        case "part" if isinstance(x, np.ndarray):
            both = np.zeros(2 * x.size + 1, x.dtype)
            x, out = both[: x.size].reshape(x.shape), both[1 : x.size + 1].reshape(x.shape)
        case "place" if isinstance(x, np.ndarray) and x.flags.c_contiguous and x.shape:
            out = np.zeros((group.size * x.shape[0], *x.shape[1:]), x.dtype)
            x = out[group.rank * x.shape[0] : (group.rank + 1) * x.shape[0]]
    options = {name: value for name, value in call.options.items() if value != "absent"}
    if options.get("peer") == "other":
        options["peer"] = 1 if call.method == "broadcast" else 1 - group.rank
    if call.method in ("send", "recv", "recv_like"):
        options["dst" if call.method == "send" else "src"] = options.pop("peer", 1 - group.rank)
    elif call.method == "broadcast":
        options["root"] = options.pop("peer", 0)
    if call.out is not None or "out" in options:
        options["out"] = out
    args: tuple[Any, ...] = (x,)
    if call.method in ("barrier", "agree"):
        args = () if call.method == "barrier" else (options.pop("flag", True),)
    elif call.method == "recv":
        args = ()
        options.setdefault("shape", call.x.shape)
        options.setdefault("dtype", call.x.dtype)
        if options["dtype"] == "object":
            options["dtype"] = np.dtype(np.float32)
        if options["dtype"] == "type":
            options["dtype"] = np.float32
    return Given(args + (None,) * call.spare, options, x, out)


class Planner:
    """Takes a group's place where a plan is to be made, and not run."""

    def __init__(self, group: Group) -> None:
        self._me = Member(group.rank, group.size)
        self.plan: operations.Plan | None = None

    def _run(self, plan: operations.Plan) -> None:
        self.plan = plan


def told(given_: Given, answer: Any) -> tuple[Any, ...]:
    """Describe what a call came to, as far as a caller can see it."""
    if isinstance(answer, BaseException):
        return ("raised", type(answer).__name__, str(answer))
    kept = given_.out.tobytes() if isinstance(given_.out, np.ndarray) else None
    x = given_.x.tobytes() if isinstance(given_.x, np.ndarray) else None
    same = answer is given_.out and answer is not None
    if not isinstance(answer, np.ndarray):
        found = bytes(answer) if isinstance(answer, (memoryview, bytes)) else answer
        return (type(answer).__name__, found, same, kept, x)
    layout = (answer.flags.c_contiguous, answer.flags.writeable)
    return (
        type(answer).__name__,
        str(answer.dtype),
        answer.shape,
        answer.tobytes(),
        layout,
        same,
        x,
    )


def way(function: Any, first: object, given_: Given) -> tuple[Any, ...]:
    try:
        return told(given_, function(first, *given_.args, **given_.options))
    except (TypeError, ValueError, OverflowError) as error:
        return told(given_, error)


MESSAGES = ("send", "recv", "recv_like")


def as_made_by(group: Group, call: Call) -> Call:
    """Return the call that this rank makes: rank 0 sends what the other one receives."""
    if call.method not in MESSAGES or (call.method == "send") == (group.rank == 0):
        return call
    kept: dict[str, Any] = {
        name: call.options[name] for name in ("tag", "timeout_s") if name in call.options
    }
    method = "send" if group.rank == 0 else "recv_like"
    return call._replace(method=method, out=None, options=kept)


def is_agreed(group: Group, plan: operations.Plan | None) -> bool:
    """Tell whether the ranks' plans fit together, so that the operation can be run."""
    mine = np.zeros(5, np.int64)
    if plan is not None:
        what = plan.what
        number = plan.request.peer if plan.name not in ("send", "recv") else 0
        mine[:3] = 1, number, plan.request.tag
        mine[3:] = (what.elements, what.dtype) if what is not None else (0, 0)
    theirs = group.all_gather(mine.reshape(1, 5))
    return bool(theirs[0, 0] == 1 and (theirs[0] == theirs[1]).all())


def compare_one(group: Group, call: Call) -> bool:
    """Make a call both ways, where both ranks can; tell whether it came to a result."""
    short = getattr(Group, call.method)
    long = short.__wrapped__
    planner = Planner(group)
    refusal = way(long, planner, arguments(call, group))
    if not is_agreed(group, planner.plan):
        if planner.plan is None:
            assert way(short, group, arguments(call, group)) == refusal, call
        return False
    expected = way(long, group, arguments(call, group))
    assert way(short, group, arguments(call, group)) == expected, call
    return True


def compare(group: Group, calls: list[Call]) -> int:
    """Make each call both ways; return how many came to a result."""
    return sum(compare_one(group, as_made_by(group, call)) for call in calls)


SHAPES = st.sampled_from([(), (1,), (2,), (3,), (4,), (4, 3), (2, 0), (0,), (2, 1, 2), (5000,)])


@st.composite
def drawn(draw: st.DrawFn) -> Call:
    """Draw a call: as usual in most of its parts, and anything at all in some."""
    method = draw(st.sampled_from(SHORTCUTS))
    usual = st.sampled_from(["float32", "float32", "int64", "bool", *DTYPES])
    sorts = ["numpy"] * 12 + ["transposed", "strided", "subclass", "memoryview", "bytes", "text"]
    x = Memory(draw(st.sampled_from(sorts)), draw(usual), draw(SHAPES), draw(st.booleans()))
    size = 2
    shape = x.shape
    if method == "all_gather":
        shape = (size * (shape or (1,))[0], *shape[1:])
    if method in ("reduce_scatter", "sum_scatter"):
        shape = ((shape or (1,))[0] // size, *shape[1:])
    fitting = Memory("numpy", x.dtype, shape)
    other = Memory(draw(st.sampled_from(sorts)), draw(usual), draw(SHAPES), draw(st.booleans()))
    out: Memory | str | None = None
    options: dict[str, Any] = {}
    if method not in ("send", "barrier", "agree"):
        outs = [None, None, fitting, fitting, fitting, "x", "view", "part", "place", other]
        out = draw(st.sampled_from(outs))
        if out is None and draw(st.booleans()):
            options["out"] = None
    if method in ("all_reduce", "reduce_scatter"):
        ops = ["absent", "sum", "max", "min", "prod", "mean", None]
        options["op"] = draw(st.sampled_from(ops))
    if method in ("send", "recv", "recv_like", "broadcast"):
        peers = ["other"] * 6 + ["absent", 0, 1, -1, 2, True, 1.0, 2**70, "1"]
        options["peer"] = draw(st.sampled_from(peers))
    if method in ("send", "recv", "recv_like"):
        options["tag"] = draw(st.sampled_from(["absent", 0, 7, 2**31 - 1, 2**31, -1, 0.5]))
    if method == "recv":
        shapes = ["absent"] * 6 + [3, [4], (4, 3), None, -1, (2, -1), "no"]
        options["shape"] = draw(st.sampled_from(shapes))
        options["dtype"] = draw(st.sampled_from(["absent"] * 6 + ["object", "type", int, "no"]))
    if method == "agree":
        options["flag"] = draw(st.sampled_from([True, False, 0, 1, [], "yes"]))
    times = ["absent"] * 8 + [None, 60, 60.0, 0, -1, float("inf"), float("nan"), "1", 10**400]
    options["timeout_s"] = draw(st.sampled_from(times))
    if draw(st.integers(0, 19)) == 0:
        options["unknown"] = 1
    return Call(method, x, out, options, int(draw(st.integers(0, 19)) == 0))


# Nothing is made smaller: that takes minutes with processes, and a failure names its call anyway.
@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(drawn(), min_size=20, max_size=60))
def compared(pool: Pool, calls: list[Call]) -> None:
    pool.run(2, compare, calls)


def test_both_ways_come_to_the_same(pool: Pool) -> None:
    """Whatever the arguments are, result or exception and its text do not depend on the way."""
    compared(pool)


def every_call() -> list[Call]:
    """List a usual call of each method and dtype, with out and without."""
    calls = []
    for dtype in DTYPES:
        x = Memory("numpy", dtype, (4, 3))
        shapes = {"all_gather": (8, 3), "reduce_scatter": (2, 3), "sum_scatter": (2, 3)}
        for method in SHORTCUTS:
            out = Memory("numpy", dtype, shapes.get(method, (4, 3)))
            with_out = method not in ("send", "barrier", "agree")
            calls += [Call(method, x, None, {}), *([Call(method, x, out, {})] if with_out else [])]
    return calls


def test_every_method_and_dtype(pool: Pool) -> None:
    """Usual calls come to the same results, too, and most of them to one."""
    for ended in pool.run(2, compare, every_call()):
        assert ended.value > 250


def short_only(group: Group) -> list[str]:
    """Make usual calls while the long way is out of order; return the methods that took it."""
    x, y = np.ones(4, np.float32), np.empty(4, np.float32)
    group.all_sum(x)  # the first array is the one from which NumPy's are learned
    other = 1 - group.rank
    calls: dict[str, Any] = {
        "all_reduce": lambda: group.all_reduce(x, "max", out=y),
        "all_sum": lambda: group.all_sum(x, out=y, timeout_s=60.0),
        "all_max": lambda: group.all_max(x),
        "all_min": lambda: group.all_min(x, out=x),
        "all_gather": lambda: group.all_gather(x, out=np.empty(8, np.float32)),
        "reduce_scatter": lambda: group.reduce_scatter(x, "prod", out=np.empty(2, np.float32)),
        "sum_scatter": lambda: group.sum_scatter(x),
        "broadcast": lambda: group.broadcast(x, 1, out=y),
        "all_to_all": lambda: group.all_to_all(x, out=y),
        "send": lambda: [group.send(x, other, tag=3) for _ in range(3)],
        "recv": lambda: [
            group.recv(4, np.float32, other, 3),
            group.recv((4,), "float32", other, 3, out=y),
        ],
        "recv_like": lambda: group.recv_like(y, src=other, tag=3, out=y),
        "barrier": group.barrier,
        "agree": lambda: group.agree(True),
    }
    assert sorted(calls) == sorted(SHORTCUTS)
    long = []
    real = Group._run

    def noted(self: Group, plan: operations.Plan) -> Any:
        long.append(plan.name)
        return real(self, plan)

    Group._run = noted  # type: ignore[method-assign]
    try:
        for call in calls.values():
            call()
    finally:
        Group._run = real  # type: ignore[method-assign]
    return long


def test_usual_calls_take_the_short_way(pool: Pool) -> None:
    """Calls with plain NumPy arrays make no plan in Python: otherwise nothing here is tested."""
    for ended in pool.run(2, short_only):
        assert ended.value == []


def both_ways(group: Group) -> None:
    """Rank 0 calls as usual, rank 1 what makes its plan in Python: the two must fit together."""
    x = np.arange(4, dtype=np.float32) + group.rank
    long = group.rank == 1

    def call(name: str, *args: Any) -> Any:
        return (
            getattr(group, f"{name}_async")(*args).result() if long else getattr(group, name)(*args)
        )

    np.testing.assert_array_equal(call("all_sum", x), [1, 3, 5, 7])
    np.testing.assert_array_equal(call("all_max", x), [1, 2, 3, 4])
    np.testing.assert_array_equal(call("all_gather", x), [0, 1, 2, 3, 1, 2, 3, 4])
    np.testing.assert_array_equal(call("sum_scatter", x), [5, 7] if long else [1, 3])
    np.testing.assert_array_equal(call("broadcast", x, 1), [1, 2, 3, 4])
    call("all_to_all", x)
    call("barrier")
    assert call("agree", True) is True
    call("send", x, 1 - group.rank)
    np.testing.assert_array_equal(call("recv_like", x, 1 - group.rank), x + (-1 if long else 1))


def test_ranks_may_take_different_ways(pool: Pool) -> None:
    """What one rank plans natively and another in Python is the same operation on the wire."""
    pool.run(2, both_ways)


class Watchful(Group):
    """A group that looks at its plans, as those do that speak JACCL."""

    seen: list[str]

    def _run(self, plan: operations.Plan) -> Any:
        self.seen = [*getattr(self, "seen", []), plan.name]
        return super()._run(plan)


def watchful(arguments_: dict[str, Any]) -> list[str]:
    real = groups._opened
    groups._opened = Watchful
    try:
        group: Any = standfast.init(**arguments_)
    finally:
        groups._opened = real
    x = np.ones(2, np.float32)
    for _ in range(2):
        group.all_sum(x, out=x)
    group.barrier()
    seen: list[str] = group.seen
    group.close()
    return seen


def test_a_group_that_looks_at_its_plans_sees_them_all(pool: Pool) -> None:
    """There is no short way past a subclass's own _run."""
    for ended in pool.run(2, watchful, form=False):
        assert ended.value == ["all_sum", "all_sum", "barrier"]


def counts(group: Group) -> None:
    x, y = np.ones(4, np.float32), np.empty(4, np.float32)
    timeout_s = float(group.size) + 60.0
    held = (x, y, timeout_s, None, True)
    for _ in range(3):
        group.all_sum(x, out=y, timeout_s=timeout_s)
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        group.all_sum(x, out=y, timeout_s=timeout_s)
        group.broadcast(x, out=x)
        group.barrier()
        group.agree(True)
    after = [sys.getrefcount(each) for each in held]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    assert max(grown) < 100, grown


def test_nothing_is_kept(pool: Pool) -> None:
    """No reference to an argument or result stays behind."""
    pool.run(2, counts)


def free(arguments_: dict[str, Any]) -> bool:
    group = standfast.init(**arguments_)
    group.barrier()
    group.close()
    gone = weakref.ref(group)
    with contextlib.suppress(standfast.GroupClosed):
        group.barrier()  # its error stays in the group, which its traceback holds
    del group
    gc.collect()
    return gone() is None


def test_a_group_is_freed(pool: Pool) -> None:
    """A closed group that nobody holds is collected, with the error that it held."""
    assert [ended.value for ended in pool.run(2, free, form=False)] == [True, True]


def wait_beside_a_thread(group: Group) -> None:
    """Wait for an answer to what only another thread of this rank can say."""
    x, y = np.ones(2, np.float32), np.zeros(2, np.float32)
    group.all_sum(x)
    if group.rank == 1:
        group.recv_like(y, 0, out=y)
        group.send(y, 0)
        return
    waits = threading.Event()

    def say() -> None:
        waits.wait()
        group.send(x, 1)

    thread = threading.Thread(target=say)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody gets the GIL who is not given it
    try:
        waits.set()
        group.recv_like(y, 1, out=y, timeout_s=20)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert y.tolist() == [1, 1]


def test_other_threads_run_while_one_waits(pool: Pool) -> None:
    """A wait that lasts gives the GIL back."""
    pool.run(2, wait_beside_a_thread)


def closed_calls(group: Group) -> list[tuple[str, str]]:
    x = np.ones(2, np.float32)
    group.all_sum(x, out=x)
    group.close()
    texts = []
    long: Any = Group.all_sum
    for call in (group.all_sum, functools.partial(long.__wrapped__, group)):
        try:
            call(x)
        except standfast.GroupClosed as error:
            texts.append((type(error).__name__, str(error)))
    return texts


def test_closed_groups_refuse(pool: Pool) -> None:
    """After close() both ways raise the same."""
    for ended in pool.run(2, closed_calls):
        short, long = ended.value
        assert short == long


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_looks_like_its_method(name: str) -> None:
    """help(), signatures and names are those of the method in group.py."""
    shortcut = getattr(Group, name)
    method = shortcut.__wrapped__
    assert inspect.isfunction(method)
    assert not inspect.isfunction(shortcut)
    assert inspect.isroutine(shortcut)
    assert inspect.signature(shortcut) == inspect.signature(method)
    assert (shortcut.__name__, shortcut.__doc__) == (name, method.__doc__)
    assert shortcut.__qualname__ == f"Group.{name}"
    with pytest.raises(TypeError, match=r"missing .* 'self'"):
        shortcut()


def test_only_known_methods_have_one() -> None:
    """A shortcut for a method that the core does not know is refused when the class is made."""
    with pytest.raises(ValueError, match="no shortcut for nonsense"):
        _core.shortcut(nonsense)


def nonsense() -> None:
    """Do nothing."""
