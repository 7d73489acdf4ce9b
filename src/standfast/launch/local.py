"""Ranks as children of the launcher itself, on its own machine."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from standfast.launch.crew import Member
from standfast.launch.descriptions import ring_name, ring_text, written
from standfast.launch.environment import (
    HOST,
    Formation,
    Listeners,
    Newcomers,
    alone,
    own_formation,
    rank_environment,
    spare_environment,
)
from standfast.launch.guardian import Guardian
from standfast.launch.notices import write_obituary
from standfast.launch.output import Output
from standfast.launch.parts import ExitWatch
from standfast.launch.ports import free_port, free_ports, open_listener, port_of
from standfast.launch.process import Program, RankProcess, start_rank
from standfast.launch.records import RankEnd
from standfast.launch.spares import SPARE_RANK, Spares
from standfast.launch.stdin import Stdin, rank_stdin
from standfast.launch.terminal import size_variables

if TYPE_CHECKING:
    import selectors

    from standfast.launch.verdicts import Report


class LocalCrew:
    """The ranks of a job of one machine."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        output: Output,
        guardian: Guardian,
        program: Program,
        directory: str,
        environ_of: Callable[[int], Mapping[str, str]],
        stdin: Stdin,
        read_notices: Callable[[], None],
        *,
        watch: bool,
        spares: int = 0,
        spare_ended: Callable[[RankEnd, str], None] = lambda end, what: None,
    ) -> None:
        self._output = output
        self._guardian = guardian
        self._program = program
        self._directory = directory
        self._environ_of = environ_of
        self._watch_too = watch
        self._selector = selector
        self._stdin = stdin
        self._read_notices = read_notices
        self._formation: Formation | None = None
        self._children: dict[int, RankProcess] = {}
        self._ended: Callable[[Member], None] = _nobody
        self._exits = ExitWatch(selector, self._child_ended)
        self._exits.add(guardian.pid)
        self._spare_ended = spare_ended
        self._spares = Spares(spares, self._start_spare, self._exits.add, self._tell_of_spare)

    @property
    def kept(self) -> Sequence[int]:
        """Spares."""
        return self._spares.pids

    def start(
        self, formation: Formation, members: dict[int, Member], ended: Callable[[Member], None]
    ) -> None:
        """Start all ranks; rank 0 alone holds the listeners then: nobody meets one that is gone."""
        self._ended = ended
        opened = [open_listener() for _ in range(2 if self._watch_too else 1)]
        try:
            formation = self._formation = self._completed(formation, opened)
            for rank in range(formation.size):
                listeners = Listeners(*(each.fileno() for each in opened)) if rank == 0 else None
                members[rank] = self._start(formation, rank, listeners)
                for each in opened:
                    each.close()
            self._spares.open()
        finally:
            for each in opened:
                each.close()

    def may_follow(self, rank: int) -> bool:
        """A group that is gone is gone."""
        return True

    def newcomer(self, newcomers: Newcomers, rank: int, ended: Member) -> RankProcess:
        """Start a rank again, with a listener of nobody: it asks those that are there."""
        assert self._formation is not None
        return self._start(own_formation(self._formation, newcomers), rank, None)

    def _completed(self, formation: Formation, opened: list[socket.socket]) -> Formation:
        ring = ring_text([(HOST, port) for port in free_ports(formation.size)])
        path = os.path.join(self._directory, ring_name(formation.generation))
        return dataclasses.replace(
            formation,
            port=port_of(opened[0]),
            watch_port=port_of(opened[1]) if self._watch_too else None,
            master_port=free_port(),
            report_dir=self._directory,
            ring_file=written(path, ring),
        )

    def _start(self, formation: Formation, rank: int, listeners: Listeners | None) -> RankProcess:
        place = alone(rank, formation.size)
        environment = rank_environment(
            {**size_variables(), **self._environ_of(rank)},
            formation,
            place=place,
            listeners=listeners,
        )
        inherited = () if listeners is None else listeners.all()
        spare = None
        if not self._stdin.goes_to(rank):
            spare = self._spares.give(rank, environment, inherited)
        if spare is not None:
            self._output.rename(spare.streams, rank)
            self._children[spare.pid] = spare
            return spare
        with rank_stdin(self._selector, wanted=self._stdin.goes_to(rank)) as (stdin, taker):
            member = start_rank(
                rank,
                self._program,
                environment,
                output=self._output,
                guardian=self._guardian,
                inherited=inherited,
                stdin=stdin,
            )
        if taker is not None:
            self._stdin.add(taker)
        self._children[member.pid] = member
        self._exits.add(member.pid)
        return member

    def _child_ended(self, pid: int) -> None:
        member = self._children.get(pid)
        if member is None:
            if pid == self._guardian.pid:
                self._replace_guardian()
            else:
                self._spares.ended(pid)
            return
        member.reap()
        self._read_notices()  # what it said is told before its end
        self._ended(member)

    def _replace_guardian(self) -> None:
        groups = [each.pid for each in self._children.values() if not each.gone]
        groups += self._spares.pids
        if self._guardian.replace(groups):
            self._exits.add(self._guardian.pid)

    def due_ns(self) -> int | None:
        """Return when spares are to be started or cleared; of ranks the kernel tells."""
        return self._spares.due_ns()

    def attend(self) -> None:
        """See to the spares."""
        for member in self._spares.attend():
            self._guardian.gone(member.pid)

    def _start_spare(self, fd: int) -> tuple[RankProcess, Mapping[str, str]]:
        assert self._formation is not None
        inherited = {**size_variables(), **self._environ_of(0)}
        environment = spare_environment(inherited, self._formation, fd)
        member = start_rank(
            SPARE_RANK,
            self._program,
            environment,
            output=self._output,
            guardian=self._guardian,
            inherited=[fd],
        )
        return member, environment

    def _tell_of_spare(self, end: RankEnd, what: str) -> None:
        self._output.say([f"standfast: spare (pid {end.pid}): {what}"])
        self._spare_ended(end, what)

    def cleared(self, member: Member) -> None:
        """A group's number may be somebody else's soon."""
        self._guardian.gone(member.pid)

    def tell_lost(self, generation: int, text: str) -> None:
        """Write it where the waiting ranks look."""
        write_obituary(self._directory, generation, text)

    def reports(self, generation: int, ranks: int) -> dict[int, Report]:
        """Read the report files, if there are any."""
        if not any(name.startswith("rank-") for name in os.listdir(self._directory)):
            return {}
        from standfast.launch.reports import read_reports  # msgspec is not needed to start ranks

        return read_reports(self._directory, generation=generation, ranks=ranks)

    def dismiss(self, status: int) -> None:
        """Nobody is left who wants to know."""

    def over(self) -> None:
        """Forget the ranks."""
        self._children.clear()

    def close(self) -> None:
        """End the spares, and stop watching."""
        self._spares.close()
        self._exits.close()


def _nobody(member: Member) -> None:
    """Stand in until a generation begins."""
