"""`--stdin`: the launcher's input for one rank, or for all."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.launch.support import LAUNCHER, launcher_environment, python

READ_ALL = """
import hashlib
data = sys.stdin.buffer.read()
print(RANK, len(data), hashlib.sha256(data).hexdigest())
"""
DATA = b"".join(b"%d\n" % number for number in range(200_000))
SUM = f"{len(DATA)} {hashlib.sha256(DATA).hexdigest()}"
NOTHING = f"0 {hashlib.sha256(b'').hexdigest()}"


def run_with_input(*options: str, code: str, data: bytes = DATA) -> list[str]:
    done = subprocess.run(
        [*LAUNCHER, "run", *options, "--", *python(code)],
        input=data,
        capture_output=True,
        check=False,
        env=launcher_environment(),
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    return sorted(line.split("] ")[1] for line in done.stdout.decode().splitlines())


@pytest.mark.parametrize("where", [[], ["--hosts", "localhost:2"]], ids=["here", "agent"])
@pytest.mark.parametrize(
    ("wanted", "sums"), [("none", [NOTHING, NOTHING]), ("0", [SUM, NOTHING]), ("all", [SUM, SUM])]
)
def test_who_gets_it(where: list[str], wanted: str, sums: list[str]) -> None:
    """Whole, and in order; who gets none has an empty one."""
    lines = run_with_input("-n", "2", *where, "--stdin", wanted, code=READ_ALL)
    assert lines == [f"{rank} {text}" for rank, text in enumerate(sums)]


def test_a_file(tmp_path: Path) -> None:
    """A file is no pipe, and is read as well."""
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        done = subprocess.run(
            [*LAUNCHER, "run", "-n", "2", "--stdin", "all", "--", *python(READ_ALL)],
            stdin=file,
            capture_output=True,
            check=True,
            env=launcher_environment(),
            timeout=40,
        )
    assert done.stdout.decode().count(SUM) == 2


def test_a_rank_that_does_not_read() -> None:
    """It ends as it likes, and the others still get all."""
    code = f"sys.exit(0) if RANK == 0 else None\n{READ_ALL}"
    assert run_with_input("-n", "2", "--stdin", "all", code=code) == [f"1 {SUM}"]


def test_the_end_of_a_terminal_is_an_end() -> None:
    """What the user types arrives, and ends with the terminal."""
    ours, its = os.openpty()
    process = subprocess.Popen(
        [*LAUNCHER, "run", "-n", "1", "--stdin", "0", "--", *python("print(input())")],
        stdin=its,
        stdout=subprocess.PIPE,
        env=launcher_environment(),
    )
    os.close(its)
    os.write(ours, b"hello\n")
    out, _ = process.communicate(timeout=40)
    os.close(ours)
    assert (process.returncode, out) == (0, b"[r0] hello\n")
