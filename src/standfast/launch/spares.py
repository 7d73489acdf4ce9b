"""Spares: processes that wait in init() until they are given a lost rank's place.

Started beside the ranks, and kept over all generations: by LocalCrew, or by the agent of a host for
AgentCrew. One that ends by itself is told of and replaced, but not for ever: its end says nothing
about the ranks. standfast/spare.py is the other end.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from standfast.launch.clock import now_ns
from standfast.launch.policy import pause_s
from standfast.launch.process import RankProcess
from standfast.launch.records import RankEnd

SPARE_RANK = -1
DEATHS_MAX = 3
"""So many in a row that end before they have a place, and no more are started."""
SETTLE_NS = 1_000_000_000
"""How long after one was used the next is started: the group is to be whole first."""
END_S = 1.0
POLL_S = 0.01

Start = Callable[[int], tuple[RankProcess, Mapping[str, str]]]
"""Starts one that gets this descriptor; returns its environment as well."""


@dataclass(frozen=True)
class Spare:
    """One that waits: its process, our end of its socket, and the environment that it has."""

    member: RankProcess
    line: socket.socket
    environment: Mapping[str, str]


class Upkeep:
    """When another spare is to be started, and whether that is of any use. Told what happens."""

    def __init__(self) -> None:
        self._deaths = 0
        self._due_ns: int | None = None

    def begin(self) -> None:
        """The first ranks are there: the first spares are due."""
        if self._due_ns is None:
            self._due_ns = now_ns()

    def used(self) -> None:
        """One has a place."""
        self._deaths = 0
        self._due_ns = now_ns() + SETTLE_NS

    def ended(self, how: str) -> str:
        """One has ended without a place; return that as words, with what follows."""
        self._deaths += 1
        wait_s = pause_s(self._deaths)
        self._due_ns = now_ns() + int(wait_s * 1e9)
        if self._deaths < DEATHS_MAX:
            follows = f"another is started{f' in {wait_s:g} s' if wait_s else ''}"
        else:
            follows = f"the last {DEATHS_MAX} ended so, and no more are started"
        return f"{how} before it had a place; {follows}"

    @property
    def due_ns(self) -> int | None:
        """When the next is due; None for never."""
        return self._due_ns if self._deaths < DEATHS_MAX else None


class Spares:
    """Those of this machine."""

    def __init__(
        self,
        wanted: int,
        start: Start,
        watch: Callable[[int], None],
        tell: Callable[[RankEnd, str], None],
    ) -> None:
        """`watch(pid)`: have ended() called; `tell(end, what)`: of an end, and what follows."""
        self._wanted = wanted
        self._start = start
        self._watch = watch
        self._tell = tell
        self._waiting: list[Spare] = []
        self._fallen: list[RankProcess] = []
        self._upkeep = Upkeep()

    def open(self) -> None:
        """Start them, now that the first ranks are there."""
        self._upkeep.begin()

    @property
    def pids(self) -> list[int]:
        """Processes that are ours to reap."""
        return [each.member.pid for each in self._waiting]

    def due_ns(self) -> int | None:
        """Return when attend() is to be called next, whatever happens."""
        if self._fallen:
            return now_ns() + int(POLL_S * 1e9)
        return self._upkeep.due_ns if len(self._waiting) < self._wanted else None

    def attend(self) -> list[RankProcess]:
        """Start those that are due. Return those that are gone with all of their group."""
        due_ns = self.due_ns()
        if not self._fallen and due_ns is not None and now_ns() >= due_ns:
            self._start_missing()
        gone = [member for member in self._fallen if member.check_gone()]
        self._fallen = [member for member in self._fallen if not member.gone]
        for member in self._fallen:
            member.kill_rest()
        return gone

    def _start_missing(self) -> None:
        while len(self._waiting) < self._wanted:
            ours, its = socket.socketpair()
            with its:
                try:
                    member, environment = self._start(its.fileno())
                except OSError as error:
                    ours.close()
                    end = RankEnd(SPARE_RANK, 0, now_ns(), now_ns(), 0)
                    self._tell(end, self._upkeep.ended(f"not started ({error.strerror})"))
                    return
            ours.setblocking(False)
            self._waiting.append(Spare(member, ours, environment))
            self._watch(member.pid)

    def give(
        self, rank: int, environment: Mapping[str, str], fds: Sequence[int]
    ) -> RankProcess | None:
        """Give a rank's place to the one that has waited longest; None if there is none.

        Args:
            rank: its rank from here on.
            environment: the whole environment of that rank.
            fds: the listener, for rank 0 of a generation.
        """
        while self._waiting:
            spare = self._waiting.pop(0)
            if seat(spare.line, spare.environment, environment, fds):
                self._upkeep.used()
                spare.member.rank = rank
                return spare.member
            self._fallen.append(spare.member)  # its end is known soon
        return None

    def ended(self, pid: int) -> bool:
        """Learn of the end of a child; whether it was one of these."""
        spare = next((each for each in self._waiting if each.member.pid == pid), None)
        member = spare.member if spare is not None else self._fallen_with(pid)
        if member is None:
            return False
        member.reap()
        if spare is not None:
            spare.line.close()
            self._waiting.remove(spare)
            self._fallen.append(member)
        end = member.end(now_ns())
        self._tell(end, self._upkeep.ended(end.words()))
        return True

    def _fallen_with(self, pid: int) -> RankProcess | None:
        return next((each for each in self._fallen if each.pid == pid and each.running), None)

    def close(self) -> None:
        """End them all, and see that they are gone. They have done nothing that could be lost."""
        left = [*(each.member for each in self._waiting), *self._fallen]
        for spare in self._waiting:
            spare.line.close()
            spare.member.tell(signal.SIGTERM)
        self._waiting, self._fallen, self._wanted = [], [], 0
        end_s = time.monotonic() + END_S
        while left and time.monotonic() < end_s:
            left = [each for each in left if not each.check_gone()]
            time.sleep(POLL_S if left else 0)
        for member in left:
            member.kill_rest()
        end_s = time.monotonic() + END_S
        while left and time.monotonic() < end_s:
            left = [each for each in left if not each.destroyed()]
            time.sleep(POLL_S if left else 0)


def seat(
    line: socket.socket,
    before: Mapping[str, str],
    environment: Mapping[str, str],
    fds: Sequence[int],
) -> bool:
    """Tell a spare who it is, and close the line; whether it can have heard it.

    Args:
        line: our end of its socket.
        before: the environment that it has.
        environment: the one that it gets.
        fds: the listener, for rank 0 of a generation.
    """
    place = {
        "set": {k: v for k, v in environment.items() if before.get(k) != v},
        "unset": [name for name in before if name not in environment],
    }
    data = json.dumps(place).encode() + b"\n"
    with line, contextlib.suppress(OSError):
        return socket.send_fds(line, [data], list(fds)) == len(data)
    return False
