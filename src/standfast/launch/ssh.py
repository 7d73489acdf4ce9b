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
REMEDIES = (
    ("here is", "install the same version of standfast on all hosts"),
    ("No module named", "install standfast there, or say which Python has it: --python PATH"),
    ("No such file or directory", "is that the Python there that has standfast? --python PATH"),
    ("not found", "is that the Python there that has standfast? --python PATH"),
    (
        "Permission denied",
        "ssh must get in without a question: ssh-copy-id HOST, or an agent's key",
    ),
    ("Host key verification failed", "see whose key that is: ssh HOST, by hand, once"),
    ("Could not resolve hostname", "check the name; ~/.ssh/config may say where it leads"),
    ("Connection refused", "is sshd running there, at that port? see `ssh HOST true`"),
    ("timed out", "is it switched on, and in reach? see `ssh HOST true`"),
    ("No route to host", "is it switched on, and in reach? see `ssh HOST true`"),
)
"""What to do about words of ssh's, a shell's or Python's; the first that is found counts."""
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


def remedy(troubles: str) -> str:
    """Return what to do where hosts have no agent; `troubles` is all that was said of it."""
    found = next((what for words, what in REMEDIES if words in troubles), None)
    general = "see that `ssh HOST true` works without a question"
    return f"{found or general}; or go on without: --min-ranks, --spares"
