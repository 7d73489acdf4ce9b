"""`standfast run` over two hosts with networks of their own, and all that can break in one job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.launch.sshd import Farm, skip_without_sshd
from tests.launch.support import LAUNCHER, kill, launcher_environment, lives
from tests.network.conftest import skip_or_fail
from tests.network.faults import Faults
from tests.network.hosts import CONTROL, Hosts, address_of
from tests.network.namespaces import CommandFailed

DIGITS = Path(__file__).parents[2] / "examples/digits.py"
NAMES = ("host-a", "host-b")
FAULT_S = 30.0
"""From a fault to the next group, on a busy machine; a lost host's 5 s of fencing included."""
END_S = 90.0
"""From the last group to the end of the training."""


@pytest.fixture(scope="module")
def two() -> Iterator[Faults]:
    """Two hosts, and what breaks them."""
    skip_without_sshd()
    try:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise PermissionError(f"this is {sys.platform}, user {os.geteuid()}")
        hosts = Hosts(2)
    except (OSError, CommandFailed) as error:
        skip_or_fail(error)
    with hosts:
        yield Faults(hosts)


@pytest.fixture(scope="module")
def farm(two: Faults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """An sshd on each of them."""
    farm = Farm(tmp_path_factory.mktemp("farm"))
    for number, name in enumerate(NAMES):
        farm.add(name, address_of(number, CONTROL), enter_of(two, number))
    farm.wait_up(enter_of(two, 0))
    yield farm
    farm.close()


def enter_of(two: Faults, host: int) -> list[str]:
    """Return what runs a command on a host."""
    return ["nsenter", f"--net={two.hosts.members[host].path}"]


class Job:
    """A launcher on host 0, and its events."""

    def __init__(self, two: Faults, farm: Farm, place: Path, *words: str) -> None:
        self.events_path = place / "events"
        self.events_path.touch()
        self.seen = 0
        options = ["--ssh", farm.ssh, "--hosts", "host-a:2,host-b:2", "--restarts", "9"]
        options += ["--wait-refill-s", "60", "--events", str(self.events_path)]
        limits = {
            "STANDFAST_HEARTBEAT_S": "0.3",
            "STANDFAST_SILENCE_S": "2",
            "OMP_NUM_THREADS": "1",
        }
        with (place / "stderr").open("wb") as stderr:
            self.process = self._start(two, options, words, limits, stderr)

    @staticmethod
    def _start(
        two: Faults,
        options: list[str],
        words: tuple[str, ...],
        limits: dict[str, str],
        stderr: BinaryIO,
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *enter_of(two, 0),
                *LAUNCHER,
                "run",
                *options,
                "--env",
                "OMP_NUM_THREADS",
                "--",
                *words,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=launcher_environment(limits),
        )

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far."""
        return [json.loads(line) for line in self.events_path.read_text().splitlines()]

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the next event of this kind."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            events = self.events()
            new = [i for i, each in enumerate(events) if i >= self.seen and each["event"] == event]
            if new:
                self.seen = new[0] + 1
                found.append(events[new[0]])
            return bool(new)

        wait_for(is_there, self)
        return found[0]

    def pids(self) -> list[int]:
        """Return the processes of the current generation, by rank."""
        started = [each for each in self.events() if each["event"] == "started"][-1]
        return [rank["pid"] for rank in started["ranks"]]


def wait_for(happened: Callable[[], bool], job: Job) -> None:
    """Wait, while the job runs."""
    end_s = time.monotonic() + FAULT_S
    while not happened():
        assert time.monotonic() < end_s, f"it did not happen in time: {job.events()}"
        assert job.process.poll() is None or happened(), f"the job is over: {job.events()}"
        time.sleep(0.02)


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


TOLD = [
    (r"rank 3 on host-b was ended by SIGKILL", {3}),
    (r"rank [23] was lost with host host-b", {2, 3}),
    (r"rank 0 on host-a was ended by SIGKILL", {0}),
    (r"rank 2 on host-b .*(stalled|frozen|stopped|hung|did not)", {2}),
    (r"rank [23] was lost with host host-b", {2, 3}),
]
"""For each of the five faults: what is told of its cause, and who may be named."""


def check_story(events: list[dict[str, Any]]) -> None:
    """Assert that the events tell of five faults and a good end, one after another."""
    assert [each["event"] for each in events if each["event"] != "peer_lost"] == [
        *(["started", "ready", "group_failed", "restarting"] * len(TOLD)),
        *("started", "ready", "finished"),
    ]
    assert [each["time"] for each in events] == sorted(each["time"] for each in events)
    assert {each["job_id"] for each in events} == {events[0]["job_id"]}
    generations = [each["generation"] for each in events]
    assert generations == sorted(generations)
    assert set(generations) == set(range(1, len(TOLD) + 2))
    failed = [each for each in events if each["event"] == "group_failed"]
    for number, (event, (words, ranks)) in enumerate(zip(failed, TOLD, strict=True), start=1):
        assert event["generation"] == number
        assert re.search(words, event["reason"]), event
        assert event["rank"] in ranks, event
        lost = [each for each in events[: events.index(event)] if each["event"] == "peer_lost"]
        assert any(
            each["generation"] == number and each["rank"] == event["rank"] for each in lost
        ), f"nobody was told of rank {event['rank']} before it was over: {lost}"
    assert (events[-1]["status"], events[-1]["generation"]) == (0, len(TOLD) + 1)


@pytest.mark.timeout(2 * len(TOLD) * FAULT_S + END_S)  # the limits within say more of what was late
def test_a_job_that_survives_everything(two: Faults, farm: Farm, tmp_path: Path) -> None:
    """A rank is killed, an agent, rank 0; a rank freezes; the network is cut: training ends well.

    Each time the group is formed again when nothing of the one before is left. The events tell
    it in its order: who was lost, how, what came of it. The accuracy is that of a quiet run.
    """
    words = [sys.executable, str(DIGITS), "--epochs", "10", "--slow-ms", "30"]
    job = Job(two, farm, tmp_path, *words, "--checkpoint", str(tmp_path / "digits.npz"))
    faults: list[Callable[[list[int]], Any]] = [
        lambda pids: kill(pids[3]),
        lambda pids: kill(parent_of(pids[2])),
        lambda pids: kill(pids[0]),
        lambda pids: os.kill(pids[2], signal.SIGSTOP),
        lambda pids: two.cut(1),
    ]
    try:
        for number, fault in enumerate(faults, start=1):
            assert job.wait_for("ready")["generation"] == number
            pids = job.pids()
            fault(pids)
            job.wait_for("restarting")
            two.heal()
            job.wait_for("started")
            assert not any(map(lives, pids)), "the next generation began beside the old one"
        out, _ = job.process.communicate(timeout=END_S)
    finally:
        job.process.kill()
        job.process.communicate()
        two.restore()
    assert job.process.returncode == 0, (tmp_path / "stderr").read_text()[-4000:]
    (score,) = re.findall(rb"final test accuracy ([0-9.]+) after 10 epochs", out)
    assert float(score) > 0.9
    check_story(job.events())
