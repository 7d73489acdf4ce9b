"""Who starts the ranks of a generation, and what the loop sees of a rank wherever it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from standfast.launch.environment import Formation, Newcomers
from standfast.launch.process import Pipe
from standfast.launch.records import RankEnd

if TYPE_CHECKING:
    from standfast.launch.verdicts import Report


class Member(Protocol):
    """A rank that was started: RankProcess here, RemoteRank elsewhere. `host`: empty here."""

    rank: int
    host: str
    pid: int
    ended_ns: int | None
    gone: bool
    killed_ns: int | None

    @property
    def streams(self) -> Sequence[Pipe]:
        """Its stdout and its stderr."""

    @property
    def label(self) -> str:
        """What a user calls its process group."""

    @property
    def running(self) -> bool:
        """Whether the leader has not ended."""

    @property
    def drained(self) -> bool:
        """Whether all its output was passed on."""

    @property
    def unsettled(self) -> bool:
        """Whether no event will tell of the next change."""

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the group; the first one is remembered while the leader runs."""

    def kill_rest(self) -> None:
        """Kill what the leader left behind."""

    def check_gone(self) -> bool:
        """Whether the whole group is gone, now that the leader is reaped."""

    def destroyed(self) -> bool:
        """Kill the whole group, leader included; whether nothing is left of it."""

    def end(self, now: int) -> RankEnd:
        """Return how it ended; `now` is the end of a process that could not be killed."""


class Crew(Protocol):
    """Starts and watches the ranks of one generation after the other."""

    @property
    def kept(self) -> Sequence[int]:
        """Children that live on between generations, and are its own to reap."""

    def start(
        self, formation: Formation, members: dict[int, Member], ended: Callable[[Member], None]
    ) -> None:
        """Start all ranks, and put each into `members` as soon as it is there.

        `ended(member)` is called from the loop once a rank's leader was reaped.

        Raises:
            OSError, LaunchError: one could not be started.
        """

    def may_follow(self, rank: int) -> bool:
        """Whether nothing of the process that had this rank last can still run."""

    def newcomer(self, newcomers: Newcomers, rank: int, ended: Member) -> Member | None:
        """Start a process in the place of a rank that was lost; None if there is no room.

        `ended`: who had the rank last.

        Raises:
            OSError: it could not be started.
        """

    def due_ns(self) -> int | None:
        """Return when attend() is to be called next, whatever happens."""

    def attend(self) -> None:
        """Do what is due."""

    def cleared(self, member: Member) -> None:
        """Learn that nothing is left of a member's group."""

    def tell_lost(self, generation: int, text: str) -> None:
        """Tell the ranks that wait for each other of one that does not come any more."""

    def reports(self, generation: int, ranks: int) -> dict[int, Report]:
        """Return the errors that this generation's ranks have reported so far."""

    def over(self) -> None:
        """The generation is over: forget its members."""
