"""What the launcher and the wardens of `run --watch` agree on: the command line, the limits. Pure.

A warden is a small process per rank that stands between the launcher and the rank's program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from standfast import exits
from standfast import settings as configuration
from standfast.errors import ConfigError
from standfast.launch.spec import LaunchError
from standfast.settings import Settings

# Rank 0's warden stays for the others when its own program is done, however long they take.
LINGER_S = 1e9
# A program that stands still is given up when a silent rank would be.
STANDSTILL_MORE_S = 0.01


def warden_command(path: str, command: Sequence[str], *, kill_after_s: float) -> list[str]:
    """Return the command line of a warden for this program. -P: no module comes from the cwd."""
    warden = [sys.executable, "-P", "-m", "standfast.launch.warden"]
    return [*warden, f"{kill_after_s}", path, *command]


def parse_command(arguments: Sequence[str]) -> tuple[float, str, list[str]]:
    """Return kill_after_s, the program's path and its command line; see `warden_command`."""
    kill_after_s, path, *command = arguments
    return float(kill_after_s), path, command


def watch_settings(settings: Settings) -> dict[str, Any]:
    """Return what a warden's watch has other than the environment says.

    A program that was stopped is told as one that makes no progress; that limit is the silence
    limit here. Signals and the end of the process are the warden's own matter.
    """
    return {
        "progress_s": settings.silence_s + STANDSTILL_MORE_S,
        "close_linger_s": LINGER_S,
        "exit_on_fault": False,
        "handle_sigterm": False,
        "excepthook": False,
    }


def check_limits(environ: Mapping[str, str]) -> None:
    """Make sure, before anything starts, that the settings can be those of a watch.

    Raises:
        LaunchError: a variable is wrong, or the limits are out of order.
    """
    try:
        configuration.load(watch_settings(configuration.load({}, environ)), environ)
    except ConfigError as error:
        raise LaunchError(error.message, status=exits.CONFIG, hint=error.hint) from error
