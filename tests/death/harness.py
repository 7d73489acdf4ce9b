"""Runs a scenario on n ranks, does something bad to them, and judges what each survivor says.

    with Case(nursery, 4, "tests.death.scenarios:blocked", {"op": "barrier"}) as case:
        case.wait_all("ready", but=[2])
        case.wait_asleep(*case.others(2))
        killed_ns = case.kill(2)               # returns when the process is gone
        for rank in case.others(2):
            error = case.error(rank)           # the event "raised"
            case.prompt("all_sum", killed_ns, error.ns, 1.0)
        case.finish()

Everything has the case's deadline, and leaving the `with` block ends and reaps every process, also
those that ranks have forked, and looks for what they left in /dev/shm.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests import emulated
from tests.death.measures import MEASURES, SECOND, allowance_s
from tests.death.nursery import DUMP_SIGNAL, now_ns
from tests.death.processes import REAP_S, Event, Nursery, Rank
from tests.ranks import listener

SHARED_MEMORY = Path("/dev/shm")

PerRank = Callable[[int], dict[str, Any]]


BLINDING: dict[str, Any] = {
    "heartbeat_s": 300.0,
    "hint_s": 600.0,
    "silence_s": 1200.0,
    "progress_s": 0,
    "startup_s": 0,
    "beacon": False,
    "sentinel": False,
    "exit_on_fault": False,
}
"""Arguments of init() with which the watch judges nothing that takes time, and ends nobody."""


class Late(AssertionError):
    """Something did not happen before the deadline: what this project promises never to be."""


class Case:
    """One scenario on n ranks."""

    blinding: ClassVar[dict[str, Any]] = {}
    """Arguments of init() that win over all others."""
    deadline_max_s: ClassVar[float] = math.inf

    def __init__(
        self,
        nursery: Nursery,
        size: int,
        scenario: str,
        args: dict[str, Any] | PerRank | None = None,
        *,
        init: dict[str, Any] | PerRank | None = None,
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
        forks: bool = False,
        quick_end: bool = False,
        deadline_s: float = 20.0,
        absent: Iterable[int] = (),
    ) -> None:
        """Say what is to run.

        Args:
            nursery: from the fixture.
            size: number of ranks.
            scenario: "module:function"; without a module one of tests.death.scenarios.
            args: for Here.args, the same for all ranks or by rank.
            init: further arguments of standfast.init(), the same for all ranks or by rank.
            env: further environment variables.
            fresh: each rank is a Python of its own, as a user would start it.
            forks: ranks fork children, which the case has to end.
            quick_end: a rank whose scenario returns ends at once, without the interpreter's own
                end, which takes longer than all the rest.
            deadline_s: of everything, from the start.
            absent: ranks that are not started.
        """
        self.nursery = nursery
        self.size = size
        self.ranks: dict[int, Rank] = {}
        self.began_ns = now_ns()
        self.deadline = time.monotonic() + min(deadline_s, self.deadline_max_s)
        self.folder = Path(tempfile.mkdtemp(prefix="standfast-death-"))
        self._scenario = scenario if ":" in scenario else f"tests.death.scenarios:{scenario}"
        self._args, self._init = args, init
        self._env = dict(env or {})
        self._fresh, self._forks, self._quick_end = fresh, forks, quick_end
        self._absent = set(absent)
        self._listener: socket.socket | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self._listener, self.address = self.open()
        with self._listener:
            try:
                for rank in range(self.size):
                    if rank not in self._absent:
                        self._start(rank)
            except BaseException:
                self.clean_up()
                raise
        return self

    def open(self) -> tuple[socket.socket, str]:
        """Return the coordinator's listener and its address."""
        return listener()

    def host_of(self, rank: int) -> dict[str, str] | None:
        """Return the host on which a rank lives (the arguments of namespaces.settle)."""
        return None

    def _start(self, rank: int) -> None:
        message = {
            "rank": rank,
            "size": self.size,
            "scenario": self._scenario,
            "args": _for(self._args, rank),
            "init": _for(self._init, rank),
            "blinding": self.blinding,
            "coordinator": self.address,
            "env": {**emulated.shared().environment(rank), **self._env},
            "folder": str(self.folder),
            "fresh": self._fresh,
            "own_process_group": self._forks,
            "quick_end": self._quick_end,
            "host": self.host_of(rank),
        }
        self.ranks[rank] = self.nursery.start(message, self._listener if rank == 0 else None)

    # --- seeing

    def others(self, *but: int) -> list[int]:
        """Return all ranks but these."""
        return [rank for rank in self.ranks if rank not in but]

    def until(self, what: str, condition: Callable[[], bool], limit_s: float | None = None) -> None:
        """Wait for something to become true.

        Raises:
            Late: not before the deadline; tells what each rank has said and where it hangs.
        """
        deadline = self.deadline
        if limit_s is not None:
            deadline = min(deadline, time.monotonic() + limit_s)
        while not condition():
            if time.monotonic() >= deadline:
                raise Late(f"{what}: not before the deadline\n{self.story(dump=True)}")
            self.nursery.pump(min(0.5, deadline - time.monotonic()))

    def pause(self, seconds: float) -> None:
        """Let time pass, where that is what the test is about."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.nursery.pump(end - time.monotonic())

    def wait(self, rank: int, name: str, limit_s: float | None = None) -> Event:
        """Wait for a rank to say something."""
        one = self.ranks[rank]

        def has_come() -> bool:
            return one.said(name) is not None or one.status is not None

        self.until(f"rank {rank} says {name!r}", has_come, limit_s)
        found = one.said(name)
        assert found is not None, f"rank {rank} ended without {name!r}\n{self.story()}"
        return found

    def wait_all(self, name: str, but: Iterable[int] = ()) -> dict[int, Event]:
        """Wait for all ranks, but some, to say something."""
        return {rank: self.wait(rank, name) for rank in self.others(*but)}

    def error(self, rank: int, limit_s: float | None = None) -> Event:
        """Wait for a rank to raise; return the event."""
        return self.wait(rank, "raised", limit_s)

    def wait_end(self, rank: int, limit_s: float | None = None) -> int:
        """Wait for a rank's end; return its exit status, negative for a signal."""
        one = self.ranks[rank]
        self.until(f"rank {rank} ends", lambda: one.status is not None, limit_s)
        assert one.status is not None
        return one.status

    def state(self, rank: int) -> str:
        """Return the state of a rank's main thread: R, S, T, ...; "" once it is gone."""
        try:
            text = Path(f"/proc/{self.ranks[rank].pid}/stat").read_text()
        except OSError:
            return ""
        return text.rpartition(")")[2].split()[0]

    def cpu_s(self, rank: int) -> float:
        """Return the processor time that a rank has used; 0 where that cannot be read."""
        try:
            text = Path(f"/proc/{self.ranks[rank].pid}/stat").read_text()
        except OSError:
            return 0.0
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_asleep(self, *ranks: int) -> None:
        """Wait until these ranks sleep, twice in a row: they are in the wait they announced."""
        if not Path("/proc/self/stat").exists():
            time.sleep(0.05)
            return
        for rank in ranks:
            for _ in range(2):
                self.until(f"rank {rank} sleeps", lambda r=rank: self._sleeps(r))  # type: ignore[misc]

    def _sleeps(self, rank: int) -> bool:
        for _ in range(10):
            self.nursery.pump(0.002)
            assert self.ranks[rank].status is None, f"rank {rank} has ended\n{self.story()}"
            # Where data wakes nobody, a wait is a chain of naps.
            if self.state(rank) == "S":
                return True
        return False

    def text(self, rank: int, kind: str = "err") -> str:
        """Return what a rank has written to stderr ("err") or stdout ("out")."""
        try:
            return (self.folder / f"{rank}.{kind}").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def story(self, dump: bool = False) -> str:
        """Tell what each rank has said and written; `dump`: let the living write their stacks."""
        if dump:
            living = [one for one in self.ranks.values() if one.status is None]
            if living:
                self._signal([one.rank for one in living], DUMP_SIGNAL)
                time.sleep(0.3)
        lines = []
        for rank, one in self.ranks.items():
            lines.append(
                f"rank {rank} (pid {one.pid}): status {one.status} state {self.state(rank)}"
            )
            for event in one.events:
                lines.append(
                    f"  {(event.ns - self.began_ns) / 1e6:8.1f} ms {event.name} {event.fields}"
                )
            lines.append(self.text(rank)[-3000:])
        return "\n".join(lines)

    # --- doing

    def tell(self, rank: int, word: str = "go") -> None:
        """Let a rank's ask() return."""
        with contextlib.suppress(ConnectionError):
            self.ranks[rank].line.send(word.encode() + b"\n")

    def _signal(self, ranks: Iterable[int], number: int) -> int:
        ids = [self.ranks[rank].number for rank in ranks]
        answer = self.nursery.ask({"do": "signal", "ids": ids, "number": number})
        assert answer["count"] == len(ids), f"signal {number}: {answer} of {ids}\n{self.story()}"
        return int(answer["ns"])

    def signal(self, rank: int, number: int) -> int:
        """Send a signal; return the time just before."""
        return self._signal([rank], number)

    def signal_all(self, number: int) -> int:
        """Send a signal to all ranks, within microseconds; return the time just before."""
        return self._signal(self.ranks, number)

    def kill(self, *ranks: int) -> int:
        """SIGKILL; return the time just before, when the processes are gone."""
        ns = self._signal(ranks, signal.SIGKILL)
        for rank in ranks:
            status = self.wait_end(rank)
            assert status == -signal.SIGKILL, f"rank {rank} ended with {status}\n{self.story()}"
        return ns

    def freeze(self, rank: int) -> int:
        """SIGSTOP; return the time just before, when the process stands still."""
        ns = self._signal([rank], signal.SIGSTOP)
        self.until(f"rank {rank} stops", lambda: self._is_stopped(rank))
        return ns

    def _is_stopped(self, rank: int) -> bool:
        if not Path("/proc/self/stat").exists():
            return True
        self.nursery.pump(0.001)
        return self.state(rank) == "T"

    def thaw(self, rank: int) -> int:
        return self._signal([rank], signal.SIGCONT)

    # --- judging

    def prompt(self, label: str, from_ns: int, to_ns: int, limit_s: float) -> None:
        """Assert that something took no longer than promised, and note how long it took."""
        took = (to_ns - from_ns) / SECOND
        MEASURES.add(label, took)
        allowed = limit_s + allowance_s(from_ns)
        assert took <= allowed, f"{label}: {took:.3f} s, promised {limit_s} s\n{self.story()}"

    def allowed_s(self, promised_s: float) -> float:
        """Return the limit of what was promised, as it is unless the machine itself was late."""
        return promised_s + allowance_s(self.began_ns)

    def finish(self, *but: int, statuses: Mapping[int, int] | None = None) -> None:
        """Let the survivors end, and assert that they end well (or with the given status)."""
        living = [rank for rank in self.others(*but) if self.ranks[rank].status is None]
        for rank in living:
            self.tell(rank, "end")
        for rank in self.others(*but):
            status = self.wait_end(rank)
            wanted = (statuses or {}).get(rank, 0)
            assert status == wanted, f"rank {rank}: status {status}, not {wanted}\n{self.story()}"

    # --- the end

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        left = self.clean_up()
        assert not (left and error is None), f"left behind: {left}"

    def clean_up(self) -> list[str]:
        """End and reap every process; return the names of shared memory that they left."""
        living = [rank for rank, one in self.ranks.items() if one.status is None]
        if living:
            with contextlib.suppress(AssertionError):
                self._signal(living, signal.SIGKILL)
        deadline = time.monotonic() + REAP_S
        pids = [one.pid for one in self.ranks.values()]
        for rank, one in self.ranks.items():
            while one.status is None:
                assert time.monotonic() < deadline, f"rank {rank} cannot be killed"
                self.nursery.pump(0.1)
            self.nursery.forget(one)
        shutil.rmtree(self.folder, ignore_errors=True)
        return segments_of(pids)


def _for(args: dict[str, Any] | PerRank | None, rank: int) -> dict[str, Any]:
    if args is None:
        return {}
    return args(rank) if callable(args) else args


def segments_of(pids: Iterable[int]) -> list[str]:
    """Return the names of shared memory that these processes have made."""
    prefixes = tuple(f"sf-{pid}-" for pid in pids)
    try:
        return [name for name in os.listdir(SHARED_MEMORY) if name.startswith(prefixes)]
    except FileNotFoundError:
        return []
