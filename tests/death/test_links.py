"""A data connection breaks while its processes live: LinkLost, on all ranks, naming both ends."""

from __future__ import annotations

import sys

import pytest

from tests.death.harness import Case
from tests.death.judge import check_aftermath
from tests.death.processes import Nursery

PROMISE_S = 2.0

# What rank 1 does to its connection with rank 2, through a duplicate of the core's descriptor.
BREAKING = {
    "reset": """
        # Linger 0, then AF_UNSPEC: Linux sends RST at once, as for the last close().
        import struct
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ctypes.CDLL(None).connect(sock.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16)
        """,
    "shutdown": "sock.shutdown(socket.SHUT_RDWR)",
    "shutdown of sending": "sock.shutdown(socket.SHUT_WR)",
    "garbage": "sock.send(b'x' * 100)",
}


def _breaking(how: str) -> str:
    lines = [line.removeprefix("        ") for line in BREAKING[how].strip("\n ").split("\n")]
    return "\n            ".join(line.strip() for line in lines)


def code_of(how: str) -> str:
    return f"""
        import socket
        group = here.init()
        group.barrier()
        if here.rank == 1:
            end = next(end for end in group._formation.wires if end.rank == 2)
            sock = socket.socket(fileno=os.dup(end.fd))
        def break_it():
            here.ask()
            here.say("breaking")
            {_breaking(how)}
        if here.rank == 1:
            threading.Thread(target=break_it, daemon=True).start()
        def work():
            for turn in range(1_000_000_000):
                do(group, here.args["op"], turn % here.size, LARGE)
                if turn == 3:
                    here.say("ready")
                if here.args["waits"] and here.rank == 2 and turn == 3:
                    here.ask()
        attempt("work", work)
        aftermath(here, group)
        """


if sys.platform != "linux":
    del BREAKING["reset"]


@pytest.mark.parametrize("topology", ["mesh", "ring"])
@pytest.mark.parametrize("how", [how for how in BREAKING if how != "garbage"])
def test_at_work(nursery: Nursery, how: str, topology: str) -> None:
    """One hop of four breaks in the middle of all_reduce: every rank raises within 2 s (R03)."""
    args = {"code": code_of(how), "op": "all_reduce large", "waits": False}
    init = {"fabric": "tcp", "topology": topology}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.tell(1)
        broken_ns = case.wait(1, "breaking").ns
        check_lost(case, case.others(), broken_ns, f"{how} tcp")
        check_aftermath(case, case.others())


@pytest.mark.parametrize("topology", ["mesh", "ring"])
@pytest.mark.parametrize(
    ("how", "fabric"), [*((how, "tcp") for how in BREAKING), ("shutdown", "shm")]
)
def test_in_a_wait(nursery: Nursery, how: str, fabric: str, topology: str) -> None:
    """All wait for one rank when a connection of it breaks (for shm: that which wakes)."""
    args = {"code": code_of(how), "op": "all_reduce large", "waits": True}
    init = {"fabric": fabric, "topology": topology}
    with Case(nursery, 4, "program", args, init=init, quick_end=True) as case:
        case.wait_all("ready")
        case.wait_asleep(*case.others(2))
        case.tell(1)
        broken_ns = case.wait(1, "breaking").ns
        if how in ("garbage", "shutdown of sending"):  # seen by who reads it
            case.tell(2)
        check_lost(case, case.others(2), broken_ns, f"{how} {fabric}")
        case.tell(2)
        assert case.error(2).error["type"] == "LinkLost", case.story()
        check_aftermath(case, case.others())


def check_lost(case: Case, ranks: list[int], broken_ns: int, label: str) -> None:
    for rank in ranks:
        event = case.error(rank)
        error = event.error
        assert error["type"] == "LinkLost", f"{error}\n{case.story()}"
        assert error["rank"] in (1, 2), f"{error}\n{case.story()}"
        assert "rank 1" in error["message"], error
        assert "rank 2" in error["message"], error
        case.prompt(f"link lost, {label}", broken_ns, event.ns, PROMISE_S)
