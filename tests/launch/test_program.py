"""Finding the program: every refusal has a message that says what to do, and a shell's status."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from standfast.launch.program import cannot_exec, find_program
from standfast.launch.spec import LaunchError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one of everything, as the current one."""
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "notes").write_text("text")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_found(place: Path) -> None:
    """A name is looked up on PATH, a path is taken as it is."""
    assert find_program("tool", f"/nowhere:{place}") == str(place / "tool")
    assert find_program("./tool", "/nowhere") == str(place / "tool")


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("no-such-tool", 127, "not found on PATH"),
        ("./no-such-tool", 127, "no such file"),
        ("train.py", 127, "hint: -- python train.py"),
        ("tool", 127, "hint: -- ./tool"),
        ("./train.py", 126, "hint: -- python ./train.py"),
        ("./notes", 126, "hint: chmod +x ./notes"),
        ("./folder", 126, "is a directory"),
        ("", 127, "empty"),
    ],
)
@pytest.mark.usefixtures("place")
def test_refused(name: str, status: int, words: str) -> None:
    """127 for what is not there, 126 for what can't be executed, and a hint."""
    with pytest.raises(LaunchError) as caught:
        find_program(name, "/nowhere")
    assert caught.value.status == status
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (errno.ENOENT, 127, "#!"),
        (errno.ENOEXEC, 126, "hint: a script needs a first line"),
        (errno.E2BIG, 126, "E2BIG"),
    ],
)
def test_refused_by_the_kernel(number: int, status: int, words: str) -> None:
    """What only execve can know is explained as well."""
    error = cannot_exec("/bin/x", OSError(number, os.strerror(number)))
    assert error.status == status
    assert words in str(error)
