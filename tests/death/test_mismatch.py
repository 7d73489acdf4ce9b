"""Ranks disagree about an operation: CollectiveMismatch on all of them, naming both sides."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.death.harness import Case
from tests.death.judge import check_aftermath
from tests.death.nursery import now_ns
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp", "verbs")
TOPOLOGIES = ("mesh", "ring")
PROMISE_S = 2.0

# What three ranks call, what rank 2 calls, and a word of either side where all wait in that call.
# Where some ranks need not wait in it, the first frame that does not fit may be of the barrier.
DIFFERENT = {
    "operation": ("group.all_sum(x)", "group.all_gather(x)", "all_sum", "all_gather"),
    "barrier": ("group.all_sum(x)", "group.barrier()", "all_sum", "barrier"),
    "broadcast": ("group.all_gather(x)", "group.broadcast(x, root=2)", "all_gather", ""),
    "send": ("group.all_sum(x)", "group.send(x, 1)", "all_sum", ""),
    "recv": ("group.all_sum(x)", "group.recv(8, 'float32', 1)", "all_sum", "recv"),
    "size": ("group.all_sum(x)", "group.all_sum(x[:7])", "[8]", "[7]"),
    "size of a large one": (
        "group.all_sum(np.ones(100_000))",
        "group.all_sum(np.ones(100_001))",
        "[100000]",
        "[100001]",
    ),
    "small and large": (
        "group.all_sum(np.ones(10))",
        "group.all_sum(np.ones(100_000))",
        "[10]",
        "[100000]",
    ),
    "gather size": ("group.all_gather(x)", "group.all_gather(x[:7])", "[8]", "[7]"),
    "dtype": ("group.all_sum(x)", "group.all_sum(x.astype('float64'))", "float32", "float64"),
    "same width": ("group.all_sum(x)", "group.all_sum(x.astype('int32'))", "float32", "int32"),
    "reduction": ("group.all_sum(x)", "group.all_max(x)", "all_sum", "all_max"),
    "scatter": ("group.sum_scatter(x)", "group.all_to_all(x)", "scatter", "all_to_all"),
    "broadcast root": ("group.broadcast(x, root=0)", "group.broadcast(x, root=2)", "", ""),
    "scatter root": (
        "group.scatter(x if group.rank == 0 else None, root=0)",
        "group.scatter(x, root=2)",
        "",
        "",
    ),
    "order": (
        "group.barrier(); group.all_sum(x)",
        "group.all_sum(x); group.barrier()",
        "barrier",
        "all_sum",
    ),
    "one call left out": (
        "group.all_sum(x); group.all_gather(x)",
        "group.all_gather(x)",
        "all_sum",
        "all_gather",
    ),
    "one call too many": (
        "group.all_sum(x)",
        "group.all_sum(x); group.all_gather(x)",
        "barrier",
        "all_gather",
    ),
}
SIDE = re.compile(r"ranks? (\d|\[[\d, ]+\]) (?:is |are )?in (no operation|.+?#\d+)")


def sides_of(text: str) -> dict[str, list[int]]:
    """Return who is in what: "ranks [0, 1] are in barrier #2, rank 2 is in all_sum ... #2"."""
    sides = {}
    for ranks, op in SIDE.findall(text):
        sides[op] = [int(rank) for rank in re.findall(r"\d+", ranks)]
    return sides


def code_of(calls: str) -> str:
    return f"""
        group = here.init()
        x = np.ones(8, dtype=np.float32)
        group.barrier()
        def calls():
            {calls}
            group.barrier()
        here.say("ready")
        here.ask()
        attempt("calls", calls)
        aftermath(here, group)
        """


def begin(case: Case) -> int:
    """Let all ranks make their calls when all have left the barrier; return when that was."""
    case.wait_all("ready")
    for rank in case.others():
        case.tell(rank)
    return now_ns()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("what", DIFFERENT)
def test_one_differs(nursery: Nursery, what: str, fabric: str, topology: str) -> None:
    """One rank of four does something else: all four raise, and each message names both sides."""
    most, one, words, other_words = DIFFERENT[what]

    def args(rank: int) -> dict[str, str]:
        return {"code": code_of(one if rank == 2 else most)}

    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        began_ns = begin(case)
        for rank in case.others():
            event = case.error(rank)
            error = event.error
            assert error["type"] == "CollectiveMismatch", f"{error}\n{case.story()}"
            assert words in error["cause"], error
            assert other_words in error["cause"], error
            sides = sides_of(error["cause"])
            assert len(sides) >= 2, error
            named = sorted(itertools.chain(*sides.values()))
            # With two roots all may have gone on to the barrier: then it is told who met whom.
            assert named == [0, 1, 2, 3] or (what.endswith("root") and len(named) == 2), error
            case.prompt(f"mismatch {fabric}", began_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("fabric", FABRICS)
def test_half_and_half(nursery: Nursery, fabric: str, topology: str) -> None:
    """Two ranks in one operation, two in another: all four raise (R93)."""

    def args(rank: int) -> dict[str, str]:
        return {"code": code_of("group.all_sum(x)" if rank < 2 else "group.all_gather(x)")}

    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        began_ns = begin(case)
        for rank in case.others():
            event = case.error(rank)
            assert event.error["type"] == "CollectiveMismatch", f"{event}\n{case.story()}"
            sides = sides_of(event.error["cause"])
            ranks = {op.split()[0]: ranks for op, ranks in sides.items()}
            assert ranks == {"all_sum": [0, 1], "all_gather": [2, 3]}, f"{event}\n{case.story()}"
            case.prompt(f"half and half {fabric}", began_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others())


def test_no_frame_shows_it(nursery: Nursery) -> None:
    """Two roots of gather that wait for each other's share: no frame crosses another.

    The histories that come with the heartbeats show it, within 2 s.
    """
    calls = "group.gather(x, root=1 + (here.rank == 2))"
    # Who is done with it waits without a frame of its own.
    calls += "; here.rank in (0, 3) and group.recv(8, 'float32', 2)"
    code = code_of(calls)
    with Case(nursery, 4, "program", {"code": code}, init={"topology": "mesh"}) as case:
        began_ns = begin(case)
        for rank in case.others():
            event = case.error(rank)
            assert event.error["type"] == "CollectiveMismatch", f"{event}\n{case.story()}"
            case.prompt("mismatch without frames", began_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others())


@pytest.mark.parametrize("fabric", FABRICS)
def test_two_ranks(nursery: Nursery, fabric: str) -> None:
    """One is in all_sum, the other in recv: both raise, and both texts name both (R88)."""

    def args(rank: int) -> dict[str, str]:
        return {"code": code_of(("group.all_sum(x)", "group.recv(8, 'float32', 0)")[rank])}

    with Case(nursery, 2, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        began_ns = begin(case)
        for rank in (0, 1):
            event = case.error(rank)
            assert event.error["type"] == "CollectiveMismatch", f"{event}\n{case.story()}"
            assert "all_sum float32[8]" in event.error["cause"], event
            assert "recv" in event.error["cause"], event
            case.prompt(f"mismatch of two {fabric}", began_ns, event.ns, PROMISE_S)
        check_aftermath(case, [0, 1])


MESSAGES = {
    "tag": ("group.send(x, 1, tag=1)", "group.recv(8, 'float32', 0, tag=2)"),
    "dtype": ("group.send(x, 1)", "group.recv(8, 'int32', 0)"),
    "shorter": ("group.send(x, 1)", "group.recv(4, 'float32', 0)"),
    "longer": ("group.send(x, 1)", "group.recv(9, 'float32', 0)"),
    "large": ("group.send(np.ones(100_000), 1)", "group.recv(100_001, 'float64', 0)"),
    "bytes": ("group.send(b'12345678', 1)", "group.recv(8, 'float32', 0)"),
    "async": ("group.send_async(x, 1).wait()", "group.recv_async(8, 'int8', 0).wait()"),
}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("what", MESSAGES)
def test_message(nursery: Nursery, what: str, fabric: str) -> None:
    """A send and its recv disagree: MessageMismatch at both ends, and in the whole group."""

    def args(rank: int) -> dict[str, str]:
        return {"code": code_of((*MESSAGES[what], "pass")[rank])}

    with Case(nursery, 3, "program", args, init={"fabric": fabric}, quick_end=True) as case:
        began_ns = begin(case)
        for rank in case.others():
            event = case.error(rank)
            error = event.error
            assert error["type"] == "MessageMismatch", f"{error}\n{case.story()}"
            assert "send" in error["cause"], error
            assert "recv" in error["cause"], error
            case.prompt(f"message mismatch {fabric}", began_ns, event.ns, PROMISE_S)
        check_aftermath(case, case.others())
