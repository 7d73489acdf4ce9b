"""Which signal the ranks get, and when. Pure: the loop asks what is due, and sends it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from standfast.launch.records import StopReason

FIRST_SIGNAL = {
    StopReason.INTERRUPT: signal.SIGINT,
    StopReason.TERMINATE: signal.SIGTERM,
    StopReason.HANGUP: signal.SIGTERM,
}


@dataclass(frozen=True, slots=True)
class Step:
    """A signal, and the moment from which it is due."""

    at_ns: int
    signal: signal.Signals


def stop_plan(
    reason: StopReason, now_ns: int, *, grace_s: float, kill_after_s: float
) -> tuple[Step, ...]:
    """Return the steps that end a generation.

    After a failure the survivors are let alone for the grace, so that their own error ends them. A
    signal from the user is passed on first. The time limit, and the loss of the output, leave
    nothing to wait for.
    """
    first = FIRST_SIGNAL.get(reason)
    passed_on = [] if first is None else [Step(now_ns, first)]
    if first is signal.SIGTERM:
        return (*passed_on, Step(now_ns + _ns(grace_s), signal.SIGKILL))
    waits = reason is StopReason.FAILURE or first is not None
    term_ns = now_ns + (_ns(grace_s) if waits else 0)
    kill_ns = term_ns + _ns(kill_after_s)
    return (*passed_on, Step(term_ns, signal.SIGTERM), Step(kill_ns, signal.SIGKILL))


def kill_plan(now_ns: int) -> tuple[Step, ...]:
    """Return the plan of a user who asked twice."""
    return (Step(now_ns, signal.SIGKILL),)


def hastened(current: Sequence[Step], new: Sequence[Step]) -> tuple[Step, ...]:
    """Return the new plan, whose SIGKILL is due no later than that of the current one."""
    if not current or current[-1].at_ns >= new[-1].at_ns:
        return tuple(new)
    kill = current[-1]
    return (*(step for step in new[:-1] if step.at_ns < kill.at_ns), kill)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
