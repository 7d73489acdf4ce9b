"""What the launcher observes of its ranks, as plain values. Made by generation.py."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from standfast import exits


class StopReason(enum.Enum):
    """Why the launcher began to end a generation."""

    FAILURE = "failed"
    INTERRUPT = "interrupted"
    TERMINATE = "terminated"
    HANGUP = "hangup"
    TIMEOUT = "timeout"
    OUTPUT = "output_lost"


@dataclass(frozen=True, slots=True)
class Stop:
    """The launcher's decision to end a generation, and when it was taken."""

    reason: StopReason
    at_ns: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank's process ended.

    `status` is as in subprocess: an exit code, or minus the signal that ended it. `told_signal` and
    `told_ns` are the first signal the launcher had sent it before it ended; `last_lines` are those
    of its stderr. `host` is empty where all ranks are the launcher's own children. `lost` says why
    nobody could see how it ended: its host or agent is gone, and so is the rank, by their rules.
    `hung`: it did not end at all, not even by SIGKILL; the rest is as if that had ended it.
    """

    rank: int
    pid: int
    started_ns: int
    ended_ns: int
    status: int
    told_signal: int | None = None
    told_ns: int | None = None
    last_lines: tuple[str, ...] = ()
    host: str = ""
    lost: str = ""
    hung: bool = False

    @property
    def stopped(self) -> bool:
        """Whether the launcher had told it to end."""
        return self.told_ns is not None

    @property
    def shell_status(self) -> int:
        """The status a shell would show: 128 plus the signal, or the exit code."""
        return 128 - self.status if self.status < 0 else self.status

    def words(self) -> str:
        """Return "exit 3", "ended by SIGSEGV" or "lost with its host"."""
        if self.hung:
            return "not ended by SIGKILL: it hangs in the kernel"
        if self.lost:
            return f"lost with host {self.host}: {self.lost}"
        if self.status < 0:
            return f"ended by {exits.signal_name(-self.status)}"
        return f"exit {self.status}"
