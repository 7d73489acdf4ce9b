"""Ranks as children of the launcher itself, on its own machine."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from standfast.launch.crew import Member
from standfast.launch.descriptions import described, ring_text
from standfast.launch.environment import HOST, Formation, Listeners, alone, rank_environment
from standfast.launch.guardian import Guardian
from standfast.launch.notices import write_obituary
from standfast.launch.output import Output
from standfast.launch.parts import ExitWatch
from standfast.launch.ports import free_port, free_ports, open_listener, port_of
from standfast.launch.process import Program, RankProcess, start_rank
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
        *,
        watch: bool,
    ) -> None:
        self._output = output
        self._guardian = guardian
        self._program = program
        self._directory = directory
        self._environ_of = environ_of
        self._watch_too = watch
        self._selector = selector
        self._stdin = stdin
        self._children: dict[int, RankProcess] = {}
        self._ended: Callable[[Member], None] = _nobody
        self._exits = ExitWatch(selector, self._child_ended)

    def start(
        self, formation: Formation, members: dict[int, Member], ended: Callable[[Member], None]
    ) -> None:
        """Start all ranks; rank 0 alone holds the listeners then: nobody meets one that is gone."""
        self._ended = ended
        if self._guardian.lives:
            self._exits.add(self._guardian.pid)
        opened = [open_listener() for _ in range(2 if self._watch_too else 1)]
        try:
            formation = self._completed(formation, opened)
            for rank in range(formation.size):
                listeners = Listeners(*(each.fileno() for each in opened)) if rank == 0 else None
                members[rank] = self._start(formation, rank, listeners)
                for each in opened:
                    each.close()
        finally:
            for each in opened:
                each.close()

    def _completed(self, formation: Formation, opened: list[socket.socket]) -> Formation:
        found = dataclasses.replace(
            formation,
            port=port_of(opened[0]),
            watch_port=port_of(opened[1]) if self._watch_too else None,
            master_port=free_port(),
            ring=ring_text([(HOST, port) for port in free_ports(formation.size)]),
        )
        return described(found, self._directory)

    def _start(self, formation: Formation, rank: int, listeners: Listeners | None) -> RankProcess:
        place = alone(rank, formation.size)
        environment = rank_environment(
            {**size_variables(), **self._environ_of(rank)},
            formation,
            place=place,
            listeners=listeners,
        )
        with rank_stdin(self._selector, wanted=self._stdin.goes_to(rank)) as (stdin, taker):
            member = start_rank(
                rank,
                self._program,
                environment,
                output=self._output,
                guardian=self._guardian,
                inherited=() if listeners is None else listeners.all(),
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
            self._replace_guardian()
            return
        member.reap()
        self._ended(member)

    def _replace_guardian(self) -> None:
        groups = [each.pid for each in self._children.values() if not each.gone]
        if self._guardian.replace(groups):
            self._exits.add(self._guardian.pid)

    def due_ns(self) -> int | None:
        """Nothing is due here: the kernel tells."""
        return None

    def attend(self) -> None:
        """Nothing is due here."""

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
        """Stop watching."""
        self._exits.close()
        self._children.clear()


def _nobody(member: Member) -> None:
    """Stand in until a generation begins."""
