"""Puts together who starts ranks on several hosts: by ssh, or with a launcher on each node."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from standfast import exits
from standfast import settings as configuration
from standfast.errors import ConfigError
from standfast.launch.agents import AgentCrew
from standfast.launch.callers import Callers, SshCallers
from standfast.launch.guardian import Guardian
from standfast.launch.orders import LEASE_NS
from standfast.launch.output import Output
from standfast.launch.process import Program
from standfast.launch.records import RankEnd
from standfast.launch.spec import JobSpec, LaunchError
from standfast.launch.stdin import Stdin

NOT_NOW = (
    f"standfast: not stopped: after {LEASE_NS / 1e9:g} s the ranks on other hosts would take their"
    " launcher for lost, and be killed; Ctrl-C ends the job"
)


def agent_crew(
    spec: JobSpec,
    selector: selectors.BaseSelector,
    output: Output,
    guardian: Guardian,
    program: Program,
    stdin: Stdin,
    noticed: Callable[[bytes], None],
    spare_ended: Callable[[RankEnd, str], None],
) -> AgentCrew:
    """Return the crew of a job that has hosts.

    Raises:
        LaunchError: the key is none, or node 0's launcher cannot listen.
    """
    callers: Callers
    if spec.node is None:
        callers = SshCallers(spec, selector, guardian)
    else:
        from standfast.launch.switchboard import Switchboard

        callers = Switchboard(
            spec,
            spec.node,
            key_of(spec),
            selector,
            guardian,
            say=lambda text: output.say([f"standfast: {text}"]),
        )
    return AgentCrew(spec, selector, output, program, stdin, noticed, callers, spare_ended)


def key_of(spec: JobSpec) -> bytes | None:
    """Return STANDFAST_KEY, by which launchers know each other as ranks do; None without one."""
    try:
        return configuration.load({}, spec.environ).key
    except ConfigError as error:
        raise LaunchError(error.message, status=exits.CONFIG, hint=error.hint) from error
