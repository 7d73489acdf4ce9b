"""How a launcher comes by the agents of its hosts: by ssh. switchboard.py has the other way."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from typing import Protocol

from standfast import exits
from standfast.launch.carrier import Carrier, ProcessCarrier
from standfast.launch.guardian import Guardian
from standfast.launch.spec import JobSpec, LaunchError
from standfast.launch.ssh import agent_command


class Callers(Protocol):
    """Brings a connection to the agent of each host."""

    def call(self, name: str) -> Carrier | None:
        """Begin to ask a host for an agent; None if that comes by itself, and has not yet.

        Raises:
            LaunchError: nobody can be asked.
        """

    def comes_by_itself(self, name: str) -> bool:
        """Whether the host's agent calls us."""

    def arrived(self) -> Sequence[str]:
        """Return the hosts whose agents have come since they were called last."""

    def trouble(self, name: str) -> str:
        """Return why a host that comes by itself has not; empty for others."""

    def attend(self) -> None:
        """Do what is due."""

    def close(self) -> None:
        """Let nobody in any more."""


class SshCallers:
    """Calls each host by ssh; this machine without."""

    def __init__(self, spec: JobSpec, selector: selectors.BaseSelector, guardian: Guardian) -> None:
        self._spec = spec
        self._selector = selector
        self._guardian = guardian

    def call(self, name: str) -> Carrier:
        """Start ssh."""
        spec = self._spec
        command = agent_command(name, spec.environ, ssh=spec.ssh, python=spec.python)
        try:
            return ProcessCarrier(command, self._selector, self._guardian)
        except OSError as error:
            raise LaunchError(
                f"cannot run {command[0]} for an agent on {name}: {error.strerror}",
                status=exits.UNAVAILABLE,
                hint="install OpenSSH's client, or say where it is: --ssh",
            ) from error

    def comes_by_itself(self, name: str) -> bool:
        """No host does."""
        return False

    def arrived(self) -> Sequence[str]:
        """No host does."""
        return ()

    def trouble(self, name: str) -> str:
        """The link tells."""
        return ""

    def attend(self) -> None:
        """Nothing is due."""

    def close(self) -> None:
        """Nobody comes in."""
