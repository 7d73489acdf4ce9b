"""The command line itself: help, mistakes, and small commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.launch.support import LAUNCHER, launcher_environment, processes_with


def call(*arguments: str, prefix: Sequence[str] = LAUNCHER) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [*prefix, *arguments],
        capture_output=True,
        check=False,
        text=True,
        env=launcher_environment(),
        timeout=30,
    )


def test_help_without_arguments() -> None:
    """`standfast` alone prints its help, with an example, and ends with 0."""
    done = call()
    assert done.returncode == 0
    assert "standfast run -n 4 -- python train.py" in done.stdout
    assert done.stdout == call("--help").stdout


def test_help_of_run() -> None:
    """Options come under headings, with their environment variables, and there is an example."""
    text = call("run", "--help").stdout
    for word in (
        "Ranks:",
        "Limits:",
        "Input and output:",
        "STANDFAST_RUN_TIMEOUT_S",
        "Example:",
        "124",
    ):
        assert word in text


def test_version() -> None:
    """`standfast --version` names the program and a version."""
    done = call("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "standfast")


def test_python_m_standfast() -> None:
    """`python -m standfast` is the same command."""
    done = call("explain", "75", prefix=[LAUNCHER[0], "-m", "standfast"])
    assert done.stdout == call("explain", "75").stdout


@pytest.mark.parametrize(("code", "words"), [("75", "sensible"), ("137", "SIGKILL"), ("42", "own")])
def test_explain(code: str, words: str) -> None:
    """`standfast explain CODE` says what a status means."""
    done = call("explain", code)
    assert done.returncode == 0
    assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "run"),
        (["run", "-n", "0", "--", "true"], "0 is not in the range"),
        (["run", "-n", "x", "--", "true"], "'x' is not a valid integer"),
        (["run", "-n", "-1", "--", "true"], "range"),
        (["run", "--", "true"], "-n"),
        (["run", "-n", "2"], "PROGRAM"),
        (["run", "-n", "2", "--"], "PROGRAM"),
        (["run", "-n", "2", "--restart", "3", "--", "true"], "--restarts"),
        (["run", "-n", "2", "--timeout-s", "0", "--", "true"], "0"),
        (["run", "-n", "2", "--timeout-s", "nan", "--", "true"], "nan"),
        (["run", "-n", "2", "--grace-s", "-1", "--", "true"], "-1"),
        (["run", "-n", "2", "--grace-s", "soon", "--", "true"], "soon"),
        (["explain", "300"], "300"),
        (["explain", "x"], "x"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    """A mistake in the command line is named on stderr, and the status is 2."""
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_program_options_are_not_ours() -> None:
    """Everything after the program belongs to it, with and without `--`."""
    for separator in ([], ["--"]):
        done = call("run", "-n", "1", *separator, "echo", "-n", "5", "--json", "--", "--help")
        assert (done.returncode, done.stdout) == (0, "[r0] 5 --json -- --help\n")


def test_environment_variables_stand_for_options() -> None:
    """Options can be given by environment variables."""
    done = subprocess.run(
        [*LAUNCHER, "run", "--", "echo", "x"],
        capture_output=True,
        check=False,
        text=True,
        env=launcher_environment({"STANDFAST_RUN_RANKS": "2"}),
    )
    assert done.stdout == "[r0] x\n[r1] x\n" or done.stdout == "[r1] x\n[r0] x\n"


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [("no-such-program", 127, "not found on PATH"), ("./script.py", 126, "hint: -- python")],
)
def test_program_that_cannot_be_started(
    program: str, status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing program is 127, one that can't be executed 126, as in a shell; JSON tells too."""
    (tmp_path / "script.py").touch()
    monkeypatch.chdir(tmp_path)
    done = call("run", "-n", "2", "--json", "--", program)
    assert done.returncode == status
    assert words in done.stderr
    assert f'"status": {status}' in done.stdout
    assert '"error"' in done.stdout


@pytest.mark.parametrize(("first", "status"), [("#!/no/such/shell\n", 127), ("neither\n", 126)])
def test_program_that_the_kernel_refuses(first: str, status: int, tmp_path: Path) -> None:
    """A script with a missing or no interpreter is refused once, clearly, and nothing is left."""
    script = tmp_path / "script"
    script.write_text(first)
    script.chmod(0o755)
    done = call("run", "-n", "2", "--", str(script))
    assert done.returncode == status
    assert str(script) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_system_refuses_more_ranks(tmp_path: Path) -> None:
    """When a rank can't be started, those that run are ended, and the status is 69."""
    mark = str(tmp_path / "mark")
    limited = f"ulimit -n 24; exec {' '.join(LAUNCHER)} run -n 9 -- sh -c 'sleep 60; :' {mark}"
    done = call(limited, prefix=["sh", "-c"])
    assert done.returncode == 69
    assert done.stderr == "standfast: cannot start the ranks: Too many open files\n"
    assert processes_with(mark) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--hosts", "a,b:2", "--format", "openmpi"], "a slots=1\nb slots=2\n"),
        (["--hosts", "a,b:2", "--format", "hydra"], "a:1\nb:2\n"),
    ],
)
def test_hosts_are_written(arguments: list[str], expected: str) -> None:
    """`standfast hosts` writes the form that is asked for."""
    done = call("hosts", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_hosts_for_mlx(tmp_path: Path) -> None:
    """MLX's JSON, as a list and with a backend as an object, is read back as it was."""
    path = tmp_path / "hosts.json"
    path.write_text(call("hosts", "--hosts", "a,b:2").stdout)
    assert [each["ssh"] for each in json.loads(path.read_text())] == ["a", "b", "b"]
    assert call("hosts", "--hostfile", str(path)).stdout == path.read_text()
    words = ["--backend", "jaccl", "--env", "A=1"]
    done = call("hosts", "--hostfile", str(path), *words)
    path.write_text(done.stdout)
    assert json.loads(done.stdout)["backend"] == "jaccl"
    assert call("hosts", "--hostfile", str(path)).stdout == done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "either --hosts or --hostfile"),
        (["--hosts", "a", "--format", "ring"], 2, "'ring' is not one of"),
        (["--hosts", "a:0"], 78, "'0' is not a number of ranks"),
        (["--hosts", "a", "--format", "hydra", "--env", "A=1"], 78, "no place for envs"),
        (["--hosts", "a", "--env", "A"], 78, "'A' is not of the form NAME=value"),
    ],
)
def test_hosts_that_cannot_be_written(arguments: list[str], status: int, words: str) -> None:
    """Nothing comes to stdout, and stderr says why."""
    done = call("hosts", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
