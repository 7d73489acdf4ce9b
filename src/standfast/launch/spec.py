"""What the user asked for. Made by command.py; read by everybody, changed by nobody."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One `standfast run`.

    Fields:
        command: the program and its arguments.
        ranks: how many to start.
        restarts: how often the group may be formed again.
        timeout_s: limit of the whole job, restarts included; None means none.
        grace_s: how long survivors of a failure, or ranks that were told to end, may take by
            themselves.
        kill_after_s: seconds from SIGTERM to SIGKILL.
        watch: a warden per rank watches its program from outside.
        json: one JSON object on stdout at the end; the ranks' stdout goes to stderr.
        environ: the launcher's own environment, which ranks inherit.
        own_environ: what each rank's environment has besides, by rank; empty: nothing.
    """

    command: tuple[str, ...]
    ranks: int
    restarts: int = 0
    timeout_s: float | None = None
    grace_s: float = 10.0
    kill_after_s: float = 5.0
    watch: bool = False
    json: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    own_environ: tuple[Mapping[str, str], ...] = ()

    def environ_of(self, rank: int) -> Mapping[str, str]:
        """Return what a rank's environment is made from."""
        own = self.own_environ[rank] if self.own_environ else {}
        return {**self.environ, **own}


class LaunchError(Exception):
    """The ranks could not be started; `status` is the launcher's exit status."""

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        self.message = message
        self.status = status
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
