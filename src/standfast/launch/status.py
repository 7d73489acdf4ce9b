"""The launcher's own exit status, and whether a failure may be tried again. Pure."""

from __future__ import annotations

from standfast import exits
from standfast.launch.records import StopReason
from standfast.launch.verdicts import RankVerdict, Tag, Verdict

LAUNCHER_STOPPED = {
    StopReason.INTERRUPT: exits.SIGNAL_BASE + 2,
    StopReason.TERMINATE: exits.SIGNAL_BASE + 15,
    StopReason.HANGUP: exits.SIGNAL_BASE + 1,
    StopReason.TIMEOUT: exits.TIMEOUT,
    StopReason.OUTPUT: exits.SIGNAL_BASE + 13,
}
NEVER_AGAIN = frozenset({exits.USAGE, exits.MISMATCH, exits.CONFIG})
WENT_ON = frozenset({"died", "failed"})
"""After these accusations its own status tells how a rank ended, signalled meanwhile or not."""


def cause_status(verdict: Verdict) -> int:
    """Return the first cause's own status, as a shell would show it; never 0 for a failure."""
    if verdict.reason is None:
        return exits.OK
    if verdict.reason is not StopReason.FAILURE:
        return LAUNCHER_STOPPED[verdict.reason]
    cause = verdict.cause
    if cause is not None and _speaks_for_itself(cause):
        return cause.end.shell_status
    return _victims_status(verdict)


def _speaks_for_itself(cause: RankVerdict) -> bool:
    return cause.end.status != 0 and (not cause.end.stopped or cause.accused in WENT_ON)


def _victims_status(verdict: Verdict) -> int:
    """A rank that left with 0, or hung, has no status to show: its first victim's counts."""
    statuses = [each.end.shell_status for each in verdict.tagged(Tag.VICTIM)]
    return next((status for status in statuses if status != 0), exits.RETRY)


def may_retry(verdict: Verdict) -> bool:
    """Whether it may help: not after usage, mismatch and configuration errors."""
    return verdict.reason is StopReason.FAILURE and cause_status(verdict) not in NEVER_AGAIN


def exit_status(verdict: Verdict, *, used_up: bool) -> int:
    """Return the launcher's exit status; `used_up`: --restarts was given and none is left."""
    return exits.RETRY if used_up and may_retry(verdict) else cause_status(verdict)
