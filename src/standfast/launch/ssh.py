"""The command lines that start an agent. Pure."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

AGENT = ("-P", "-m", "standfast.launch.agent")
OPTIONS = (
    "BatchMode=yes",  # a question nobody sees would be a hang
    "ConnectTimeout=10",
    # The agent has its own lease; these end the ssh process of a connection that is cut.
    "ServerAliveInterval=1",
    "ServerAliveCountMax=3",
    "TCPKeepAlive=yes",
    "ForwardX11=no",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
    "LogLevel=ERROR",
)
"""All else is the user's: names, ports, keys, jumps and ControlMaster in ~/.ssh/config work."""
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def agent_command(
    host: str, environ: Mapping[str, str], *, ssh: str = "ssh", python: str | None = None
) -> list[str]:
    """Return what starts an agent on a host; on this machine it needs no ssh.

    Args:
        host: as ssh takes it: "name", "user@name", or a Host of ~/.ssh/config.
        environ: the launcher's; PYTHONPATH is handed on.
        ssh: the ssh program and options of the user's.
        python: the interpreter there; by default the launcher's own path.
    """
    command = [python or sys.executable, *AGENT]
    if host in LOCAL:
        return command
    if environ.get("PYTHONPATH"):
        folders = environ["PYTHONPATH"].split(os.pathsep)
        absolute = os.pathsep.join(os.path.abspath(folder) for folder in folders)
        command = ["env", f"PYTHONPATH={absolute}", *command]
    options = [word for option in OPTIONS for word in ("-o", option)]
    return [*shlex.split(ssh), "-T", *options, "--", host, f"exec {shlex.join(command)}"]


def explained(host: str, reason: str, said: Sequence[str]) -> str:
    """Return why there is no agent, with what ssh or the host itself said about it."""
    words = "; ".join(line for line in said if line.strip())
    return f"no agent on {host}: {words or reason}"
