"""What the ranks of the death tests do. Each scenario is called with Here; see harness.py.

A scenario says where it is ("ready"), does something that ends in an error ("raised") or not
("returned"), and then lives on until it is told to end: so nobody learns of a death by somebody
else's exit.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - program texts use it, and the modules below
import ctypes  # noqa: F401
import functools
import linecache
import os
import signal  # noqa: F401
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import standfast  # noqa: F401
from tests.death.nursery import Here, now_ns
from tests.death.operations import LARGE, MIXED, OPS, is_right


def described(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON: our own with all fields."""
    told: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    to_dict = getattr(error, "to_dict", None)
    return {**told, **to_dict()} if to_dict else told


def attempt(here: Here, name: str, call: Callable[[], Any], event: str = "") -> Any:
    """Make a call; say "raised" or "returned" (or the given event), how, and how long it took.

    Returns:
        The exception, or what was returned.
    """
    begun = now_ns()
    try:
        value = call()
    except BaseException as error:  # noqa: BLE001 - it is what the tests are about
        ns = now_ns()
        took = (ns - begun) / 1e9
        here.say(event or "raised", ns, at=name, error=described(error), took_s=took)
        return error
    ns = now_ns()
    here.say(event or "returned", ns, at=name, took_s=(ns - begun) / 1e9)
    return value


def descriptors() -> set[str]:
    """Return what this process has open."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            found.add(f"{name}: {os.readlink(f'/dev/fd/{name}')}")
        except OSError:
            continue  # the one that lists
    return found


def aftermath(here: Here, group: Any) -> None:
    """After the first error: later calls fail at once, alike; then live on; then close, in time."""
    attempt(here, "barrier", group.barrier, "again")
    attempt(here, "all_sum", lambda: group.all_sum(np.ones(4)), "again")
    attempt(here, "async", lambda: group.barrier_async().wait(), "again")
    failure = group.last_failure()
    here.say(
        "state",
        healthy=group.healthy(),
        last=None if failure is None else described(failure),
        text=repr(group),
    )
    here.ask()
    attempt(here, "close", group.close, "closed")


def do(group: Any, key: str, peer: int, count: int = 0, **more: Any) -> None:
    """Do the operation and check its result."""
    count = count or OPS[key].elements
    value = OPS[key].call(group, peer, count, **more)
    assert is_right(key, value, group.rank, peer, group.size, count), f"{key} is wrong: {value}"


def step(here: Here, group: Any, key: str, peer: int) -> None:
    """Do the operation, then wait for all: whoever did not need the missing rank needs it now."""
    do(group, key, peer)
    here.say("passed", at=key)
    group.barrier()


def blocked(here: Here) -> None:
    """One rank stays away from an operation and another wait in it.

    args: op, peer (the rank that all wait for), idle (the ranks that stay away until told "go";
    what they do then is told as "late").
    """
    group = here.init()
    key, peer = here.args["op"], here.args["peer"]
    group.barrier()
    if here.rank in here.args["idle"]:
        here.say("ready")
        if here.ask() == "end":
            return
        attempt(here, key, lambda: step(here, group, key, peer))
        aftermath(here, group)
        return
    here.say("ready")
    attempt(here, key, lambda: step(here, group, key, peer))
    aftermath(here, group)


def busy(here: Here) -> None:
    """All ranks repeat an operation, or all of them in turn, and check the results."""
    group = here.init()
    keys = list(OPS) if here.args["op"] == MIXED else [here.args["op"]]

    def forever() -> None:
        for number in range(1_000_000_000):
            key = keys[number % len(keys)]
            # Most of the time should be spent in the operation.
            do(group, key, number % here.size, min(OPS[key].elements, LARGE))
            if number == 2:
                here.say("ready")

    attempt(here, here.args["op"], forever)
    aftermath(here, group)


def told(here: Here) -> bool:
    """Tell whether the test has said something, without waiting for it."""
    try:
        return bool(here.line.recv(4096, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def working(here: Here) -> None:
    """All ranks repeat an operation, or all in turn, and check each result, until one is told.

    args: op; limits (further arguments of init).
    """
    group = here.init(**here.args.get("limits", {}))
    keys = list(OPS) if here.args["op"] == MIXED else [here.args["op"]]
    turns = 0

    def work() -> None:
        nonlocal turns
        going = True
        while going:
            key = keys[turns % len(keys)]
            do(group, key, turns % here.size, min(OPS[key].elements, LARGE))
            going = group.agree(not told(here))
            turns += 1
            if turns == 3:
                here.say("ready")

    attempt(here, "work", work)
    here.say("worked", turns=turns, healthy=group.healthy())
    if not group.healthy():
        aftermath(here, group)
    group.close()


def idle(here: Here) -> None:
    """Nobody calls anything; healthy() tells."""
    group = here.init()
    group.barrier()
    here.say("ready")
    while group.healthy():
        time.sleep(0.005)
    failure = group.last_failure()
    here.say("unhealthy", last=None if failure is None else described(failure))
    attempt(here, "barrier", group.barrier)
    aftermath(here, group)


def threads(here: Here) -> None:
    """Two threads of each rank wait in one group: one receives, the other sends or comes second."""
    group = here.init()
    group.barrier()
    key, peer = here.args["op"], here.args["peer"]
    if here.rank in here.args["idle"]:
        here.say("ready")
        here.ask()
        return
    lock = threading.Lock()

    def one(name: str) -> None:
        begun = now_ns()
        try:
            step(here, group, key, peer)
        except BaseException as error:  # noqa: BLE001 - it is what the tests are about
            ns = now_ns()
            with lock:
                here.say(f"raised {name}", ns, error=described(error), took_s=(ns - begun) / 1e9)

    workers = [threading.Thread(target=one, args=(name,)) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    here.say("ready")
    for worker in workers:
        worker.join()
    aftermath(here, group)


def program(here: Here) -> None:
    """Run a text, for what is said best beside the test: args["code"]."""
    code = textwrap.dedent(here.args["code"])
    name = f"<rank {here.rank}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    names = {
        **vars(sys.modules[__name__]),
        "__name__": "__main__",
        "here": here,
        "attempt": functools.partial(attempt, here),
    }
    exec(compile(code, name, "exec"), names)
