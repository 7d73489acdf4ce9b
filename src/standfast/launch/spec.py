"""What the user asked for. Made by command.py; read by everybody, changed by nobody."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from standfast.launch.placement import Host

if TYPE_CHECKING:
    from standfast.launch.nodes import NodeSpec


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One `standfast run`.

    Fields:
        command: the program and its arguments.
        ranks: how many to start.
        restarts: how often the group may be formed again.
        min_ranks: go on with so many if hosts are lost; None means with all or not at all.
        wait_refill_s: how long to wait for lost hosts first.
        replace: a lost rank is started again by itself if the others form their group again in
            process; else all ranks are.
        spares: slots that are kept free for ranks of lost hosts.
        checkpoint: what the program writes as it gets on; see policy.py. None if it is not told.
        hosts: where ranks run; none means as the launcher's own children.
        ssh: the ssh program, with options.
        remedy: what a user may do about hosts without an agent; empty: what ssh's words ask for.
        python: the interpreter of the agents; None means the launcher's own path.
        handed_on: variables that ranks on other hosts get besides what is set there.
        cwd: where ranks on other hosts start, if it is there.
        stdin: who gets the launcher's: "none", "0" or "all".
        log_dir: where each rank's output is kept as well.
        events: a file, or the number of a descriptor, for a line of JSON per event.
        on_fault: a shell command that is run for each failed generation.
        timeout_s: limit of the whole job, restarts included; None means none.
        grace_s: how long survivors of a failure, or ranks that were told to end, may take by
            themselves.
        kill_after_s: seconds from SIGTERM to SIGKILL.
        watch: a warden per rank watches its program from outside.
        json: one JSON object on stdout at the end; the ranks' stdout goes to stderr.
        environ: the launcher's own environment, which ranks inherit.
        own_environ: what each rank's environment has besides, by rank; empty: nothing.
        node: which node this is, where each has a launcher of its own; hosts are those nodes then.
        backend: what MLX is to use, by the host file: "ring", "jaccl", "jaccl-ring", ... or None.
    """

    command: tuple[str, ...]
    ranks: int
    restarts: int = 0
    replace: bool = False
    min_ranks: int | None = None
    wait_refill_s: float = 0.0
    spares: int = 0
    checkpoint: str | None = None
    hosts: tuple[Host, ...] = ()
    ssh: str = "ssh"
    remedy: str = ""
    python: str | None = None
    handed_on: Mapping[str, str] = field(default_factory=dict)
    cwd: str = field(default_factory=os.getcwd)
    stdin: str = "none"
    log_dir: str | None = None
    events: str | None = None
    on_fault: str | None = None
    timeout_s: float | None = None
    grace_s: float = 10.0
    kill_after_s: float = 5.0
    watch: bool = False
    json: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    own_environ: tuple[Mapping[str, str], ...] = ()
    node: NodeSpec | None = None
    backend: str | None = None

    def environ_of(self, rank: int) -> Mapping[str, str]:
        """Return what a rank's environment is made from."""
        own = self.own_environ[rank] if self.own_environ else {}
        return {**self.environ, **own}

    def handed_on_to(self, rank: int) -> Mapping[str, str]:
        """Return what a rank on another host gets besides what is set there."""
        own = self.own_environ[rank] if self.own_environ else {}
        return {**self.handed_on, **own}


class LaunchError(Exception):
    """The ranks could not be started; `status` is the launcher's exit status."""

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        self.message = message
        self.status = status
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")


class HostLost(LaunchError):
    """A host went before any rank of a generation was told to start: hosts can be asked again."""
