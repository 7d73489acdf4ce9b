"""Never stale data: an operation whose group has ended raises, also in its last microsecond."""

from __future__ import annotations

import inspect
import sys

import pytest

import standfast
from tests.death.harness import Case
from tests.death.judge import check_aftermath, check_death
from tests.death.processes import Nursery

# All ranks gather a page from each. Ranks 0 and 1 are held while the last bytes are being copied:
# nothing is missing, nothing has to be waited for any more.
LAST_BYTES = """
    from tests.death.stuck import PAGE, trapped
    group = here.init()
    group.barrier()
    x = np.full(PAGE, here.rank + 1, dtype=np.uint8)
    def hold():
        here.say("held")
        here.ask()
    out = None
    if here.rank in here.args["held"]:
        out = trapped(here.size, here.args["trap"], hold)
    def gather():
        if here.args["how"] == "sync":
            group.all_gather(x, out=out)
        else:
            group.all_gather_async(x, out=out).wait()
    here.say("ready")
    attempt("all_gather", gather, "gathered")
    here.ask()
    attempt("barrier", group.barrier)
    aftermath(here, group)
    """


@pytest.mark.skipif(sys.platform != "linux", reason="relies on Linux's SIGSEGV for pages")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_last_microsecond(nursery: Nursery, how: str) -> None:
    """All data has come, but the group ends before the operation does: it raises on all of them."""
    args = {"code": LAST_BYTES, "held": [0, 1], "trap": 2, "how": how}
    init = {"fabric": "shm", "topology": "mesh"}
    with Case(nursery, 3, "program", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        for rank in (0, 1):
            case.wait(rank, "held")
        killed_ns = case.kill(2)
        case.pause(0.1)
        for rank in (0, 1):
            case.tell(rank)
            event = case.wait(rank, "gathered")
            assert event.fields.get("error", {}).get("type") == "PeerDied", case.story()
            case.tell(rank)
            check_death(case, rank, 2, killed_ns, None, began=False)
        check_aftermath(case, [0, 1])


@pytest.mark.skipif(sys.platform != "linux", reason="relies on Linux's SIGSEGV for pages")
def test_nothing_happened(nursery: Nursery) -> None:
    """The same without a death: the held ranks have their result, and it is right."""
    args = {"code": LAST_BYTES, "held": [0, 1], "trap": 2, "how": "sync"}
    init = {"fabric": "shm", "topology": "mesh"}
    with Case(nursery, 3, "program", args, init=init, quick_end=True) as case:
        for rank in (0, 1):
            case.wait(rank, "held")
            case.tell(rank)
        for rank in range(3):
            assert "error" not in case.wait(rank, "gathered").fields, case.story()
            case.tell(rank)
        for rank in range(3):
            assert "error" not in case.wait(rank, "returned").fields, case.story()


def test_out_is_documented() -> None:
    """What `out` holds after a failed call is said where users read it."""
    text = inspect.getdoc(standfast.Group) or ""
    assert "undefined" in text, text


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_last_operation_of_all(nursery: Nursery, fabric: str) -> None:
    """Ranks count the operations that returned; after a kill nobody is further than all raised.

    An operation that needs all ranks cannot return anywhere once the dead rank has left it out.
    """
    code = """
        group = here.init()
        count = 0
        def work():
            global count
            while True:
                do(group, "all_reduce", 0)
                count += 1
                if count == 100:
                    here.say("ready")
                if here.rank == 1 and count == 500:
                    os.kill(os.getpid(), signal.SIGKILL)
        attempt("work", work)
        here.say("counted", count=count)
        aftermath(here, group)
        """
    with Case(nursery, 4, "program", {"code": code}, init={"fabric": fabric}) as case:
        for rank in (0, 2, 3):
            assert case.error(rank).error["rank"] == 1, case.story()
            assert case.wait(rank, "counted")["count"] <= 500, case.story()
        check_aftermath(case, [0, 2, 3])
