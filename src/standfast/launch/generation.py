"""One generation, from its first rank's start until no process of it is left: the loop."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from standfast import exits
from standfast.launch.clock import now_ns
from standfast.launch.crew import Crew, Member
from standfast.launch.environment import Formation
from standfast.launch.inbox import SignalInbox
from standfast.launch.ledger import Ledger
from standfast.launch.notices import obituary
from standfast.launch.output import Output
from standfast.launch.plan import Step, hastened, kill_plan, stop_plan
from standfast.launch.policy import Budget, Mark
from standfast.launch.progress import mark_of
from standfast.launch.records import RankEnd, Stop, StopReason
from standfast.launch.spec import JobSpec
from standfast.launch.stdin import Stdin
from standfast.launch.stragglers import hopeless
from standfast.launch.succession import Succession

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
GIVEN_UP = frozenset({"stalled", "unreachable"})
"""Errors about a rank that does nothing any more. One that failed may be busy with its own end."""
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
    stdin: Stdin
    crew: Crew
    ledger: Ledger
    settle: Callable[[], None]
    """Called on each turn: lets events and the status out."""


class Generation:
    """The ranks of one generation, alive."""

    def __init__(
        self,
        workshop: Workshop,
        job: JobSpec,
        formation: Formation,
        deadline_ns: int | None,
        budget: Budget,
    ) -> None:
        self._shop = workshop
        self._job = job
        self._formation = formation
        self._deadline_ns = deadline_ns
        self._began_ns = now_ns()
        self._members: dict[int, Member] = {}
        self._stops: list[Stop] = []
        self._plan: list[Step] = []
        self._signalled_ns: int | None = None
        self._notice_ns: int | None = None
        self._abandon_ns: int | None = None
        self._leftovers: list[Member] = []
        self._mourned = False
        self._passed: set[int] = set()
        self._went_on = False
        self._succession = Succession(
            self._members,
            workshop.crew,
            workshop.ledger,
            workshop.output,
            budget,
            self._mark,
            job.wait_refill_s,
        )

    def run(self) -> GenerationRecord:
        """Start the ranks and see them to their end. OSError where one could not be started."""
        crew = self._shop.crew
        try:
            crew.start(self._formation, self._members, self._ended)
            places = {rank: (each.host, each.pid) for rank, each in self._members.items()}
            self._shop.ledger.started(self._formation.generation, places)
            while not self._advance():
                for key, _ in self._shop.selector.select(self._wait_s()):
                    key.data()
            return self._record()
        finally:
            self._destroy_all()
            self._shop.stdin.over()
            crew.over()

    def _advance(self) -> bool:
        """Do all that is due; return whether the generation is over."""
        self._note_signals()
        self._let_survivors_go_on()
        self._replace_lost()
        self._note_limits()
        self._carry_out_plan()
        self._clear_groups()
        self._give_notice()
        self._shop.crew.attend()
        self._shop.ledger.located({rank: each.pid for rank, each in self._members.items()})
        self._shop.output.settle()
        self._shop.stdin.settle()
        self._shop.settle()
        everybody = [*self._members.values(), *self._succession.former]
        return all(each.gone and each.drained for each in everybody)

    def _wait_s(self) -> float:
        if self._shop.output.busy or any(each.unsettled for each in self._members.values()):
            return POLL_S
        if self._output_newly_lost():
            return 0.0
        due = [step.at_ns for step in self._plan[:1]]
        moments = (self._deadline_ns, self._notice_ns, self._abandon_ns, self._shop.crew.due_ns())
        due += [at for at in (*moments, self._succession.due_ns()) if at is not None]
        return max(0.0, (min(due) - now_ns()) / 1e9) if due else 60.0

    def _ended(self, member: Member) -> None:
        end = member.end(now_ns())
        self._mourn(member, end)
        self._shop.ledger.ended(end)
        if end.status != 0:
            self._stop(StopReason.FAILURE)
        self._give_up_stragglers()

    def _mourn(self, member: Member, end: RankEnd) -> None:
        """Tell ranks that wait for each other of one that ended before it had joined them.

        One that reported an error told them itself.
        """
        ledger = self._shop.ledger
        if self._mourned or ledger.all_ready or ledger.is_ready(member.rank):
            return
        if member.rank in self._reports():
            return
        self._mourned = True
        text = obituary(member.rank, end.host, end.status, end.words())
        self._shop.crew.tell_lost(self._formation.generation, text)

    def _give_up_stragglers(self) -> None:
        """Do not wait for a rank that does not end, if all others have ended because of it."""
        running = [rank for rank, each in self._members.items() if each.running]
        ended = self._members.keys() - set(running)
        if not running or any(step.signal is signal.SIGKILL for step in self._plan[:1]):
            return
        reports = self._reports().values()
        if hopeless(running, ended, [each.names for each in reports if each.kind in GIVEN_UP]):
            self._stop(StopReason.FAILURE)
            kill_after_s = self._job.kill_after_s
            plan = stop_plan(StopReason.TIMEOUT, now_ns(), grace_s=0, kill_after_s=kill_after_s)
            self._follow(hastened(self._plan, plan))

    def _let_survivors_go_on(self) -> None:
        """Ranks that form their group again in process are not stopped for those that were lost.

        How the lost ended is told in the events; the generation is judged by those that went on.
        """
        running = {rank for rank, each in self._members.items() if each.running}
        lost = self._members.keys() - running - self._passed
        failures_only = all(stop.reason is StopReason.FAILURE for stop in self._stops)
        told = any(each.end(0).stopped for each in self._members.values() if each.running)
        if not self._stops or not failures_only or told or not running:
            return
        if not self._shop.ledger.went_on(running, lost):
            return
        self._passed |= lost
        self._went_on = True
        self._stops.clear()
        self._plan = []
        self._notice_ns = self._abandon_ns = None
        who = ", ".join(map(str, sorted(lost)))
        self._shop.output.say(
            [f"standfast: {self._running_text()} form their group again without {who}"]
        )
        if self._job.replace:
            self._succession.lost(lost)

    def _replace_lost(self) -> None:
        """Start newcomers for those that survivors go on without, and end who is in the way."""
        failures_only = all(stop.reason is StopReason.FAILURE for stop in self._stops)
        if not self._job.replace or not failures_only:
            return
        running = [rank for rank, each in self._members.items() if each.running]
        if all(self._shop.ledger.is_joining(rank) for rank in running):
            self._dismiss(running)
        elif not self._stops:
            self._succession.forsake(running)
            self._passed -= set(self._succession.attend(running))

    def _dismiss(self, newcomers: Sequence[int]) -> None:
        """End those whose group is over before they have joined it: nobody waits for them."""
        if self._passed.issuperset(newcomers):
            return
        self._passed |= set(newcomers)
        kill_after_s = self._job.kill_after_s
        plan = stop_plan(StopReason.TIMEOUT, now_ns(), grace_s=0, kill_after_s=kill_after_s)
        self._plan = [*plan]

    def _reports(self) -> dict[int, Report]:
        if self._went_on:
            return {}  # they count ranks anew, and so name others than ours
        return self._shop.crew.reports(self._formation.generation, self._formation.size)

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
        for member in [*self._members.values(), *self._succession.former]:
            if member.gone:
                self._cut_streams(member, now)
            elif not member.running:
                self._clear_group(member, now)
            elif member.killed_ns is not None and now - member.killed_ns > UNKILLABLE_NS:
                self._give_up(member)

    def _clear_group(self, member: Member, now: int) -> None:
        if member.check_gone():
            self._shop.crew.cleared(member)
        elif member.killed_ns is not None and now - member.killed_ns > UNKILLABLE_NS:
            self._give_up(member)
        elif self._linger_over(member, now):
            member.kill_rest()

    def _cut_streams(self, member: Member, now: int) -> None:
        """Whoever still holds the pipe has left the group: take what is in it, and no more."""
        if not member.drained and self._linger_over(member, now):
            for stream in member.streams:
                if stream.open:
                    stream.cut()

    def _linger_over(self, member: Member, now: int) -> bool:
        ended_ns = now if member.ended_ns is None else member.ended_ns
        killing = self._signalled_ns is not None and not self._plan
        return killing or now - ended_ns > LINGER_NS

    def _give_up(self, member: Member) -> None:
        self._leftovers.append(member)
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
        ends = [
            each.end(0)
            for rank, each in self._members.items()
            if not each.running and rank not in self._passed
        ]
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
        ends = tuple(
            each.end(now) for rank, each in self._members.items() if rank not in self._passed
        )
        failed = any(end.status for end in ends)
        return GenerationRecord(
            generation=self._formation.generation,
            began_ns=self._began_ns,
            over_ns=now,
            ends=ends,
            reports=self._reports() if failed or self._stops else {},
            stops=tuple(self._stops),
            leftovers=tuple(each.label for each in self._leftovers),
            leftover_hosts=tuple(dict.fromkeys(each.host for each in self._leftovers)),
            mark=self._mark(),
            formed=self._shop.ledger.formed,
        )

    def _mark(self) -> Mark:
        return mark_of(self._shop.ledger.beats, self._job.checkpoint)
