"""When ranks get which signal."""

from __future__ import annotations

import signal

import pytest

from standfast.launch.plan import Step, hastened, kill_plan, stop_plan
from standfast.launch.records import StopReason

S = 1_000_000_000


@pytest.mark.parametrize(
    ("reason", "steps"),
    [
        (StopReason.FAILURE, [(10, "SIGTERM"), (15, "SIGKILL")]),
        (StopReason.INTERRUPT, [(0, "SIGINT"), (10, "SIGTERM"), (15, "SIGKILL")]),
        (StopReason.TERMINATE, [(0, "SIGTERM"), (10, "SIGKILL")]),
        (StopReason.HANGUP, [(0, "SIGTERM"), (10, "SIGKILL")]),
        (StopReason.TIMEOUT, [(0, "SIGTERM"), (5, "SIGKILL")]),
        (StopReason.OUTPUT, [(0, "SIGTERM"), (5, "SIGKILL")]),
    ],
)
def test_stop_plan(reason: StopReason, steps: list[tuple[int, str]]) -> None:
    """Each reason has its sequence, and each sequence ends with SIGKILL."""
    plan = stop_plan(reason, 100 * S, grace_s=10, kill_after_s=5)
    assert [(step.at_ns // S - 100, step.signal.name) for step in plan] == steps


def test_kill_plan() -> None:
    """Who asks twice gets SIGKILL at once."""
    assert kill_plan(7) == (Step(7, signal.SIGKILL),)


def test_a_new_reason_never_delays_the_kill() -> None:
    """A later reason may bring SIGKILL nearer, but never puts it off."""
    interrupt = stop_plan(StopReason.INTERRUPT, 0, grace_s=10, kill_after_s=5)
    late = stop_plan(StopReason.TIMEOUT, 14 * S, grace_s=10, kill_after_s=5)
    early = stop_plan(StopReason.TIMEOUT, 2 * S, grace_s=10, kill_after_s=5)
    assert hastened(interrupt, late) == (Step(14 * S, signal.SIGTERM), interrupt[-1])
    assert hastened(interrupt, early) == early
    assert hastened((), late) == late
