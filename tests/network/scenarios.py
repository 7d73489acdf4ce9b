"""What the ranks of the network tests do, besides tests/death/scenarios.py: they tell of hints."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

from tests.death.nursery import Here
from tests.death.operations import LARGE, OPS
from tests.death.scenarios import aftermath, attempt, described, do, step

PAUSE_S = 0.005
TURNS_S = 0.1


def form(here: Here) -> Any:
    """Form the group, and tell of every hint as soon as it can be seen."""
    group = here.init()

    def watch() -> None:
        seen = set()
        while True:
            for hint in group.hints():
                told = (hint.kind, hint.rank)
                if told not in seen:
                    seen.add(told)
                    here.say("hint", kind=hint.kind, rank=hint.rank, text=str(hint))
            time.sleep(PAUSE_S)

    threading.Thread(target=watch, name="hints", daemon=True).start()
    group.barrier()
    return group


def told_to_end(here: Here) -> bool:
    """Tell whether a word has come, without waiting for one."""
    try:
        return bool(here.line.recv(100, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def working(here: Here) -> None:
    """All repeat an operation and check its results, until the test tells rank 0 to end.

    args: op. "turns" tells now and then how many were right so far.
    """
    group = form(here)
    key = here.args["op"]

    def work() -> None:
        turns, told_s, going = 0, 0.0, True
        while going:
            do(group, key, turns % here.size, min(OPS[key].elements, LARGE))
            going = group.agree(here.rank != 0 or not told_to_end(here))
            turns += 1
            if turns == 3:
                here.say("ready")
            if time.monotonic() - told_s > TURNS_S:
                told_s = time.monotonic()
                here.say("turns", count=turns)
            # Data flows all the time, and yet 4 ranks leave something of 2 processors.
            time.sleep(PAUSE_S)

    if isinstance(attempt(here, key, work), BaseException):
        aftermath(here, group)
        return
    here.say("worked", healthy=group.healthy())
    group.close()


def idle(here: Here) -> None:
    """Nobody calls anything, until the test says so or the group is over."""
    group = form(here)
    here.say("ready")
    while group.healthy() and not told_to_end(here):
        time.sleep(PAUSE_S)
    if group.healthy():
        group.barrier()
        here.say("worked", healthy=group.healthy())
        group.close()
        return
    failure = group.last_failure()
    here.say("unhealthy", last=None if failure is None else described(failure))
    attempt(here, "barrier", group.barrier)
    aftermath(here, group)


def waiting(here: Here) -> None:
    """One rank (args: away) stays away from an operation (op) until told, the others wait in it."""
    group = form(here)
    here.say("ready")
    if here.rank == here.args["away"]:
        here.ask()
    attempt(here, here.args["op"], lambda: step(here, group, here.args["op"], here.args["away"]))
    aftermath(here, group)


def called(here: Here) -> None:
    """Nobody calls anything until told; then all do the same operation (args: op)."""
    group = form(here)
    here.say("ready")
    here.ask()
    attempt(here, here.args["op"], lambda: do(group, here.args["op"], 0))
    aftermath(here, group)


def connections(here: Here) -> None:
    """Tell of each TCP connection of this process: its ends, and how the kernel looks after it."""
    group = form(here)
    found = {}
    for one in _tcp_sockets():
        with one:
            found[one.getsockname(), one.getpeername()] = _described(one)
    here.say("connections", found=list(found.values()))
    here.ask()
    group.close()


def _tcp_sockets() -> list[socket.socket]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        is_tcp = one.family == socket.AF_INET and one.type == socket.SOCK_STREAM
        if is_tcp and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.append(one)
        else:
            one.close()
    return found


def _described(one: socket.socket) -> dict[str, Any]:
    def tcp(option: str) -> int:
        return one.getsockopt(socket.IPPROTO_TCP, getattr(socket, option))

    return {
        "near": one.getsockname()[0],
        "far": one.getpeername()[0],
        "keepalive": bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
        "idle_s": tcp("TCP_KEEPIDLE"),
        "interval_s": tcp("TCP_KEEPINTVL"),
        "probes": tcp("TCP_KEEPCNT"),
        "user_timeout_ms": tcp("TCP_USER_TIMEOUT"),
    }
