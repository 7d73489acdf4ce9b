"""A whole `standfast run`: generations, until all ranks returned 0 or nothing is left to try."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
from typing import TYPE_CHECKING

from standfast import exits
from standfast.launch.chronicle import Chronicle
from standfast.launch.clock import now_ns
from standfast.launch.environment import Formation
from standfast.launch.generation import Generation, Workshop
from standfast.launch.guardian import Guardian
from standfast.launch.inbox import SignalInbox
from standfast.launch.local import LocalCrew
from standfast.launch.notices import NoticeBoard
from standfast.launch.output import Output
from standfast.launch.parts import adopt_orphans, reap_strays
from standfast.launch.policy import Budget, Size, next_size
from standfast.launch.process import Program
from standfast.launch.program import cannot_exec, find_program
from standfast.launch.segments import sweep_segments
from standfast.launch.spec import HostLost, JobSpec, LaunchError
from standfast.launch.stdin import Stdin
from standfast.launch.workspace import report_directory

if TYPE_CHECKING:
    from standfast.launch.agents import AgentCrew
    from standfast.launch.story import Story
    from standfast.launch.verdicts import GenerationRecord

FLUSH_NS = 1_000_000_000
"""How long a reader may take for the last lines once somebody wants the end."""
LOOK_S = 0.1
ATTEMPTS = 3
"""How often a generation is tried to be formed whose hosts go before any rank is started."""
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})


def run_job(spec: JobSpec) -> int:
    """Run the job and return the launcher's exit status; LaunchError if it can't be started."""
    program = _program(spec)
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        inbox = SignalInbox(selector)
        stack.callback(inbox.close)
        directory = stack.enter_context(report_directory(spec.environ))
        guardian = Guardian(directory)
        stack.callback(guardian.close)
        output = Output(selector, spec.environ, json=spec.json, log_dir=spec.log_dir)
        stack.callback(output.close)
        chronicle = Chronicle(spec, selector, directory)
        stack.callback(chronicle.close)
        board = NoticeBoard(selector, directory, chronicle.ledger.noticed)
        stack.callback(board.close)
        stdin = Stdin(selector, spec.stdin)
        crew: LocalCrew | AgentCrew
        if spec.hosts:
            from standfast.launch.hosts import NOT_NOW, agent_crew

            inbox.decline(signal.SIGTSTP, lambda: output.say([NOT_NOW]))

            noticed = chronicle.ledger.noticed
            spare_ended = chronicle.ledger.spare_ended
            crew = agent_crew(
                spec, selector, output, guardian, program, stdin, noticed, spare_ended
            )
            stack.callback(crew.close)
        else:
            crew = LocalCrew(
                selector,
                output,
                guardian,
                program,
                directory,
                spec.environ_of,
                stdin,
                board.read,
                watch=spec.watch,
                spares=spec.spares,
                spare_ended=chronicle.ledger.spare_ended,
            )
            stack.callback(crew.close)
        shop = Workshop(selector, output, inbox, stdin, crew, chronicle.ledger, chronicle.settle)
        try:
            status = Job(spec, program, shop, chronicle, guardian).run()
        except LaunchError as error:
            crew.dismiss(error.status)
            chronicle.ledger.finished(error.status, error.message)
            chronicle.settle()
            raise
        crew.dismiss(status)
        return status


class Job:
    """The generations of one job."""

    def __init__(
        self,
        spec: JobSpec,
        program: Program,
        shop: Workshop,
        chronicle: Chronicle,
        guardian: Guardian,
    ) -> None:
        self._spec = spec
        self._program = program
        self._shop = shop
        self._chronicle = chronicle
        self._guardian = guardian
        self._id = chronicle.ledger.job_id
        self._key = os.urandom(32).hex()
        self._budget = Budget(spec.restarts)
        self._began_ns = now_ns()

    def run(self) -> int:
        """Form the group until it ended well, or must not be formed again."""
        chronicle, output = self._chronicle, self._shop.output
        record = self._formed(1)
        if isinstance(record, int):
            return self._stopped_early(record)
        from standfast.launch.story import Story  # ranks started earlier without it

        story = Story(self._spec, self._id, self._began_ns, self._budget)
        self._judge(story, record)
        while story.again:
            # Ranks that formed their group again by themselves have used up numbers, too.
            number = chronicle.ledger.group_generation + 1
            output.say(story.next_words(number))
            chronicle.ledger.restarting(
                number, story.restarts + 1, self._spec.restarts, story.pause_s
            )
            pause_s = story.pause_s
            self._budget.spend()
            record = self._pause(pause_s) or self._formed(number)
            if isinstance(record, int):
                return self._stopped_early(record)
            self._judge(story, record)
        output.say(story.last_words())
        if self._spec.json:
            output.out.push(f"{story.json()}\n".encode())
        chronicle.ledger.finished(story.status, exits.meaning(story.status))
        chronicle.settle()
        return self._flush(story.status, hurried=story.hurried)

    def _judge(self, story: Story, record: GenerationRecord) -> None:
        """Say how a generation ended, to all who want to know."""
        self._shop.output.say(story.add(record))
        verdict = story.last[1]
        if verdict.reason is None:
            return
        from standfast.launch.block import headline
        from standfast.launch.status import cause_status

        status = cause_status(verdict)
        self._chronicle.ledger.failed(verdict.first, headline(verdict), status)
        for host in record.leftover_hosts if self._spec.hosts else ():
            self._ban(host)
        self._chronicle.settle()

    def _ban(self, host: str) -> None:
        from standfast.launch.agents import AgentCrew

        if isinstance(self._shop.crew, AgentCrew):
            self._shop.crew.ban(host)

    def _formed(self, number: int) -> GenerationRecord | int:
        """Run a generation on the hosts that there are; return the signal that came before it.

        A host that goes just then is no failure of ranks, but too often is too often.
        """
        for attempts_left in reversed(range(ATTEMPTS)):
            size = self._muster()
            if size < 0:
                return -size
            try:
                return self._generation(number, size)
            except HostLost as lost:
                if not attempts_left:
                    raise
                self._shop.output.say([f"standfast: {lost.message}; asking the hosts again"])
        raise AssertionError("the last attempt returns or raises")

    def _generation(self, number: int, size: int) -> GenerationRecord:
        formation = Formation(job_id=self._id, generation=number, size=size, key=self._key)
        generation = Generation(
            self._shop, self._spec, formation, self._deadline_ns(), self._budget
        )
        try:
            return generation.run()
        except OSError as error:
            raise _cannot_start(self._program, error) from error
        finally:
            reap_strays(keep=[self._guardian.pid, *self._shop.crew.kept])
            sweep_segments()

    def _deadline_ns(self) -> int | None:
        limit_s = self._spec.timeout_s
        return None if limit_s is None else self._began_ns + int(limit_s * 1e9)

    # --- between generations

    def _muster(self) -> int:
        """Return how many ranks there can be, or minus the signal that came while waiting."""
        if not self._spec.hosts:
            return self._spec.ranks
        from standfast.launch.agents import AgentCrew

        crew = self._shop.crew
        assert isinstance(crew, AgentCrew)
        began_ns = now_ns()
        wait_s = self._spec.wait_refill_s
        if self._spec.node is not None and self._chronicle.ledger.generation == 0:
            wait_s = max(wait_s, self._spec.node.wait_s)
        refill_ns = began_ns + int(wait_s * 1e9)
        while True:
            crew.call()
            if not crew.fenced:
                signalled = self._turn(LOOK_S)
                if signalled:
                    return -signalled
                continue
            waited = now_ns() >= refill_ns and crew.settled(began_ns)
            size = next_size(crew.slots, self._spec.ranks, self._spec.min_ranks, waited=waited)
            if isinstance(size, int):
                if size < self._spec.ranks:
                    self._say_fewer(size, crew.troubles())
                return size
            if size is Size.GIVE_UP:
                raise self._too_few(crew.slots, crew.troubles())
            signalled = self._turn(LOOK_S)
            if signalled:
                return -signalled

    def _say_fewer(self, size: int, troubles: list[str]) -> None:
        lines = [f"standfast: {text}" for text in troubles]
        self._shop.output.say([*lines, f"standfast: going on with {size} ranks"])

    def _too_few(self, slots: int, troubles: list[str]) -> LaunchError:
        least = self._spec.min_ranks or self._spec.ranks
        text = f"there is room for {slots} of at least {least} ranks: {'; '.join(troubles)}"
        from standfast.launch.ssh import remedy

        hint = self._spec.remedy or remedy("; ".join(troubles))
        if self._spec.node is not None:
            hint = "start `standfast run` on all nodes; or give --wait-nodes-s, --wait-refill-s"
        return LaunchError(text, status=exits.UNAVAILABLE, hint=hint)

    def _pause(self, seconds: float) -> int:
        """Let time pass; return the signal that ended it, or 0."""
        until_ns = now_ns() + int(seconds * 1e9)
        while now_ns() < until_ns:
            signalled = self._turn(min(LOOK_S, (until_ns - now_ns()) / 1e9))
            if signalled:
                return signalled
        return 0

    def _turn(self, limit_s: float) -> int:
        """Serve what is ready; return the signal that came, or 0."""
        for key, _ in self._shop.selector.select(max(0.0, limit_s)):
            key.data()
        self._shop.crew.attend()
        self._shop.output.settle()
        self._chronicle.settle()
        deadline_ns = self._deadline_ns()
        if deadline_ns is not None and now_ns() >= deadline_ns:
            raise LaunchError(
                "the job's time limit came while no group was formed", status=exits.TIMEOUT
            )
        signals = self._shop.inbox.take()
        return signals[0] if signals else 0

    def _stopped_early(self, number: int) -> int:
        """End between generations: nothing runs, so nothing is to be stopped."""
        status = exits.SIGNAL_BASE + number
        text = f"{exits.signal_name(number)}: no rank was running"
        self._shop.output.say([f"standfast: {text}"])
        if self._spec.json:
            from standfast.launch.summary import error_summary

            self._shop.output.out.push(f"{error_summary(Exception(text), status)}\n".encode())
        self._chronicle.ledger.finished(status, exits.meaning(status))
        self._chronicle.settle()
        return self._flush(status, hurried=True)

    def _flush(self, status: int, *, hurried: bool) -> int:
        """Wait for a slow reader, unless somebody wants the end; return the exit status."""
        output = self._shop.output
        limit_ns = now_ns() + FLUSH_NS if hurried else None
        output.settle()
        while not output.empty:
            for key, _ in self._shop.selector.select(0.1):
                key.data()
            output.settle()
            signals = self._shop.inbox.take()
            if signals and not hurried:
                return exits.SIGNAL_BASE + signals[0]
            if signals or (limit_ns is not None and now_ns() > limit_ns):
                return status
        return status


def _program(spec: JobSpec) -> Program:
    """Return what every rank runs: the program, or a warden that runs it.

    On other hosts an agent looks for the program itself; what is not here may be there.
    """
    path = _path_of(spec)
    if not spec.watch:
        return Program(path, spec.command)
    from standfast.launch.warding import check_limits, warden_command

    check_limits(spec.environ)
    if spec.hosts:
        return Program(path, spec.command)
    command = warden_command(path, spec.command, kill_after_s=spec.kill_after_s)
    return Program(command[0], command)


def _path_of(spec: JobSpec) -> str:
    try:
        return find_program(spec.command[0], spec.environ.get("PATH", os.defpath))
    except LaunchError:
        if not spec.hosts or not spec.command[0]:
            raise
        return spec.command[0]


def _cannot_start(program: Program, error: OSError) -> LaunchError:
    # What the child lacks before its exec comes with the program's name as well.
    if error.filename is not None and error.errno not in SHORTAGES:
        return cannot_exec(program.path, error)
    return LaunchError(f"cannot start the ranks: {error.strerror}", status=exits.UNAVAILABLE)
