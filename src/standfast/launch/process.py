"""One rank's process and its process group: started, signalled, reaped, and known to be gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from standfast.launch.clock import now_ns
from standfast.launch.guardian import Guardian
from standfast.launch.lines import Tail
from standfast.launch.parts import group_lives
from standfast.launch.rank import Rank


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank runs: the file, and the words it is called with."""

    path: str
    command: Sequence[str]


class Pipe(Protocol):
    """The reading end of a rank's stdout or stderr."""

    open: bool

    def cut(self) -> None:
        """Accept only what is in the pipe already: its writers are no longer ours."""


class Attaching(Protocol):
    """Takes over the reading ends: Output does, and so does an agent."""

    def attach(self, fd: int, *, rank: int, stderr: bool, tail: Tail | None) -> Pipe:
        """Take over the reading end of a rank's pipe."""


class RankProcess(Rank):
    """A rank that was started. Its process is the leader of a session and a group of its own.

    The leader's end is not the group's: `gone` becomes True only when no member is left. Until then
    the group's number can't be given to a stranger, so signals to it are safe.
    """

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], streams: Sequence[Pipe], tail: Tail
    ) -> None:
        super().__init__(rank, pid=process.pid, host="", tail=tail)
        self.streams: Sequence[Pipe] = streams
        self._process = process

    @property
    def label(self) -> str:
        """What a user calls its process group."""
        return str(self.pid)

    @property
    def unsettled(self) -> bool:
        """Whether no event will tell of the next change: of its group, its pipes, or a SIGKILL."""
        if self.gone:
            return not self.drained
        return not self.running or self.killed_ns is not None

    def reap(self) -> None:
        """Take the leader's status, after the watch has told of its end."""
        _, status = os.waitpid(self.pid, 0)
        self._note_end(os.waitstatus_to_exitcode(status), now_ns())
        self._process.returncode = self._status

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the group; the first one is remembered while the leader runs."""
        self._note(number)
        _send(self.pid, number)

    def kill_rest(self) -> None:
        """Kill what the leader left behind."""
        self._note_kill()
        _send(self.pid, signal.SIGKILL)

    def check_gone(self) -> bool:
        """Whether the whole group is gone, now that the leader is reaped."""
        if not self.gone and not group_lives(self.pid):
            self._note_gone()
        return self.gone

    def destroyed(self) -> bool:
        """Kill the whole group, leader included; whether nothing is left of it."""
        self.kill_rest()
        self._process.returncode = -signal.SIGKILL  # check_gone reaps it, not subprocess
        return self.check_gone()


def start_rank(
    rank: int,
    program: Program,
    environment: Mapping[str, str],
    *,
    output: Attaching,
    guardian: Guardian,
    inherited: Sequence[int],
    cwd: str | None = None,
    stdin: int = subprocess.DEVNULL,
) -> RankProcess:
    """Start a rank; OSError where the system refuses.

    `inherited`: descriptors that it gets besides. `cwd`: where it starts, if not here.
    """
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        process = subprocess.Popen(
            program.command,
            executable=program.path,
            env=environment,
            cwd=cwd,
            stdin=stdin,
            stdout=out_write,
            stderr=err_write,
            pass_fds=inherited,
            start_new_session=True,
            preexec_fn=guardian.enter,  # noqa: PLW1509 - safe: the launcher has one thread
        )
    except OSError:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    tail = Tail()
    streams = [
        output.attach(out_read, rank=rank, stderr=False, tail=None),
        output.attach(err_read, rank=rank, stderr=True, tail=tail),
    ]
    return RankProcess(rank, process, streams, tail)


def _send(group: int, number: signal.Signals) -> None:
    """A group that is frozen must wake up to act on a signal it could handle."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        if number is not signal.SIGKILL:
            os.killpg(group, signal.SIGCONT)
