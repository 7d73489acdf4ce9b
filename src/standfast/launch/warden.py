"""The warden of `standfast run --watch`: watches one rank's program from outside. Own process.

It forms a watch with the other ranks' wardens, lets the program go, and is the program's voice in
that watch: the program's end is its own leaving, the program's standstill a lack of progress. When
another rank is lost it ends the program (SIGTERM, then SIGKILL) and itself with status 75.

The program shares the warden's process group, of which the launcher and its guardian see to it that
nothing is left. docs/design/watching.md has the reasons.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from standfast import exits
from standfast import settings as configuration
from standfast.errors import StandfastError
from standfast.launch.clock import now_ns
from standfast.launch.environment import (
    WATCH_COORDINATOR,
    WATCH_LISTEN_FD,
    ward_environment,
)
from standfast.launch.held import HeldProgram
from standfast.launch.inbox import SIGNALS, SignalInbox
from standfast.launch.lines import printable
from standfast.launch.parts import ExitWatch, is_stopped
from standfast.launch.plan import Step
from standfast.launch.warding import parse_command, watch_settings
from standfast.watching import Watch, watch

# What often is the consequence of another rank's death: such an end is told only when no reason for
# it has come in the time that Watch.report_failure() waits. SIGKILL, SIGSEGV, ... are told at once.
ECHOES = frozenset({-signal.SIGABRT, -signal.SIGPIPE})
STOPPED = "stopped by a signal"
WRITE_S = 0.2


class ProgramFailed(Exception):
    """What the other ranks hear of a program that ended badly."""


class Warden:
    """The watch over one program, once both are there. One thread, and it never blocks for long."""

    def __init__(
        self, watch: Watch, faults: Faults, pid: int, name: str, kill_after_s: float
    ) -> None:
        self._watch = watch
        self._faults = faults
        self._pid = pid
        self._name = name
        self._kill_after_ns = int(kill_after_s * 1e9)
        self._status: int | None = None
        self._fault: StandfastError | None = None
        self._stop_asked = False
        self._stopped = False
        self._stops = 0
        self._plan: list[Step] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(faults.fileno(), selectors.EVENT_READ, self._faulted)
        self._inbox = SignalInbox(self._selector)
        self._exit = ExitWatch(self._selector, self._ended)

    def run(self, look_every_s: float) -> int:
        """See the program to its end; return the warden's exit status, negative for a signal."""
        self._exit.add(self._pid)
        while self._status is None:
            for key, _ in self._selector.select(self._wait_s(look_every_s)):
                key.data()
            self._note_signals()
            self._look()
            self._carry_out_plan()
        for each in SIGNALS:  # from here on nothing needs to be seen to its end
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)
        return self._conclude(self._status)

    def _wait_s(self, look_every_s: float) -> float:
        due = [(step.at_ns - now_ns()) / 1e9 for step in self._plan[:1]]
        return max(0.0, min([look_every_s, *due]))

    def _ended(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._status = os.waitstatus_to_exitcode(status)

    def _faulted(self) -> None:
        """Another rank is lost: end the program. If the user has ended the job, that goes on."""
        error = self._faults.take()
        if error is None or self._fault is not None or self._stop_asked:
            return
        self._fault = error
        now = now_ns()
        kill = Step(now + self._kill_after_ns, signal.SIGKILL)
        self._plan = [Step(now, signal.SIGTERM), kill]
        self._carry_out_plan()
        say(f"standfast: {error.message}", f"standfast: {self._name} gets SIGTERM for that")

    def _note_signals(self) -> None:
        """The launcher's signals reach the program, too: both are in one group.

        What the warden alone got (`kill PID`) is passed on later; who got it already has ended.
        """
        if self._inbox.take() and self._fault is None and not self._stop_asked:
            self._stop_asked = True
            self._plan = [Step(now_ns() + self._kill_after_ns, signal.SIGTERM)]

    def _look(self) -> None:
        """Tell the others while the program stands still."""
        stopped = is_stopped(self._pid)
        if stopped and not self._stopped:
            self._stops += 1
            self._watch.beat(STOPPED, self._stops)
        elif self._stopped and not stopped:
            self._watch.idle()
        self._stopped = stopped

    def _carry_out_plan(self) -> None:
        while self._plan and self._plan[0].at_ns <= now_ns() and self._status is None:
            number = self._plan.pop(0).signal
            if number is signal.SIGTERM and self._fault is not None and _leads_a_group():
                os.killpg(0, number)  # a shell's program as well; our own handler only takes note
            else:
                os.kill(self._pid, number)
            if number is not signal.SIGKILL:
                os.kill(self._pid, signal.SIGCONT)

    # --- what the others are told, and how the warden itself ends

    def _conclude(self, status: int) -> int:
        if self._fault is not None:
            self._watch.end("failed")
            return self._fault.exit_code
        if self._stop_asked or status == 0:
            self._watch.end("interrupted" if self._stop_asked else "done")
            return status
        if status < 0 and status not in ECHOES:
            return status  # without a goodbye: so the others hear of a death
        return self._failed(status)

    def _failed(self, status: int) -> int:
        words = f"exit status {status}" if status > 0 else exits.signal_name(-status)
        self._watch.report_failure(ProgramFailed(f"{self._name} ended with {words}"))
        cause = self._watch.last_failure()
        if cause is not None and cause.rank != self._watch.rank:
            say(f"standfast: {cause.message}", f"standfast: {self._name} had ended with {words}")
            status = cause.exit_code
        self._watch.end("failed")
        return status


class Faults:
    """Carries the verdict from the watch's thread to the warden's loop."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self._error: StandfastError | None = None

    def fileno(self) -> int:
        """Readable once there is a verdict."""
        return self._read_fd

    def put(self, error: StandfastError) -> None:
        """Called by the watch."""
        self._error = error
        os.write(self._write_fd, b"!")

    def take(self) -> StandfastError | None:
        """Called by the loop."""
        os.read(self._read_fd, 1)
        return self._error


def say(*lines: str) -> None:
    """Write to stderr, but wait no longer than a moment for who reads it."""
    text = "".join(f"{printable(line)}\n" for line in lines).encode()
    writer = threading.Thread(target=os.write, args=(2, text), daemon=True)
    writer.start()
    writer.join(WRITE_S)


def _leads_a_group() -> bool:
    return os.getpgrp() == os.getpid()


def _watch_from(environ: Mapping[str, str], faults: Faults) -> Watch:
    own = watch_settings(configuration.load({}, environ))
    listen_fd = environ.get(WATCH_LISTEN_FD)
    if listen_fd is not None:
        own["listen_fd"] = int(listen_fd)
    return watch(coordinator=environ[WATCH_COORDINATOR], on_fault=faults.put, **own)


def main(arguments: Sequence[str]) -> int:
    """Be a warden; return the exit status, negative for a signal to end by."""
    kill_after_s, path, command = parse_command(arguments)
    environ = dict(os.environ)
    listen_fd = environ.get(WATCH_LISTEN_FD)
    held = HeldProgram(
        path,
        command,
        ward_environment(environ),
        not_inherited=() if listen_fd is None else (int(listen_fd),),
    )
    faults = Faults()
    try:
        over = _watch_from(environ, faults)
    except BaseException as error:
        held.abandon()
        if isinstance(error, KeyboardInterrupt):
            return -signal.SIGINT
        if not isinstance(error, StandfastError):
            raise
        say(f"standfast: {error}")
        return error.exit_code
    warden = Warden(over, faults, held.pid, command[0], kill_after_s)
    held.release()
    return warden.run(configuration.load({}, environ).heartbeat_s)


def end_as(status: int) -> None:
    """End this process as the program has ended; a signal leaves no second core file."""
    if status >= 0:
        sys.exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = signal.Signals(-status)
    if number is not signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    end_as(main(sys.argv[1:]))
