"""`standfast run --replace`: newcomers for ranks that form their group again in process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.support import Ended, finish, kill, lives, pids_in, run, start, wait_until
from tests.launch.test_run_events import status

MEMBER = """
import json, os, signal, sys, time
import standfast
SLOT, NUMBER = int(os.environ["STANDFAST_RANK"]), int(os.environ["STANDFAST_GENERATION"])
PLACE = sys.argv[1]

def say(name, text=""):
    with open(f"{PLACE}/{name}.new", "w") as file:
        file.write(str(text or os.getpid()))
    os.replace(file.name, f"{PLACE}/{name}")

def is_there(name):
    return os.path.exists(f"{PLACE}/{name}")

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
WORK = """
group = standfast.init(timeout_s=40)
while True:
    say(f"slot{SLOT}-in{group.generation}")
    try:
        while not group.all_max(float(is_there("end"))):
            time.sleep(0.002)
        print(f"slot {SLOT} is rank {group.rank} of {group.size} in {group.generation}", flush=True)
        group.close()
        sys.exit(0)
    except standfast.PeerError:
        group = group.reform(wait_s=WAIT_S, min_size=1)
"""


def program(code: str, place: Path) -> list[str]:
    """A rank that says who it is in files of this directory."""
    return [sys.executable, "-c", MEMBER + code, str(place)]


def work(place: Path, before: str = "", wait_s: float = 30.0) -> list[str]:
    """Ranks that add up, form the group again, and end at a word of the test."""
    return program(f"WAIT_S = {wait_s}\n{before}{WORK}", place)


def told(events: Path) -> list[dict[str, Any]]:
    """Return the events so far."""
    return [json.loads(line) for line in events.read_text().splitlines()]


def lines(ended: Ended) -> list[str]:
    """Return what the ranks have printed, in the order of slots."""
    return sorted(line.split("] ")[1] for line in ended.out.splitlines())


def in_generation(place: Path, number: int, *slots: int) -> list[int]:
    """Wait until these are in a generation; return their processes."""
    return pids_in(*(place / f"slot{slot}-in{number}" for slot in slots))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_newcomer_takes_a_lost_ranks_place(tmp_path: Path, victim: int) -> None:
    """The others keep their processes; the events tell the story in its order."""
    events = tmp_path / "events"
    options = ["-n", "4", "--restarts", "3", "--replace", "--events", str(events)]
    launcher = start(options, work(tmp_path))
    pids = in_generation(tmp_path, 1, 0, 1, 2, 3)
    kill(pids[victim])
    again = in_generation(tmp_path, 2, 0, 1, 2, 3)
    wait_until(lambda: status()[1][0]["state"] == "ready")
    (job,) = status()[1]
    assert [each["pid"] for each in job["ranks"]] == again
    assert {each["state"] for each in job["ranks"]} == {"ready"}
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    left = [slot for slot in range(4) if slot != victim]
    assert [again[slot] for slot in left] == [pids[slot] for slot in left]
    assert again[victim] != pids[victim]
    order = [*left, victim]
    assert lines(ended) == [
        f"slot {slot} is rank {order.index(slot)} of 4 in 2" for slot in range(4)
    ]
    story = told(events)
    assert [each["event"] for each in story] == [
        *("started", "ready", "peer_lost", "restarting", "started", "ready", "finished"),
    ]
    assert (story[2]["rank"], story[3]["ranks"], story[3]["restart"]) == (victim, [victim], 1)
    assert [(each["rank"], each["pid"]) for each in story[4]["ranks"]] == [(victim, again[victim])]
    assert (story[5]["size"], story[5]["group_generation"]) == (4, 2)
    assert [each["time"] for each in story] == sorted(each["time"] for each in story)


def test_two_are_lost_at_once_and_a_third_meanwhile(tmp_path: Path) -> None:
    """Whoever is lost while others are being replaced is replaced as well."""
    before = """
if SLOT == 3 and NUMBER > 1 and not is_there("go"):
    say("slow")
    while not is_there("go"):
        time.sleep(0.01)
"""
    launcher = start(["-n", "5", "--restarts", "9", "--replace"], work(tmp_path, before))
    pids = in_generation(tmp_path, 1, 0, 1, 2, 3, 4)
    kill(pids[2])
    kill(pids[3])
    pids_in(tmp_path / "slow")
    kill(pids[1])
    (tmp_path / "go").touch()
    wait_until(lambda: len(list(tmp_path.glob("slot1-in*"))) > 1, 40.0)
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert [line.split(" of ")[1][:1] for line in lines(ended)] == ["5"] * 5
    assert not any(map(lives, pids[1:4]))


def test_a_newcomer_that_dies_at_once(tmp_path: Path) -> None:
    """It is tried as often as there are restarts; then the others go on without it."""
    options = ["-n", "3", "--restarts", "2", "--replace", "--events", str(tmp_path / "events")]
    ended_at_once = "if NUMBER > 1: sys.exit(5)\n"
    launcher = start(options, work(tmp_path, ended_at_once, wait_s=4.0))
    kill(in_generation(tmp_path, 1, 0, 1, 2)[1])
    in_generation(tmp_path, 2, 0, 2)
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert len(lines(ended)) == 2
    assert "rank 1 not started again: no restart is left" in ended.err
    names = [each["event"] for each in told(tmp_path / "events")]
    assert names == [
        *("started", "ready", "peer_lost"),
        *("restarting", "started", "peer_lost") * 2,
        *("ready", "finished"),
    ]


def test_a_newcomer_that_cannot_be_one(tmp_path: Path) -> None:
    """A configuration error is not tried again, though restarts are left."""
    refuses = "if NUMBER > 1: sys.exit(78)\n"
    options = ["-n", "3", "--restarts", "9", "--replace"]
    launcher = start(options, work(tmp_path, refuses, wait_s=3.0))
    kill(in_generation(tmp_path, 1, 0, 1, 2)[1])
    in_generation(tmp_path, 2, 0, 2)
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert ended.err.count("again (restart") == 1


def test_survivors_that_end_instead(tmp_path: Path) -> None:
    """Where nobody forms the group again, all are started again, as without --replace."""
    code = """
group = standfast.init()
if NUMBER == 1 and SLOT == 1:
    die()
group.barrier()
print("generation", group.generation)
"""
    ended = run(["-n", "3", "--restarts", "1", "--replace"], program(code, tmp_path))
    assert ended.status == 0, ended.err
    assert lines(ended) == ["generation 2"] * 3


def test_survivors_that_end_after_all(tmp_path: Path) -> None:
    """They form the group again, and fail: the newcomer is not left behind, and all start again."""
    code = """
if NUMBER == 2:
    say("newcomer")
    time.sleep(60)  # it never asks to be taken in
group = standfast.init()
try:
    if NUMBER == 1 and SLOT == 1:
        die()
    group.barrier()
    print("generation", group.generation)
except standfast.PeerError:
    group.reform(wait_s=1.0, min_size=3)
"""
    options = ["-n", "3", "--restarts", "2", "--replace", "--grace-s", "0.3"]
    ended = run(options, program(code, tmp_path))
    assert ended.status == 0, ended.err
    assert lines(ended) == ["generation 3"] * 3
    assert not lives(int((tmp_path / "newcomer").read_text()))


def test_the_launcher_is_killed_meanwhile(tmp_path: Path) -> None:
    """Newcomers, too, end with their launcher."""
    waits = 'if NUMBER > 1:\n    say("newcomer")\n    time.sleep(60)\n'
    launcher = start(["-n", "3", "--restarts", "3", "--replace"], work(tmp_path, waits))
    pids = in_generation(tmp_path, 1, 0, 1, 2)
    kill(pids[1])
    pids += pids_in(tmp_path / "newcomer")
    kill(launcher.pid)
    wait_until(lambda: not any(map(lives, pids)), 5.0)
    finish(launcher)
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()), 5.0)


def test_a_frozen_rank_is_ended_and_replaced(tmp_path: Path) -> None:
    """The others go on without it; it is killed, and a newcomer comes in its place."""
    quick = {"HEARTBEAT_S": "0.1", "HINT_S": "1", "SILENCE_S": "3"}
    env = {f"STANDFAST_{name}": text for name, text in quick.items()}
    launcher = start(["-n", "3", "--restarts", "3", "--replace"], work(tmp_path), env=env)
    pids = in_generation(tmp_path, 1, 0, 1, 2)
    os.kill(pids[1], signal.SIGSTOP)
    wait_until(lambda: len(list(tmp_path.glob("slot1-in*"))) > 1, 40.0)
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert "the others go on without rank 1, which still runs: SIGKILL" in ended.err
    assert not lives(pids[1])
    assert [line.split(" of ")[1][:1] for line in lines(ended)] == ["3"] * 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--replace"], "--replace needs --restarts N"),
        (["--replace", "--restarts", "1", "--watch"], "under --watch none do"),
    ],
)
def test_what_it_does_not_go_with(options: list[str], text: str) -> None:
    """Said before anything starts."""
    ended = run(["-n", "2", *options], ["true"])
    assert ended.status == 2
    assert text in ended.err
