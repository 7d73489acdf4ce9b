"""`--spares` on one machine: processes that wait in init() for a lost rank's place."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.launch.support import finish, kill, lives, run, start, wait_until
from tests.launch.test_run_replace import in_generation, program, told

SLOW_IMPORT_S = 4.0
SPARE = """
import os, sys, time
is_spare = "STANDFAST_SPARE_FD" in os.environ
assert is_spare or "STANDFAST_RANK" in os.environ
assert not (is_spare and {"STANDFAST_RANK", "RANK", "MLX_RANK"} & set(os.environ))
PLACE = sys.argv[1]
"""
IMPORTS = f"""
time.sleep({SLOW_IMPORT_S})  # a program's imports
print("imported", flush=True)
with open(f"{{PLACE}}/imported-{{os.getpid()}}.new", "w") as file:
    file.write(str(os.getpid()))
os.replace(file.name, f"{{PLACE}}/imported-{{os.getpid()}}")
"""
RANK = """
import json, standfast, signal
group = standfast.init(timeout_s=40)
SLOT, NUMBER = int(os.environ["STANDFAST_RANK"]), int(os.environ["STANDFAST_GENERATION"])
assert os.environ["RANK"] == os.environ["STANDFAST_RANK"]

def say(name):
    with open(f"{PLACE}/{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(file.name, f"{PLACE}/{name}")

def is_there(name):
    return os.path.exists(f"{PLACE}/{name}")

while True:
    say(f"slot{SLOT}-in{group.generation}")
    try:
        while not group.all_max(float(is_there("end"))):
            time.sleep(0.002)
        print(f"slot {SLOT} is rank {group.rank} of {group.size} in {group.generation}", flush=True)
        group.close()
        sys.exit(0)
    except standfast.PeerError:
        if not REFORM:
            sys.exit(75)
        group = group.reform(wait_s=30.0, min_size=1)
"""


def spare_program(place: Path, *, reform: bool = True, imports: str = IMPORTS) -> list[str]:
    """A rank whose imports take long, and which says when it is through with them."""
    words = program("", place)
    words[2] = f"{SPARE}{imports}REFORM = {reform}\n{RANK}"
    return words


def imported(place: Path) -> set[int]:
    """Return the processes that are through with their imports."""
    return {int(path.name.split("-")[1]) for path in place.glob("imported-*[0-9]")}


def idle(place: Path, ranks: list[int]) -> set[int]:
    """Return the processes that are through with their imports, and have no place."""
    return {pid for pid in imported(place) if lives(pid)}.difference(ranks)


def one_idle(place: Path, ranks: list[int]) -> int:
    """Wait until there is one that has no place."""
    wait_until(lambda: len(idle(place, ranks)) == 1, 60.0)
    return idle(place, ranks).pop()


def test_it_takes_a_place_without_the_imports(tmp_path: Path) -> None:
    """From a death to the whole group takes less than the imports do; the output is the rank's."""
    options = ["-n", "3", "--restarts", "5", "--replace", "--spares", "1"]
    events = tmp_path / "events"
    launcher = start([*options, "--events", str(events)], spare_program(tmp_path))
    took_s = []
    for number in (2, 3, 4):  # the best of three: this machine may be busy
        before = in_generation(tmp_path, number - 1, 0, 1, 2)
        spare = one_idle(tmp_path, before)
        kill(before[1])
        killed_s = time.monotonic()
        after = in_generation(tmp_path, number, 0, 1, 2)
        took_s.append(time.monotonic() - killed_s)
        assert [after[0], after[2]] == [before[0], before[2]]
        assert after[1] == spare
        if min(took_s) < SLOW_IMPORT_S / 2:
            break
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert min(took_s) < SLOW_IMPORT_S / 2, took_s
    assert "[spare] imported" in ended.out
    assert len([line for line in ended.out.splitlines() if line.startswith("[r1] slot 1")]) == 1
    assert [each["event"] for each in told(events)][:6] == [
        *("started", "ready", "peer_lost", "restarting", "started", "ready"),
    ]
    wait_until(lambda: not any(map(lives, imported(tmp_path))), 5.0)


def test_at_a_restart(tmp_path: Path) -> None:
    """As many spares as ranks: the next generation is theirs, rank 0's listener included."""
    options = ["-n", "2", "--restarts", "3", "--spares", "2", "--grace-s", "0.5"]
    quick = IMPORTS.replace(str(SLOW_IMPORT_S), "0")
    launcher = start(options, spare_program(tmp_path, reform=False, imports=quick))
    ranks = in_generation(tmp_path, 1, 0, 1)
    wait_until(lambda: len(imported(tmp_path)) == 4, 60.0)
    spares = imported(tmp_path) - set(ranks)
    kill(ranks[1])
    assert set(in_generation(tmp_path, 2, 0, 1)) == spares
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert lines_of_ranks(ended.out) == ["slot 0 is rank 0 of 2 in 2", "slot 1 is rank 1 of 2 in 2"]


def lines_of_ranks(out: str) -> list[str]:
    """Return what ranks have said of themselves."""
    return sorted(line.split("] ")[1] for line in out.splitlines() if "] slot " in line)


def test_one_that_dies_is_reported_and_replaced(tmp_path: Path) -> None:
    """The ranks do not notice, and another takes its place."""
    events = tmp_path / "events"
    options = ["-n", "2", "--restarts", "3", "--spares", "1", "--events", str(events)]
    quick = IMPORTS.replace(str(SLOW_IMPORT_S), "0")
    launcher = start(options, spare_program(tmp_path, imports=quick))
    ranks = in_generation(tmp_path, 1, 0, 1)
    wait_until(lambda: len(imported(tmp_path)) == 3, 60.0)
    (spare,) = imported(tmp_path) - set(ranks)
    kill(spare)
    wait_until(lambda: len(imported(tmp_path)) == 4, 60.0)
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    lost = [each for each in told(events) if each["event"] == "spare_lost"]
    assert [each["pid"] for each in lost] == [spare]
    assert (
        f"spare (pid {spare}): ended by SIGKILL before it had a place; another is st" in ended.err
    )


def test_a_program_that_does_not_wait(tmp_path: Path) -> None:
    """Spares that end at once are given up after three, which the ranks survive."""
    code = """
import os, sys, time
if "STANDFAST_SPARE_FD" in os.environ:
    sys.exit(4)
end_s = time.monotonic() + 30
while not os.path.exists(sys.argv[1] + "/end") and time.monotonic() < end_s:
    time.sleep(0.01)
"""
    words = program("", tmp_path)
    words[2] = code
    events = tmp_path / "events"
    options = ["-n", "2", "--restarts", "1", "--spares", "1", "--events", str(events)]
    launcher = start(options, words)
    wait_until(lambda: events.exists() and len(told(events)) >= 4, 40.0)
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert ended.err.count("exit 4 before it had a place") == 3
    assert "the last 3 ended so, and no more are started" in ended.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_launcher(tmp_path: Path, number: signal.Signals) -> None:
    """Whether the launcher is killed or told to end, no spare is left."""
    quick = IMPORTS.replace(str(SLOW_IMPORT_S), "0")
    options = ["-n", "2", "--restarts", "3", "--spares", "2", "--grace-s", "0.5"]
    launcher = start(options, spare_program(tmp_path, imports=quick))
    wait_until(lambda: len(imported(tmp_path)) == 4, 60.0)
    in_generation(tmp_path, 1, 0, 1)
    launcher.send_signal(number)
    wait_until(lambda: not any(map(lives, imported(tmp_path))), 5.0)
    finish(launcher)
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()), 5.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--spares", "1"], "--spares needs --restarts N"),
        (["--spares", "1", "--restarts", "1", "--watch"], "under --watch nobody calls it"),
    ],
)
def test_what_it_does_not_go_with(options: list[str], text: str) -> None:
    """Said before anything starts."""
    ended = run(["-n", "2", *options], ["true"])
    assert ended.status == 2
    assert text in ended.err
