"""One generation, from its first rank's start until no process of it is left: the loop."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from standfast import exits
from standfast.launch.clock import now_ns
from standfast.launch.environment import Formation, Listeners, rank_environment
from standfast.launch.guardian import Guardian
from standfast.launch.inbox import SignalInbox
from standfast.launch.output import Output
from standfast.launch.parts import ExitWatch
from standfast.launch.plan import Step, hastened, kill_plan, stop_plan
from standfast.launch.process import Program, RankProcess, start_rank
from standfast.launch.records import Stop, StopReason
from standfast.launch.spec import JobSpec

if TYPE_CHECKING:
    from standfast.launch.verdicts import GenerationRecord, Report

LINGER_NS = 1_000_000_000
"""How long what a rank left behind in its group may go on before it is killed."""
UNKILLABLE_NS = 10_000_000_000
"""How long after SIGKILL a process is given up: it hangs in the kernel."""
SAME_CTRL_C_NS = 50_000_000
"""A wrapper (make, uv run) often passes on the Ctrl-C that the terminal has sent us already."""
DESTROY_NS = 2_000_000_000
NOTICE_NS = 1_000_000_000
POLL_S = 0.02
REASONS = {
    signal.SIGINT: StopReason.INTERRUPT,
    signal.SIGTERM: StopReason.TERMINATE,
    signal.SIGHUP: StopReason.HANGUP,
}


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all generations of a job use."""

    selector: selectors.BaseSelector
    output: Output
    inbox: SignalInbox
    guardian: Guardian
    read_reports: Callable[[int], dict[int, Report]]


class Generation:
    """The ranks of one generation, alive."""

    def __init__(
        self, workshop: Workshop, job: JobSpec, formation: Formation, deadline_ns: int | None
    ) -> None:
        self._shop = workshop
        self._job = job
        self._formation = formation
        self._deadline_ns = deadline_ns
        self._began_ns = now_ns()
        self._members: dict[int, RankProcess] = {}
        self._stops: list[Stop] = []
        self._plan: list[Step] = []
        self._signalled_ns: int | None = None
        self._notice_ns: int | None = None
        self._abandon_ns: int | None = None
        self._leftovers: list[int] = []
        self._watch = ExitWatch(workshop.selector, self._ended)

    def run(
        self, program: Program, listener: socket.socket, watch_listener: socket.socket | None
    ) -> GenerationRecord:
        """Start the ranks and see them to their end. OSError where one could not be started."""
        opened = [each for each in (listener, watch_listener) if each is not None]
        try:
            self._start(program, opened)
            while not self._advance():
                for key, _ in self._shop.selector.select(self._wait_s()):
                    key.data()
        finally:
            _close(opened)
            self._destroy_all()
            self._watch.close()
        return self._record()

    def _start(self, program: Program, opened: Sequence[socket.socket]) -> None:
        if self._shop.guardian.lives:
            self._watch.add(self._shop.guardian.pid)
        for rank in range(self._formation.size):
            listeners = Listeners(*(each.fileno() for each in opened)) if rank == 0 else None
            member = start_rank(
                rank,
                program,
                rank_environment(
                    self._job.environ_of(rank), self._formation, rank=rank, listeners=listeners
                ),
                output=self._shop.output,
                guardian=self._shop.guardian,
                inherited=() if listeners is None else listeners.all(),
            )
            self._members[member.pid] = member
            self._watch.add(member.pid)
            _close(opened)

    def _advance(self) -> bool:
        """Do all that is due; return whether the generation is over."""
        self._note_signals()
        self._note_limits()
        self._carry_out_plan()
        self._clear_groups()
        self._give_notice()
        self._shop.output.settle()
        return all(each.gone and each.drained for each in self._members.values())

    def _wait_s(self) -> float:
        if self._shop.output.busy or any(each.unsettled for each in self._members.values()):
            return POLL_S
        if self._output_newly_lost():
            return 0.0
        due = [step.at_ns for step in self._plan[:1]]
        moments = (self._deadline_ns, self._notice_ns, self._abandon_ns)
        due += [at for at in moments if at is not None]
        return max(0.0, (min(due) - now_ns()) / 1e9) if due else 60.0

    def _ended(self, pid: int) -> None:
        if pid not in self._members:
            self._replace_guardian()
            return
        member = self._members[pid]
        member.reap()
        if member.end(now_ns()).status != 0:
            self._stop(StopReason.FAILURE)

    def _replace_guardian(self) -> None:
        groups = [each.pid for each in self._members.values() if not each.gone]
        if self._shop.guardian.replace(groups):
            self._watch.add(self._shop.guardian.pid)

    def _stop(self, reason: StopReason, detail: str = "") -> None:
        """Begin to end the generation; a later reason hastens it, but never becomes the first."""
        if reason is StopReason.FAILURE and self._stops:
            return
        now = now_ns()
        self._stops.append(Stop(reason, now, detail))
        self._notice_ns = now + NOTICE_NS if reason is StopReason.FAILURE else None
        grace_s, kill_after_s = self._job.grace_s, self._job.kill_after_s
        plan = stop_plan(reason, now, grace_s=grace_s, kill_after_s=kill_after_s)
        self._follow(hastened(self._plan, plan))
        if reason is StopReason.FAILURE:
            self._abandon_ns = None

    def _follow(self, plan: Sequence[Step]) -> None:
        self._plan = [*plan]
        self._abandon_ns = plan[-1].at_ns + LINGER_NS

    def _note_signals(self) -> None:
        for number in self._shop.inbox.take():
            now = now_ns()
            if self._signalled_ns is None:
                self._signalled_ns = now
                self._stop(REASONS[signal.Signals(number)])
                self._say_signal(number)
            elif now - self._signalled_ns > SAME_CTRL_C_NS:
                self._follow(kill_plan(now))

    def _say_signal(self, number: int) -> None:
        name = exits.signal_name(number)
        if any(each.running for each in self._members.values()):
            what = f"passed on to {self._running_text()} (a second one kills at once)"
        else:
            what = "all ranks have ended, their output is still being written"
        self._shop.output.say([f"standfast: {name}: {what}"])

    def _note_limits(self) -> None:
        now = now_ns()
        if self._deadline_ns is not None and now >= self._deadline_ns:
            self._deadline_ns = None
            self._stop(StopReason.TIMEOUT)
        if self._abandon_ns is not None and now >= self._abandon_ns:
            self._abandon_ns = None
            self._shop.output.abandon()
        if self._output_newly_lost():
            self._stop(StopReason.OUTPUT, self._shop.output.lost or "")

    def _output_newly_lost(self) -> bool:
        noted = any(stop.reason is StopReason.OUTPUT for stop in self._stops)
        return self._shop.output.lost is not None and not noted

    def _carry_out_plan(self) -> None:
        while self._plan and self._plan[0].at_ns <= now_ns():
            step = self._plan.pop(0)
            for member in self._members.values():
                if member.running:
                    member.tell(step.signal)

    def _clear_groups(self) -> None:
        now = now_ns()
        for member in self._members.values():
            if member.gone:
                self._cut_streams(member, now)
            elif not member.running:
                self._clear_group(member, now)
            elif member.killed_ns is not None and now - member.killed_ns > UNKILLABLE_NS:
                self._give_up(member)

    def _clear_group(self, member: RankProcess, now: int) -> None:
        if member.check_gone():
            self._shop.guardian.gone(member.pid)
        elif member.killed_ns is not None and now - member.killed_ns > UNKILLABLE_NS:
            self._give_up(member)
        elif self._linger_over(member, now):
            member.kill_rest()

    def _cut_streams(self, member: RankProcess, now: int) -> None:
        """Whoever still holds the pipe has left the group: take what is in it, and no more."""
        if not member.drained and self._linger_over(member, now):
            for stream in member.streams:
                if stream.open:
                    stream.cut()

    def _linger_over(self, member: RankProcess, now: int) -> bool:
        ended_ns = now if member.ended_ns is None else member.ended_ns
        killing = self._signalled_ns is not None and not self._plan
        return killing or now - ended_ns > LINGER_NS

    def _give_up(self, member: RankProcess) -> None:
        self._leftovers.append(member.pid)
        member.gone = True
        for stream in member.streams:
            if stream.open:
                stream.cut()

    def _give_notice(self) -> None:
        if self._notice_ns is None or now_ns() < self._notice_ns:
            return
        self._notice_ns = None
        if any(each.running for each in self._members.values()):
            grace = f"the grace of {self._job.grace_s:g} s for {self._running_text()}"
            self._shop.output.say([f"standfast: {self._failed_text()}; {grace} is running"])

    def _failed_text(self) -> str:
        ends = [each.end(0) for each in self._members.values() if not each.running]
        failed = min((end for end in ends if end.status), key=lambda end: end.ended_ns)
        return f"rank {failed.rank} failed ({failed.words()})"

    def _running_text(self) -> str:
        ranks = [str(each.rank) for each in self._members.values() if each.running]
        return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(ranks)}"

    def _destroy_all(self) -> None:
        """Only an exception has members left here: nothing may outlive it."""
        left = [each for each in self._members.values() if not each.gone]
        end_ns = now_ns() + DESTROY_NS
        while left and now_ns() < end_ns:
            left = [each for each in left if not each.destroyed()]
            time.sleep(POLL_S if left else 0)

    def _record(self) -> GenerationRecord:
        from standfast.launch.verdicts import GenerationRecord  # not needed to start ranks

        now = now_ns()
        ends = tuple(each.end(now) for each in self._members.values())
        failed = any(end.status for end in ends)
        return GenerationRecord(
            generation=self._formation.generation,
            began_ns=self._began_ns,
            over_ns=now,
            ends=ends,
            reports=self._shop.read_reports(self._formation.generation) if failed else {},
            stops=tuple(self._stops),
            leftovers=tuple(self._leftovers),
        )


def _close(listeners: Sequence[socket.socket]) -> None:
    """Rank 0 alone holds them now: nobody connects to a rank 0 that is gone."""
    for each in listeners:
        each.close()
