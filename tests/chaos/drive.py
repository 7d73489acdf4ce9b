"""One job of the storm: starts it, strikes when the moments come, and judges what there is then."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from standfast.launch.listing import living_jobs
from standfast.launch.workspace import owner_of
from tests.chaos import world
from tests.chaos.plan import Blow, Job, Kind, Moment, Victim, allowed_statuses, chosen, may_stay
from tests.launch.support import LAUNCHER, launcher_environment

HERE = Path(__file__).parent
MOMENT_S = 60.0
"""No moment may take longer to come, on a busy machine: forming again after a host's fencing."""
END_S = 90.0
SPARED_S = 3.0
"""Whatever has ended nothing by then (an agent without ranks) will not."""
GONE_S = 1.0
"""A launcher that ended by itself leaves nothing; the kernel may take its time to show it."""
GONE_KILLED_S = 5.0
"""What is promised where the launcher was killed."""
STATES = frozenset({"starting", "started", "ready", "failed", "restarting", "finished"})
OPTIONS = {
    Kind.LOCAL: ["-n", "3"],
    Kind.HOSTS: ["--ssh", str(HERE / "here.sh"), "--hosts", "a:2,b:1,c:1", "--spares", "1"],
    Kind.REFORMING: ["-n", "5"],
}
PATIENT = ["--wait-refill-s", "45"]
ALWAYS = ["--restarts", "40", "--grace-s", "4", "--kill-after-s", "1"]
LIMITS = {
    "STANDFAST_HEARTBEAT_S": "0.3",
    "STANDFAST_SILENCE_S": "2",
    "STANDFAST_INIT_TIMEOUT_S": "20",
    "OMP_NUM_THREADS": "1",
}
RESULT = re.compile(rb"result (\d+) (\d+) (\d+) (\d+) (-?\d+)")


@dataclass
class Outcome:
    """What became of a job."""

    job: Job
    status: int = 0
    seconds: float = 0.0
    ended_s: float = 0.0
    """From the last blow to the launcher's end."""
    struck: list[tuple[Moment, Victim, signal.Signals]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    story: str = ""
    """Events and output, for whoever reads a complaint."""


class Run:
    """A job while it runs."""

    def __init__(self, job: Job, place: Path) -> None:
        self.outcome = Outcome(job)
        self._job = job
        self._place = place
        self._tmp = place / "tmp"
        self._tmp.mkdir(parents=True)
        self._events = place / "events"
        self._frozen: list[tuple[float, int]] = []
        self._unguarded: dict[Path, int] = {}
        """Directories whose guardian was killed and not seen replaced since, and that guardian."""
        self._seen = 0
        self._fatal = False
        """Whether the last blow that had to end something hit the launcher."""
        self._mild = True
        """Whether the last blow need not end anything."""
        self._began_s = self._struck_s = time.monotonic()
        patient = PATIENT if job.kind is Kind.HOSTS else []
        program = [sys.executable, str(HERE / "work.py"), str(place)]
        program += ["reforming"] if job.kind is Kind.REFORMING else []
        options = [*OPTIONS[job.kind], *patient, *ALWAYS, "--events", str(self._events)]
        with (place / "out").open("wb") as out, (place / "err").open("wb") as err:
            self._launcher = subprocess.Popen(
                [*LAUNCHER, "run", *options, "--", *program],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=launcher_environment({**LIMITS, "TMPDIR": str(self._tmp)}),
            )
        world.KEPT.add(self._launcher.pid)

    def through(self) -> Outcome:
        """Strike, let it end, judge."""
        try:
            for blow in self._job.blows:
                if blow.moment is Moment.END:
                    (self._place / "enough").touch()
                if not self._await(partial(self._has_come, blow.moment), MOMENT_S):
                    self._complain(f"{blow.moment} did not come within {MOMENT_S:g} s")
                    break
                self._let_pass(blow.delay_s)
                self._strike(blow)
                self._look_at_record()
            (self._place / "enough").touch()
            if not self._await(lambda: False, END_S):
                self._complain(f"the launcher did not end within {END_S:g} s of the last blow")
        finally:
            self._end()
        self._judge()
        return self.outcome

    # --- moments

    def _has_come(self, moment: Moment) -> bool:
        if self._fatal:
            return True
        told = [each["event"] for each in self._events_now()]
        new = set(told[self._seen :])
        if moment is Moment.END:
            return any(self._place.glob("done-*"))
        ready = [each for each in told if each != "peer_lost"][-1:] == ["ready"]
        spared = self._mild or time.monotonic() - self._struck_s > SPARED_S
        if moment is Moment.RUN:
            return ready and (spared or "ready" in new)
        if self._mild or (ready and spared):
            return True
        if moment is Moment.START:
            return not new.isdisjoint({"started", "ready"})
        return bool(new)

    def _events_now(self) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        lines = self._events.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _await(self, happened: Callable[[], bool], limit_s: float) -> bool:
        """Wait for something, or the launcher's end; False after the limit."""
        end_s = time.monotonic() + limit_s
        while not happened() and self._launcher.poll() is None:
            if time.monotonic() > end_s:
                return False
            self._let_pass(0.005)
        return True

    def _let_pass(self, seconds: float) -> None:
        """Sleep, and let those who were stopped go on at their time."""
        until_s = time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            for due in [each for each in self._frozen if each[0] <= now_s]:
                self._frozen.remove(due)
                send(due[1], signal.SIGCONT)
                os.close(due[1])
            if now_s >= until_s:
                return
            time.sleep(min(0.01, until_s - now_s))

    # --- blows

    def _strike(self, blow: Blow) -> None:
        living = world.living(self._launcher.pid)
        if self._launcher.poll() is not None:
            del living[Victim.LAUNCHER]
        guarded = {pid: world.guarded_by(pid) for pid in living.get(Victim.GUARDIAN, [])}
        for pid, directory in guarded.items():
            if self._unguarded.get(directory, pid) != pid:
                del self._unguarded[directory]
        choice = chosen(blow, living)
        if choice is None:
            return
        victim, pid = choice
        told = len(self._events_now())
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            if not send(descriptor, blow.signal):
                os.close(descriptor)
                return
            if blow.signal is signal.SIGSTOP:
                self._frozen.append((time.monotonic() + blow.frozen_s, descriptor))
            else:
                os.close(descriptor)
            self.outcome.struck.append((blow.moment, victim, blow.signal))
            self._struck_s = time.monotonic()
            if victim is Victim.GUARDIAN and blow.signal is signal.SIGKILL:
                self._unguarded[guarded[pid]] = pid
            harmless = victim in (Victim.GUARDIAN, Victim.SENTINEL)
            self._mild = harmless or blow.signal is signal.SIGSTOP
            self._fatal = self._fatal or (victim is Victim.LAUNCHER and not self._mild)
            self._seen = told

    def _look_at_record(self) -> None:
        """What `standfast status` shows meanwhile is one job, in a state that there is."""
        records = living_jobs({"TMPDIR": str(self._tmp)})
        if len(records) > 1:
            self._complain(f"one job, but {len(records)} records")
        for record in records:
            if record["state"] not in STATES or record["pid"] != self._launcher.pid:
                self._complain(f"a confused record: {record}")

    def _end(self) -> None:
        """Nobody stays stopped, and the launcher does not stay at all."""
        for _, descriptor in self._frozen:
            send(descriptor, signal.SIGCONT)
            os.close(descriptor)
        self._frozen.clear()
        if self._launcher.poll() is None:
            self._launcher.kill()
        self.outcome.status = self._launcher.wait()
        world.KEPT.discard(self._launcher.pid)
        now_s = time.monotonic()
        self.outcome.seconds = now_s - self._began_s
        self.outcome.ended_s = now_s - self._struck_s

    # --- judgement

    def _judge(self) -> None:
        hit = {(victim, number) for _, victim, number in self.outcome.struck}
        killed = self.outcome.status == -signal.SIGKILL
        left = world.traces_after(GONE_KILLED_S if killed else GONE_S, self._tmp)
        only_files = all(each.startswith(world.FILE) for each in left)
        if left and only_files and all(self._may_stay(each, hit) for each in self._tmp.iterdir()):
            # Nobody is left to remove a directory: it stays until somebody looks.
            living_jobs({"TMPDIR": str(self._tmp)})
            left = world.traces(self._tmp)
        for trace in left:
            self._complain(f"left behind: {trace}")
        if records := living_jobs({"TMPDIR": str(self._tmp)}):
            self._complain(f"status tells of a job that is over: {records}")
        if self.outcome.status not in allowed_statuses(hit):
            self._complain(f"status {self.outcome.status}, allowed: {allowed_statuses(hit)}")
        if (self._place / "two-at-once").exists():
            self._complain("two processes were the same rank at the same time")
        self._judge_results()
        events = [each["event"] for each in self._events_now()]
        if self.outcome.status >= 0 and events[-1:] != ["finished"]:
            self._complain(f"the last event is no end: {events}")
        if self.outcome.complaints:
            self.outcome.story = self._story()

    def _may_stay(self, directory: Path, hit: set[tuple[Victim, signal.Signals]]) -> bool:
        """Whether nobody was left who could remove this directory."""
        owner = owner_of(directory.name)
        if owner is None:
            return False
        killed = self.outcome.status < 0
        if owner != self._launcher.pid:
            # An agent's. The launcher gives one up that was stopped for too long, and kills it.
            killed = killed or any(victim is Victim.AGENT for victim, _ in hit)
        unguarded = directory in self._unguarded
        return may_stay(killed=killed, unguarded=unguarded, empty=not any(directory.iterdir()))

    def _judge_results(self) -> None:
        """Every result that was told is right, and those of a job that ended well are all there."""
        groups = collections.defaultdict[int, list[tuple[int, int, int, int]]](list)
        for words in RESULT.findall((self._place / "out").read_bytes()):
            generation, rank, size, steps, total = map(int, words)
            groups[generation].append((rank, size, steps, total))
            if total != expected(size, steps):
                self._complain(f"a wrong result: {words}")
        for generation, found in groups.items():
            ranks, told = {each[0] for each in found}, {each[1:] for each in found}
            if len(told) != 1 or len(ranks) != len(found):
                self._complain(f"ranks of generation {generation} do not agree: {found}")
        if self.outcome.status == 0:
            last = groups[max(groups)] if groups else []
            if not last or len(last) != last[0][1]:
                self._complain(f"it ended well, and results are missing: {dict(groups)}")

    def _complain(self, text: str) -> None:
        self.outcome.complaints.append(text)

    def _story(self) -> str:
        events = self._events.read_text() if self._events.exists() else ""
        said = (self._place / "err").read_text(errors="replace")[-6000:]
        struck = ", ".join(f"{when}: {who} {how.name}" for when, who, how in self.outcome.struck)
        return f"struck {struck}\n{events}{said}"


def expected(size: int, steps: int) -> int:
    """Return what the ranks must have: in each step they add step x (rank + 1)."""
    return steps * (steps + 1) // 2 * (size * (size + 1) // 2)


def send(descriptor: int, number: signal.Signals) -> bool:
    """Send a signal to a process that may be gone."""
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    return True
