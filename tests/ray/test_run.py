"""`standfast run --on ray` and ray.run() with a stand-in for Ray whose actors are processes here.

tests/started/test_ray_run.py does the same with the real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.support import LIMIT_S, wait_until

HERE = Path(__file__).parent
RANK = HERE / "rank.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def environment(behaviour: str = "") -> dict[str, str]:
    """The stand-in comes first."""
    folders = [str(HERE / "fake"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(os.path.abspath(each) for each in folders if each)
    return {**os.environ, "PYTHONPATH": path, "FAKE_RAY": behaviour}


class Job:
    """`standfast run --on ray`, and what its ranks have written."""

    def __init__(self, folder: Path, *options: str, generations: int, ranks: int = 3) -> None:
        self.folder, self.ranks = folder, ranks
        self.events = folder / "events"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        command = [sys.executable, "-m", "standfast", "run", "--on", "ray", "-n", str(ranks)]
        command += ["--events", str(self.events), *options, "--"]
        command += [sys.executable, str(RANK), str(folder), str(generations)]
        command += ["reform"] if "--replace" in options else []
        self.launcher = subprocess.Popen(
            command,
            env=environment() | {"TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def formed(self, generation: int) -> list[tuple[int, int]]:
        """Wait for a generation; return each rank's process, and its agent's."""
        paths = [self.folder / f"{generation}-{rank}" for rank in range(self.ranks)]
        wait_until(lambda: all(path.exists() for path in paths), LIMIT_S)
        texts = [path.read_text().split() for path in paths]
        return [(int(pid), int(parent)) for pid, parent in texts]

    def end(self) -> tuple[int, str, str]:
        """Wait for the launcher; return status, stdout and stderr."""
        out, err = self.launcher.communicate(timeout=LIMIT_S)
        return self.launcher.returncode, out, err

    def story(self) -> list[str]:
        """The events so far, by name."""
        return [json.loads(line)["event"] for line in self.events.read_text().splitlines()]


@contextlib.contextmanager
def job(folder: Path, *options: str, generations: int) -> Iterator[Job]:
    """Run a job; nothing is left of it afterwards, and neither are its directories."""
    made = Job(folder, *options, generations=generations)
    try:
        yield made
    finally:
        made.launcher.kill()
        made.launcher.communicate()
    wait_until(lambda: not any(made.temporary.iterdir()))
    for generation in range(1, generations + 1):
        pids = [made.folder / f"{generation}-{rank}" for rank in range(made.ranks)]
        for path in filter(Path.exists, pids):
            pid = int(path.read_text().split()[0])
            wait_until(lambda pid=pid: not runs(pid))  # type: ignore[misc]


def runs(pid: int) -> bool:
    """Whether a process is there, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    """Return the process that started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_it_ends_well(tmp_path: Path) -> None:
    """Ranks meet by what their places tell them, print with their prefix, and all ends with 0."""
    with job(tmp_path, "--ray-strategy", "SPREAD", generations=1) as made:
        status, out, err = made.end()
        assert status == 0, err
        assert sorted(out.splitlines()) == [f"[r{rank} ray-{rank}] sum 3" for rank in range(3)]
        assert "standfast: ray-1 is on Ray node 127.0.0.1 (01234567)" in err
        assert made.story() == ["started", "ready", "finished"]


def test_a_killed_rank_is_replaced(tmp_path: Path) -> None:
    """The first cause is named, and the group is formed again in the same places."""
    with job(tmp_path, "--restarts", "1", generations=2) as made:
        os.kill(made.formed(1)[1][0], signal.SIGKILL)
        status, _, err = made.end()
        assert status == 0, err
        assert "the group failed: rank 1 on ray-1 was ended by SIGKILL" in err
        lost = ["started", "ready", "peer_lost", "group_failed", "restarting"]
        assert made.story() == [*lost, "started", "ready", "finished"]
        assert err.count("is on Ray node") == 3  # the agents stay


def test_a_killed_actor_is_replaced(tmp_path: Path) -> None:
    """Its rank goes with it; the cause has Ray's words; another actor takes the place."""
    with job(tmp_path, "--restarts", "1", generations=2) as made:
        pid, agent = made.formed(1)[2]
        os.kill(parent_of(agent), signal.SIGKILL)
        wait_until(lambda: not runs(pid), 5.0)
        status, _, err = made.end()
        assert status == 0, err
        assert "rank 2 was lost with host ray-2: no agent on ray-2: Ray node 127.0.0.1" in err
        assert "The actor died unexpectedly before finishing this task." in err
        assert "weather" not in err
        assert err.count("ray-2 is on Ray node") == 2


@pytest.mark.parametrize("spares", ["0", "1"])
def test_a_newcomer(tmp_path: Path, spares: str) -> None:
    """With --replace the others keep running; a new process or a spare joins them."""
    options = ["--restarts", "1", "--replace", "--spares", spares]
    with job(tmp_path, *options, generations=2) as made:
        before = made.formed(1)
        os.kill(before[1][0], signal.SIGKILL)
        after = made.formed(2)
        status, _, err = made.end()
        assert status == 0, err
        assert [after[rank] == before[rank] for rank in range(3)] == [True, False, True]
        assert "group_failed" not in made.story()


def test_without_restarts(tmp_path: Path) -> None:
    """The first cause's own status is the job's, as without Ray."""
    with job(tmp_path, generations=2) as made:
        os.kill(made.formed(1)[0][0], signal.SIGKILL)
        assert made.end()[0] == 137


@pytest.mark.parametrize("victim", ["launcher", "steward"])
def test_nobody_outlives_the_job(tmp_path: Path, victim: str) -> None:
    """Without its launcher, or the process that talks to Ray, no rank lives 5 s later."""
    with job(tmp_path, generations=2) as made:
        ranks = made.formed(1)
        pid = made.launcher.pid if victim == "launcher" else steward_of(made.launcher.pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(runs(rank) for rank, _ in ranks), 5.0)
        status, _, err = made.end()
        if victim == "steward":
            assert status == 137
            assert "the process that talks to Ray is gone" in err


def steward_of(launcher: int) -> int:
    """Return the launcher's steward."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return int(next(pid for pid, line in lines.items() if b"standfast.ray.steward" in line))


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("no cluster", "no Ray cluster: Could not find any running Ray instance at auto"),
        ("no room", "Ray found no room for 2 places of {CPU: 1} (PACK) within 30 s"),
        ("actors die", "there is room for 0 of at least 2 ranks: no agent on ray-0: The actor"),
    ],
)
def test_no_place(behaviour: str, words: str) -> None:
    """Status 69 and Ray's reason, with what to do about it; nothing was started."""
    answer = standfast("run", "--on", "ray", "-n", "2", "--", "true", behaviour=behaviour)
    assert answer.returncode == 69, answer.stderr
    assert words in answer.stderr
    assert "hint: " in answer.stderr
    assert "ssh" not in answer.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "ray"], "say how many ranks: -n N"),
        (["--on", "ray", "-n", "2", "--hosts", "a,b"], "--on ray and --hosts"),
        (["--on", "ray", "-n", "2", "--ray-resources", "CPU"], "--ray-resources: 'CPU' is no"),
        (["--on", "ray", "-n", "2", "--ssh", "ssh -F x"], "needs neither --ssh nor --python"),
        (["-n", "2", "--ray-strategy", "PACK"], "--ray-strategy needs --on ray"),
    ],
)
def test_usage(options: list[str], words: str) -> None:
    """What does not fit together is refused with 2 before Ray is asked."""
    answer = standfast("run", *options, "--", "true")
    assert (answer.returncode, words in answer.stderr) == (2, True), answer.stderr


def standfast(*words: str, behaviour: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "standfast", *words],
        env=environment(behaviour),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


CALLER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import functions
from standfast import ray
try:
    made = ray.run(getattr(functions, sys.argv[2]), ranks=3, args=(10,), restarts=int(sys.argv[3]))
    print(json.dumps(made))
except ray.RayJobFailed as error:
    print(json.dumps([error.message, error.rank, error.host, error.status]))
"""
FUNCTIONS = """
import os
import standfast

def add(base):
    with standfast.init() as group:
        return [group.rank, group.all_sum(base + group.rank), group.generation]

def fail_once(base):
    with standfast.init() as group:
        if (group.generation, group.rank) == (1, 2):
            os._exit(3)
        return [group.rank, group.all_sum(base + group.rank), group.generation]

def fail(base):
    with standfast.init() as group:
        if group.rank == 1:
            raise ValueError("bad batch 7")
        group.barrier()
"""


@pytest.mark.parametrize(
    ("function", "restarts", "expected"),
    [
        ("add", 0, [[rank, 33, 1] for rank in range(3)]),
        ("fail_once", 1, [[rank, 33, 2] for rank in range(3)]),
    ],
)
def test_a_function(tmp_path: Path, function: str, restarts: int, expected: list[Any]) -> None:
    """Each rank calls it; its results come back by rank, those of the last generation."""
    assert call(tmp_path, function, restarts) == expected


def test_a_function_that_raises(tmp_path: Path) -> None:
    """The error names rank, place, and what it raised."""
    message, rank, host, status = call(tmp_path, "fail", 0)
    assert "rank 1 on ray-1 failed with exit 1 (generation 1): ValueError: bad batch 7" in message
    assert (rank, host, status) == (1, "ray-1", 1)


def call(folder: Path, function: str, restarts: int) -> Any:
    """Call a function of FUNCTIONS by ray.run(); return what is printed about it."""
    (folder / "functions.py").write_text(FUNCTIONS)
    answer = subprocess.run(
        [sys.executable, "-c", CALLER, str(folder), function, str(restarts)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_caller(tmp_path: Path, number: signal.Signals) -> None:
    """If the process that called run() is killed or interrupted, no rank lives 5 s later."""
    program = f"[{sys.executable!r}, {str(RANK)!r}, {str(tmp_path)!r}, '2']"
    code = f"from standfast import ray; ray.run({program}, ranks=2)"
    caller = subprocess.Popen([sys.executable, "-c", code], env=environment())
    paths = [tmp_path / f"1-{rank}" for rank in range(2)]
    try:
        wait_until(lambda: all(path.exists() for path in paths), LIMIT_S)
    finally:
        caller.send_signal(number)
        caller.wait(LIMIT_S)
    ranks = [int(path.read_text().split()[0]) for path in paths]
    wait_until(lambda: not any(map(runs, ranks)), 5.0)
