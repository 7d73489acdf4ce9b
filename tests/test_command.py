"""The `standfast` command itself: what it lists, and what it loads for that."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from standfast.command import cli

PROGRAM = """
import sys
from standfast.command import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("modules:", *sys.modules)
"""


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a command has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("modules:")[2].split())


def test_only_the_command_that_is_called_is_loaded() -> None:
    """What starts ranks does not wait for the code of those who measure."""
    assert "standfast.bench" not in loaded_by("run", "--help")
    assert "standfast.bench.command" in loaded_by("bench", "--help")


def test_help_lists_what_is_not_loaded_yet() -> None:
    """`standfast --help` has every command, in order, with a sentence."""
    said = CliRunner().invoke(cli, ["--help"]).output
    lines = [line.split() for line in said.partition("Commands:")[2].splitlines()]
    listed = [
        line[0] for line in lines if line and line[0] in cli.list_commands(click.Context(cli))
    ]
    assert listed == sorted(listed)
    assert {"bench", "run", "explain"} <= set(listed)
    assert "Measure the collectives" in said


@pytest.mark.parametrize(("begun", "found"), [("be", ["bench"]), ("ru", ["run"]), ("zz", [])])
def test_completion_knows_what_is_not_loaded_yet(begun: str, found: list[str]) -> None:
    """The shell's completion offers commands of both kinds."""
    assert [each.value for each in cli.shell_complete(click.Context(cli), begun)] == found


def test_an_unknown_command_is_a_usage_error() -> None:
    """No module is looked for by a name that is in no table."""
    ended = CliRunner().invoke(cli, ["measure"])
    assert ended.exit_code == 2
    assert "No such command 'measure'" in ended.output
