"""A host that loses power while its ranks are idle, waited for and at work, all at once."""

from __future__ import annotations

from typing import Any

from tests.death.judge import check_aftermath
from tests.network.cluster import Cluster
from tests.network.faults import Cut, Faults
from tests.network.judge import HINT_SLACK_S, SLACK_S, check_verdict


def scenarios(victim: int) -> dict[str, dict[str, Any]]:
    """Return what the ranks do when the victim's host vanishes."""
    return {
        "idle": {},
        "waiting": {"op": "all_reduce", "away": victim},
        "working": {"op": "all_reduce large"},
    }


def lose_power(network: Faults, cases: dict[str, Cluster], victim: int) -> Cut:
    """Let a host vanish, and its ranks with it, unheard."""
    cases["waiting"].wait_asleep(*cases["waiting"].others(victim))
    cut = network.vanish(victim)
    for case in cases.values():
        case.kill(victim)
    return cut


def check_hints(cases: dict[str, Cluster], victim: int, cut: Cut, hint_s: float) -> None:
    """Assert that all others have a hint of it, in time."""
    for case in cases.values():
        for rank in case.others(victim):
            hint = case.wait(rank, "hint")
            assert hint["rank"] == victim, f"{hint}\n{case.story()}"
            case.prompt(f"hint, {hint_s:g} s", cut.ns, hint.ns, hint_s + HINT_SLACK_S)


def check_given_up(cases: dict[str, Cluster], victim: int, cut: Cut, silence_s: float) -> None:
    """Assert that all others name its rank, in time and with evidence, and end well."""
    for scenario, case in cases.items():
        label = f"vanished, {scenario}, {silence_s:g} s"
        limit_s = silence_s + SLACK_S
        survivors = case.others(victim)
        error = check_verdict(case, survivors, cut.ns, label, named=[victim], limit_s=limit_s)
        assert error["evidence"], f"{error}\n{case.story()}"
    cut.took_effect()
    for case in cases.values():
        check_aftermath(case, case.others(victim))
