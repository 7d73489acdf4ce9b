"""What launcher and wardens agree on: command line and limits."""

from __future__ import annotations

import sys

import pytest

from standfast import settings as configuration
from standfast.launch.spec import LaunchError
from standfast.launch.warding import check_limits, parse_command, warden_command, watch_settings


def test_the_command_line_comes_back() -> None:
    """A program's words reach it as they were, dashes and all."""
    words = ["python", "-c", "print('--')", "--", ""]
    command = warden_command("/bin/python", words, kill_after_s=2.5)
    assert command[0] == sys.executable
    start = command.index("standfast.launch.warden") + 1
    assert parse_command(command[start:]) == (2.5, "/bin/python", words)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"STANDFAST_SILENCE_S": "1"},
        {"STANDFAST_PROGRESS_TIMEOUT_S": "30", "STANDFAST_SILENCE_S": "29"},
    ],
)
def test_a_standstill_is_given_up_like_silence(environ: dict[str, str]) -> None:
    """The progress limit of a watch from outside is the silence limit, whatever was set."""
    check_limits(environ)
    base = configuration.load({}, environ)
    chosen = configuration.load(watch_settings(base), environ)
    assert base.silence_s < chosen.progress_s < base.silence_s + 0.1
    assert not chosen.exit_on_fault
    assert not chosen.handle_sigterm


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"STANDFAST_SILENCE_S": "soon"}, "STANDFAST_SILENCE_S='soon'"),
        ({"STANDFAST_HINT_S": "30"}, "hint_s=30 is not below silence_s=20"),
    ],
)
def test_wrong_limits_are_refused_before_the_start(environ: dict[str, str], words: str) -> None:
    """What each warden would refuse is refused once, with the status of a configuration error."""
    with pytest.raises(LaunchError, match=words) as found:
        check_limits(environ)
    assert found.value.status == 78
