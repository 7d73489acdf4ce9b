"""The process whose children are the ranks: it imports everything once, and forks for each rank.

Starting Python and NumPy takes ten times as long as most deaths. So this process, which has one
thread and no group, does it once; harness.py tells it over a socket whom to start and whom to send
which signal, and hears from it who has ended, how and when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import emulated

ROOT = Path(__file__).resolve().parents[2]
LENGTH = struct.Struct("<I")
FDS_MAX = 2
DUMP_SIGNAL = signal.SIGUSR1
"""A rank writes the stacks of its threads to stderr."""
DESERTED = 99
"""Exit status of a rank whose test is gone."""


def now_ns() -> int:
    """Return CLOCK_MONOTONIC, which all processes of a host share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Return so many bytes.

    Raises:
        EOFError: the other end is closed.
    """
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def send_message(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send a message with descriptors."""
    payload = json.dumps(message).encode()
    if fds:
        socket.send_fds(sock, [LENGTH.pack(len(payload))], list(fds))
        sock.sendall(payload)
    else:
        sock.sendall(LENGTH.pack(len(payload)) + payload)


def receive_message(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message and its descriptors.

    Raises:
        EOFError: the other end is closed.
    """
    head, fds, _, _ = socket.recv_fds(sock, LENGTH.size, FDS_MAX)
    if not head:
        raise EOFError
    head += read_exactly(sock, LENGTH.size - len(head))
    return json.loads(read_exactly(sock, LENGTH.unpack(head)[0])), fds


# --- in a rank ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Here:
    """What a scenario has: who it is, its arguments, and the line to the test."""

    rank: int
    size: int
    init_args: dict[str, Any]
    args: dict[str, Any]
    blinding: dict[str, Any]
    line: socket.socket
    heard: bytes = b""

    def say(self, event: str, ns: int | None = None, **fields: Any) -> None:
        """Tell the test that something has happened, now unless a time is given."""
        told = {"event": event, "ns": now_ns() if ns is None else ns, **fields}
        self.line.sendall(json.dumps(told).encode() + b"\n")

    def ask(self) -> str:
        """Wait for a word of the test."""
        while b"\n" not in self.heard:
            part = self.line.recv(4096)
            if not part:
                os._exit(DESERTED)
            self.heard += part
        word, _, self.heard = self.heard.partition(b"\n")
        return word.decode()

    def init(self, **more: Any) -> Any:
        """Form the group."""
        import standfast

        given = {**self.init_args, **more, **self.blinding}
        return standfast.init(**emulated.arguments(given.get("size", self.size), given))


Scenario = Callable[[Here], None]


def scenario_of(name: str) -> Scenario:
    """Find ``tests.death.scenarios:blocked``."""
    module, _, function = name.partition(":")
    found: Scenario = getattr(importlib.import_module(module), function)
    return found


def _become(message: dict[str, Any], fds: list[int]) -> Callable[[], None]:
    """Turn this fresh process into a rank; return what it has to do."""
    if message["own_process_group"]:
        os.setpgid(0, 0)
    folder = Path(message["folder"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{message['rank']}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(message["env"])
    if message["host"]:
        _move(**message["host"])
    if message["fresh"]:
        for fd in fds:
            os.set_inheritable(fd, True)
        text = json.dumps({**message, "fds": fds})
        os.execv(sys.executable, [sys.executable, __file__, "rank", text])
    return _rank(message, fds)


def _move(path: str, name: str) -> None:
    """Let this process live on another host than the nursery."""
    from standfast.rendezvous import host
    from tests.network.namespaces import settle

    settle(path, name)
    host.host_id.cache_clear()


def _rank(message: dict[str, Any], fds: list[int]) -> Callable[[], None]:
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    init_args = {
        "rank": message["rank"],
        "size": message["size"],
        "coordinator": message["coordinator"],
        **message["init"],
    }
    if len(fds) > 1:
        init_args["listen_fd"] = fds[1]
    line = socket.socket(fileno=fds[0])
    line.set_inheritable(False)
    here = Here(
        message["rank"], message["size"], init_args, message["args"], message["blinding"], line
    )
    scenario = scenario_of(message["scenario"])

    def run() -> None:
        scenario(here)
        if message["quick_end"]:
            os._exit(0)

    return run


def _reap(pid: int) -> int | None:
    """Return the exit status of a child, negative for a signal; None while it lives."""
    ended, code = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(code) if ended else None


def _peek(pid: int) -> int | None:
    """Do the same, but let the child stay a zombie (macOS has that from Python 3.13 on)."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


# --- the nursery ----------------------------------------------------------------------------------


class Nursery:
    """Serves one test process until that is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.living: dict[int, int] = {}  # pid -> number of the rank in the test process
        self.zombies: dict[int, int] = {}  # the same, ended but kept: number -> pid

    def serve(self) -> Callable[[], None] | None:
        """Return in each child, with what it has to do; and in the end, with nothing."""
        wake, ring = socket.socketpair()
        ring.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is wake:
                        with contextlib.suppress(BlockingIOError):
                            wake.recv(4096)
                        self._reap()
                        continue
                    try:
                        message, fds = receive_message(self.sock)
                    except (EOFError, ConnectionError):
                        self._end_all()
                        return None
                    task = self._obey(message, fds)
                    if task is None:
                        continue
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for sock in (self.sock, wake, ring):
                        sock.close()
                    return task

    def _obey(self, message: dict[str, Any], fds: list[int]) -> Callable[[], None] | None:
        if message["do"] == "start":
            return self._start(message, fds)
        if message["do"] == "signal":
            self._signal(message)
        elif message["do"] == "forget":
            self._forget(message["id"])
        return None

    def _start(self, message: dict[str, Any], fds: list[int]) -> Callable[[], None] | None:
        pid = os.fork()
        if pid == 0:
            return _become(message, fds)
        for fd in fds:
            os.close(fd)
        self.living[pid] = message["id"]
        self._keeps(message["id"], message["own_process_group"])
        send_message(self.sock, {"did": "start", "id": message["id"], "pid": pid})
        return None

    def _keeps(self, number: int, kept: bool) -> None:
        if kept:
            self.zombies[number] = 0

    def _signal(self, message: dict[str, Any]) -> None:
        """Send a signal; the time told is that just before."""
        pids = [pid for pid, number in self.living.items() if number in message["ids"]]
        ns = now_ns()
        for pid in pids:
            os.kill(pid, message["number"])
        send_message(self.sock, {"did": "signal", "count": len(pids), "ns": ns})

    def _reap(self) -> None:
        """Tell of each child that has ended. Leaders of a process group stay until forgotten."""
        for pid, number in list(self.living.items()):
            kept = number in self.zombies
            status = _peek(pid) if kept else _reap(pid)
            if status is None:
                continue
            ns = now_ns()
            del self.living[pid]
            if kept:
                self.zombies[number] = pid
            send_message(self.sock, {"did": "end", "id": number, "status": status, "ns": ns})

    def _forget(self, number: int) -> None:
        """End what a rank has forked, then reap the rank itself: until then its number is taken."""
        pid = self.zombies.pop(number, 0)
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        send_message(self.sock, {"did": "forget", "id": number})

    def _end_all(self) -> None:
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for number in list(self.zombies):
            with contextlib.suppress(OSError):
                self._forget(number)


def _warm_up() -> None:
    """Load all that ranks load, also what the library loads late; but form no group."""
    import asyncio  # noqa: F401
    import multiprocessing  # noqa: F401

    import numpy as np

    import standfast
    from standfast import operations
    from standfast.rendezvous import hello, host
    from tests.death import scenarios  # noqa: F401

    assert standfast.init is not None
    hello.package_version()
    host.host_id()
    operations.all_reduce(operations.Member(0, 2), np.ones(4), "sum", None, None)
    operations.gather(operations.Member(0, 2), b"bytes", 0, None, None)


def main(arguments: list[str]) -> Callable[[], None] | None:
    """Return what this process has to do: in a rank its scenario, in the nursery nothing more."""
    if arguments[0] == "rank":
        message = json.loads(arguments[1])
        return _rank(message, message["fds"])
    _warm_up()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    return Nursery(socket.socket(fileno=int(arguments[1]))).serve()


if __name__ == "__main__":
    from tests.death import nursery

    todo = nursery.main(sys.argv[1:])
    if todo is not None:
        todo()
