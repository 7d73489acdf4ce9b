"""A rank's program raises: RemoteFailure in all others, with type, message and traceback tail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.death.harness import Case
from tests.death.judge import PROMISE_S, check_aftermath
from tests.death.processes import Nursery

FABRICS = ("shm", "tcp")

RAISING = {
    "uncaught": "compute()",
    "with": "with group: compute()",
    "from": """
            try:
                {}['missing']
            except KeyError as error:
                raise ValueError('bad batch 17') from error
            """,
}

CODE = """
    import atexit
    def compute():
        raise ValueError('bad batch 17')
    group = here.init(**here.args.get("init", {{}}))
    group.barrier()
    here.say("ready")
    if here.rank == here.args["raiser"]:
        here.ask()
        atexit.register(lambda: here.ask())
        here.say("raising")
        {raising}
    attempt("all_sum", lambda: group.all_sum(np.ones(4)))
    aftermath(here, group)
    """


def check_failure(case: Case, rank: int, raiser: int, raised_ns: int, label: str) -> dict[str, Any]:
    """Assert that a rank hears of the raiser's exception, in time."""
    event = case.error(rank)
    error = event.error
    assert error["type"] == "RemoteFailure", f"{error}\n{case.story()}"
    assert error["rank"] == raiser, f"{error}\n{case.story()}"
    case.prompt(label, raised_ns, event.ns, PROMISE_S)
    return error


@pytest.mark.parametrize("raiser", [0, 2])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("how", RAISING)
def test_others_wait(nursery: Nursery, how: str, fabric: str, raiser: int) -> None:
    """All hear of it within 1 s, though the raiser still runs its atexit functions (R31)."""
    raising = RAISING[how].strip("\n ")
    code = CODE.format(raising=raising.replace("\n    ", "\n"))
    args = {"code": code, "raiser": raiser}
    with Case(nursery, 4, "program", args, init={"fabric": fabric}) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(raiser))
        case.tell(raiser)
        raised_ns = case.wait(raiser, "raising").ns
        for rank in case.others(raiser):
            error = check_failure(case, rank, raiser, raised_ns, f"raised {fabric}")
            assert error["remote_type"] == "ValueError", error
            assert error["remote_message"] == "bad batch 17", error
            assert "ValueError: bad batch 17" in error["remote_traceback"], error
            assert f"<rank {raiser}>" in error["remote_traceback"], error
            assert "ValueError: bad batch 17" in error["message"], error
        assert case.ranks[raiser].status is None, "the raiser was to be alive still"
        check_aftermath(case, case.others(raiser))
        case.tell(raiser, "end")
        assert case.wait_end(raiser) == 1
        assert "ValueError: bad batch 17" in case.text(raiser)


def test_idle(nursery: Nursery) -> None:
    """Ranks that call nothing become unhealthy, and know why."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank == 1:
            here.ask()
            here.say("raising")
            raise ValueError("bad batch 17")
        while group.healthy():
            time.sleep(0.005)
        here.say("unhealthy", last=described(group.last_failure()))
        """
    with Case(nursery, 3, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.tell(1)
        raised_ns = case.wait(1, "raising").ns
        for rank in (0, 2):
            event = case.wait(rank, "unhealthy")
            assert event["last"]["remote_message"] == "bad batch 17", event
            case.prompt("raised, idle", raised_ns, event.ns, PROMISE_S)
        case.finish(statuses={1: 1})


STRANGE = {
    "long": ("RuntimeError('x' * 100_000)", "RuntimeError", "xxx"),
    "unicode": ("RuntimeError('naïve \\u2603 \\U0001f600')", "RuntimeError", "naïve ☃ 😀"),
    "surrogate": ("RuntimeError('bad \\udc80 byte')", "RuntimeError", "bad"),
    "null": ("RuntimeError('null \\0 byte')", "RuntimeError", "null"),
    "no text": ("RuntimeError()", "RuntimeError", ""),
    "mute": ("type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "Mute", ""),
    "lines": ("OSError(5, 'two\\nlines')", "OSError", "two"),
    "exit 3": ("SystemExit(3)", "SystemExit", "3"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_exceptions(nursery: Nursery, what: str) -> None:
    """Whatever the exception's text is, the others hear of it, and the raiser ends as usual."""
    expression, kind, text = STRANGE[what]
    code = CODE.format(raising=f"with group: raise {expression}").replace(
        "atexit.register(lambda: here.ask())", ""
    )
    with Case(nursery, 3, "program", {"code": code, "raiser": 1}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.tell(1)
        raised_ns = case.wait(1, "raising").ns
        for rank in (0, 2):
            error = check_failure(case, rank, 1, raised_ns, "raised, strange")
            assert error["remote_type"] == kind, error
            assert text in (error.get("remote_message") or ""), error
        check_aftermath(case, [0, 2])
        assert case.wait_end(1) == (3 if what == "exit 3" else 1)


@pytest.mark.parametrize("fabric", FABRICS)
def test_opt_out(nursery: Nursery, fabric: str) -> None:
    """With excepthook=False nobody is told what was raised; the others hear that the rank left."""
    code = CODE.format(raising="compute()").replace("atexit.register(lambda: here.ask())", "")
    args = {"code": code, "raiser": 1}
    init = {"excepthook": False, "fabric": fabric}
    with Case(nursery, 3, "program", args, init=init) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 2)
        case.tell(1)
        raised_ns = case.wait(1, "raising").ns
        for rank in (0, 2):
            event = case.error(rank)
            assert event.error["type"] == "PeerLeft", f"{event}\n{case.story()}"
            assert event.error["rank"] == 1, event
            assert "bad batch" not in str(event.error), event
            case.prompt("raised, opt-out", raised_ns, event.ns, PROMISE_S)
        check_aftermath(case, [0, 2])
        assert case.wait_end(1) == 1


def test_caught_is_nobodys_business(nursery: Nursery) -> None:
    """An exception that the program catches itself disturbs nobody."""
    code = """
        group = here.init()
        for turn in range(20):
            try:
                if here.rank == turn % here.size:
                    raise ValueError("bad batch 17")
            except ValueError:
                pass
            group.all_sum(np.ones(4))
        try:
            group.all_sum(np.ones(4), out=np.ones(5))
        except ValueError:
            group.all_sum(np.ones(4))
        group.close()
        """
    with Case(nursery, 3, "program", {"code": code}) as case:
        case.finish()
        assert [case.text(rank) for rank in range(3)] == ["", "", ""]


def test_two_raise(nursery: Nursery) -> None:
    """Two raise at once: all others name one of them, all the same one."""
    code = """
        group = here.init()
        group.barrier()
        here.say("ready")
        if here.rank in (1, 2):
            here.ask()
            here.say("raising")
            raise ValueError(f"bad batch {here.rank}")
        attempt("barrier", group.barrier)
        aftermath(here, group)
        """
    with Case(nursery, 4, "program", {"code": code}) as case:
        case.wait_all("ready")
        case.wait_asleep(0, 3)
        case.tell(1)
        case.tell(2)
        raised_ns = min(case.wait(rank, "raising").ns for rank in (1, 2))
        named = {case.error(rank).error["rank"] for rank in (0, 3)}
        assert len(named) == 1, case.story()
        assert named <= {1, 2}, case.story()
        for rank in (0, 3):
            check_failure(case, rank, named.copy().pop(), raised_ns, "two raise")
        check_aftermath(case, [0, 3])
