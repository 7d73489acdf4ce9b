"""The agent: starts and supervises the ranks of one host for a launcher elsewhere. Own process.

Started by ssh as `python -P -m standfast.launch.agent`, or as the launcher of a node other than 0
(node.py); agents.py is its other end. It decides nothing but one thing: when the launcher is gone,
or was not heard of for LEASE_NS, its ranks die. One thread and one loop, in which nothing blocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from standfast import exits
from standfast.launch.clock import now_ns
from standfast.launch.descriptions import NO_FILES, write_descriptions
from standfast.launch.environment import Formation, Listeners, rank_environment, spare_environment
from standfast.launch.guardian import Guardian
from standfast.launch.lines import Tail
from standfast.launch.notices import NoticeBoard, write_obituary
from standfast.launch.orders import (
    FENCE_NS,
    LEASE_NS,
    MAGIC,
    WINDOW_BYTES,
    Check,
    Checked,
    Credit,
    Cut,
    Describe,
    Ended,
    Fed,
    Feed,
    Frames,
    Gone,
    Goodbye,
    Hello,
    Leaving,
    Listening,
    Notice,
    Obituary,
    Order,
    Ping,
    Pong,
    Prepare,
    Printed,
    Refused,
    Seat,
    Start,
    Started,
    Tell,
)
from standfast.launch.output import READ_BYTES, bytes_in
from standfast.launch.parts import ExitWatch, adopt_orphans, group_lives, reap_strays
from standfast.launch.pipes import Pipes
from standfast.launch.ports import free_ports, open_listener, port_of
from standfast.launch.process import Program, RankProcess, start_rank
from standfast.launch.program import cannot_exec, find_program
from standfast.launch.segments import sweep_segments
from standfast.launch.spares import SPARE_RANK, seat
from standfast.launch.spec import LaunchError
from standfast.launch.stdin import RankStdin, rank_stdin
from standfast.launch.workspace import report_directory
from standfast.version import version

POLL_S = 0.02
IDLE_S = 0.5
KILL_S = 4.0
REPORT_BYTES_MAX = 1 << 20
NOT_FOR_US = (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
"""Who presses a key at the launcher's terminal means the launcher, and that tells us."""


class UpStream:
    """The reading end of a rank's stdout or stderr, read as far as the launcher has room."""

    def __init__(self, agent: Agent, fd: int, key: int, *, stderr: bool) -> None:
        self.open: bool = True
        self._agent = agent
        self._fd = fd
        self._key = key
        self._stderr = stderr
        self._credit = WINDOW_BYTES
        self._budget: int | None = None
        self._registered = False
        os.set_blocking(fd, False)
        self._settle()

    def grant(self, count: int) -> None:
        """The launcher has passed on so much."""
        self._credit += count
        self._settle()

    def cut(self) -> None:
        """Accept only what is in the pipe already."""
        if self.open and self._budget is None:
            self._budget = bytes_in(self._fd)
            self._read()

    def close(self) -> None:
        """Give up what was not read."""
        if self.open:
            self.open = False
            self._settle()
            os.close(self._fd)

    def _read(self) -> None:
        limit = min(READ_BYTES, self._credit)
        if self._budget is not None:
            limit = min(limit, self._budget)
        try:
            data = os.read(self._fd, limit)
        except BlockingIOError:
            if self._budget is None:
                return
            data = b""
        self._credit -= len(data)
        if self._budget is not None:
            self._budget -= len(data)
        self._agent.say(Printed(self._key, self._stderr, data))
        if data:
            self._settle()
        else:
            self.close()

    def _settle(self) -> None:
        wanted = self.open and self._credit > 0
        if wanted and not self._registered:
            self._agent.selector.register(self._fd, selectors.EVENT_READ, self._read)
        elif self._registered and not wanted:
            self._agent.selector.unregister(self._fd)
        self._registered = wanted


@dataclass(frozen=True, slots=True)
class Charge:
    """What a node's own launcher was told to run, and how; node 0's has no say in it.

    Fields:
        program: what each rank runs.
        environ: what a rank's environment is made from.
        cwd: where ranks start.
        grace_s: how long ranks may take to end, once somebody told this node's launcher to.
        kill_after_s: how long its wardens leave their programs after SIGTERM.
        addresses: this node's in its connection to node 0's launcher, and that one's.
    """

    program: Program
    environ: Mapping[str, str]
    cwd: str
    grace_s: float
    kill_after_s: float
    addresses: tuple[str, str]


class Inlet:
    """Takes over the reading ends of one process's pipes."""

    def __init__(self, agent: Agent, key: int) -> None:
        self._agent = agent
        self._key = key

    def attach(self, fd: int, *, rank: int, stderr: bool, tail: Tail | None) -> UpStream:
        """Do as Output does; the launcher has the tail."""
        stream = UpStream(self._agent, fd, self._key, stderr=stderr)
        self._agent.streams[self._key, stderr] = stream
        return stream


class Agent:
    """The processes of this host, by their keys.

    over: why it serves no more, "" after a goodbye. job_status: what the goodbye said.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        read_fd: int,
        write_fd: int,
        directory: str,
        charge: Charge | None = None,
    ) -> None:
        self.over: str | None = None
        self.job_status: int = 0
        self.told: list[int] = []
        """Signals to this node's launcher, in their order."""
        self.selector = selector
        self._charge = charge
        self._leave_by_ns: int | None = None
        self._directory = directory
        self._guardian = Guardian(directory)
        self._members: dict[int, RankProcess] = {}
        self.streams: dict[tuple[int, bool], UpStream] = {}
        self._stdins: dict[int, RankStdin] = {}
        self._spares: dict[int, tuple[socket.socket, dict[str, str]]] = {}
        self._listeners: list[socket.socket] = []
        self._generation = 0
        self._files = NO_FILES
        self._checked: tuple[tuple[int, ...], int] | None = None
        self._heard_ns = now_ns()
        self._board = NoticeBoard(selector, directory, lambda line: self.say(Notice(line)))
        self._exits = ExitWatch(selector, self._ended)
        self._exits.add(self._guardian.pid)
        self._pipes = Pipes(
            selector, read_fd, write_fd, Frames(Order), self._obey, self._end_because
        )

    def say(self, message: Any) -> None:
        """Tell the launcher."""
        self._pipes.say(message)

    def run(self, ending: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        """Serve the launcher to its end, or to ours: `ending` are signals that bring it about."""
        for each in ending:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, lambda number, _: self.told.append(number))
        self._pipes.push(MAGIC)
        self.say(_hello(self._charge.addresses if self._charge else _addresses()))
        try:
            while self.over is None:
                busy = self._checked or any(not m.gone and not m.running for m in self._all())
                for key, _ in self.selector.select(POLL_S if busy else IDLE_S):
                    key.data()
                self._look()
        finally:
            self._destroy_all()
            self._farewell()

    def _all(self) -> list[RankProcess]:
        return list(self._members.values())

    def _end_because(self, reason: str) -> None:
        """Stop serving; an empty reason is a goodbye."""
        if self.over is None:
            self.over = reason

    def _look(self) -> None:
        """Notice what no event tells."""
        for key, member in self._members.items():
            if not member.gone and not member.running and member.check_gone():
                self._guardian.gone(member.pid)
                self.say(Gone(key))
        if self._checked is not None:
            self._check_groups(*self._checked)
        if now_ns() - self._heard_ns > LEASE_NS:
            self._end_because(f"nothing was heard of it for {LEASE_NS / 1e9:g} s")
        if self.told:
            self._leave()

    def _leave(self) -> None:
        """Somebody wants our end: pass it on to the ranks, and give a node's ranks their time."""
        now = now_ns()
        if self._leave_by_ns is None:
            grace_s = self._charge.grace_s if self._charge else 0.0
            self._leave_by_ns = now + int(grace_s * 1e9)
            self.say(Leaving(self.told[0]))
            for member in self._all():
                if not member.gone:
                    member.tell(signal.Signals(self.told[0]))
        in_a_hurry = len(self.told) > 1
        if in_a_hurry or now > self._leave_by_ns or all(each.gone for each in self._all()):
            self._end_because(f"{exits.signal_name(self.told[0])} to the agent")

    def _check_groups(self, groups: tuple[int, ...], until_ns: int) -> None:
        living = tuple(group for group in groups if group_lives(group))
        if not living or now_ns() > until_ns:
            self._checked = None
            self.say(Checked(living))

    # --- orders

    def _obey(self, order: Any) -> None:
        self._heard_ns = now_ns()
        match order:
            case Ping(sent_ns):
                self.say(Pong(sent_ns, now_ns()))
            case Prepare():
                self._prepare(order)
            case Describe():
                self._files = write_descriptions(self._directory, order)
            case Start():
                self._start(order)
            case Seat():
                self._seat(order)
            case Tell(key, number):
                self._tell(key, signal.Signals(number))
            case Feed(key, data):
                self._feed(key, data)
            case Credit(key, stderr, count):
                if (key, stderr) in self.streams:
                    self.streams[key, stderr].grant(count)
            case Cut(key, stderr):
                if (key, stderr) in self.streams:
                    self.streams[key, stderr].cut()
            case Check(groups):
                self._checked = (groups, now_ns() + FENCE_NS)
            case Obituary(generation, text):
                write_obituary(self._directory, generation, text)
            case Goodbye(status):
                self.job_status = status
                self._end_because("")

    def _prepare(self, order: Prepare) -> None:
        self._close_listeners()
        ring = tuple(free_ports(order.ring, order.host))
        if not order.first:
            self.say(Listening(0, 0, None, 0, ring))
            return
        self._listeners = [open_listener(order.host) for _ in range(2 if order.watch else 1)]
        watch_port = port_of(self._listeners[1]) if order.watch else None
        master_port, jaccl_port = free_ports(2, order.host)
        port = port_of(self._listeners[0])
        self.say(Listening(port, master_port, watch_port, jaccl_port, ring))

    def _start(self, order: Start) -> None:
        rank, key, is_new = order.place.rank, order.key, bool(order.formation.join)
        if order.formation.generation != self._generation and not is_new:
            self._begin(order.formation)
        listeners = None
        if rank == 0 and not is_new:
            listeners = Listeners(*(each.fileno() for each in self._listeners))
        if order.spare:
            self._start_spare(order)
            return
        try:
            program = self._program(order)
            with self._rank_stdin(order) as (stdin, taker):
                member = start_rank(
                    rank,
                    program,
                    self._environment(order, listeners),
                    output=Inlet(self, key),
                    guardian=self._guardian,
                    inherited=() if listeners is None else listeners.all(),
                    cwd=self._folder(order),
                    stdin=stdin,
                )
        except LaunchError as error:
            self.say(Refused(key, error.status, str(error)))
            return
        except OSError as error:
            refused = cannot_exec(order.path, error)
            self.say(Refused(key, refused.status, str(refused)))
            return
        finally:
            if rank == 0:
                self._close_listeners()
        self._members[key] = member
        if taker is not None:
            self._stdins[key] = taker
        self._exits.add(member.pid)
        self.say(Started(key, member.pid, member.started_ns))

    def _start_spare(self, order: Start) -> None:
        """Start a process that waits in init(); the launcher learns of it as of any other."""
        ours, its = socket.socketpair()
        with its:
            try:
                environment = spare_environment(
                    self._inherited(order), self._described(order.formation), its.fileno()
                )
                member = start_rank(
                    SPARE_RANK,
                    self._program(order),
                    environment,
                    output=Inlet(self, order.key),
                    guardian=self._guardian,
                    inherited=[its.fileno()],
                    cwd=self._folder(order),
                )
            except (LaunchError, OSError) as error:
                ours.close()
                self.say(Refused(order.key, exits.UNAVAILABLE, str(error)))
                return
        ours.setblocking(False)
        self._spares[order.key] = (ours, environment)
        self._members[order.key] = member
        self._exits.add(member.pid)
        self.say(Started(order.key, member.pid, member.started_ns))

    def _seat(self, order: Seat) -> None:
        """Give a spare its place. The launcher counts one that has just ended as the rank's end."""
        rank, is_new = order.place.rank, bool(order.formation.join)
        if order.formation.generation != self._generation and not is_new:
            self._begin(order.formation)
        if order.key not in self._spares:
            return
        line, before = self._spares.pop(order.key)
        listeners = None
        if rank == 0 and not is_new:
            listeners = Listeners(*(each.fileno() for each in self._listeners))
        environment = self._environment(order, listeners)
        self._members[order.key].rank = rank
        seat(line, before, environment, () if listeners is None else listeners.all())
        if listeners is not None:
            self._close_listeners()

    def _rank_stdin(
        self, order: Start
    ) -> contextlib.AbstractContextManager[tuple[int, RankStdin | None]]:
        return rank_stdin(
            self.selector, wanted=order.stdin, took=lambda count: self.say(Fed(order.key, count))
        )

    def _begin(self, formation: Formation) -> None:
        """Forget the generation before: the launcher has seen to it that nothing of it is left."""
        self._generation = formation.generation
        self._members = {key: self._members[key] for key in self._spares}
        self.streams = {key: each for key, each in self.streams.items() if each.open}
        self._close_stdins()
        reap_strays(keep=[self._guardian.pid, *(each.pid for each in self._all())])
        sweep_segments()

    def _environment(self, order: Start | Seat, listeners: Listeners | None) -> dict[str, str]:
        formation = self._described(order.formation)
        return rank_environment(
            self._inherited(order), formation, place=order.place, listeners=listeners
        )

    def _described(self, formation: Formation) -> Formation:
        return dataclasses.replace(
            formation,
            report_dir=self._directory,
            ring_file=self._files.ring,
            devices_file=self._files.devices,
        )

    def _inherited(self, order: Start | Seat) -> dict[str, str]:
        own = self._charge.environ if self._charge else {**os.environ, **order.environment}
        return {**order.terminal, **own}

    def _program(self, order: Start) -> Program:
        if self._charge is None:
            program = _found(order)
            kill_after_s = order.kill_after_s
        else:
            program, kill_after_s = self._charge.program, self._charge.kill_after_s
        if not order.watch:
            return program
        from standfast.launch.warding import warden_command

        command = warden_command(program.path, program.command, kill_after_s=kill_after_s)
        return Program(command[0], command)

    def _folder(self, order: Start) -> str | None:
        return self._charge.cwd if self._charge else _usable_folder(order.cwd)

    def _tell(self, key: int, number: signal.Signals) -> None:
        member = self._members.get(key)
        if member is not None and not member.gone:
            member.tell(number)

    # --- what happens here

    def _ended(self, pid: int) -> None:
        key = next(
            (key for key, each in self._members.items() if each.pid == pid and each.running), None
        )
        if key is None:
            if self._guardian.replace([each.pid for each in self._all() if not each.gone]):
                self._exits.add(self._guardian.pid)
            return
        member = self._members[key]
        member.reap()
        self._board.read()  # what it said is told before its end
        end = member.end(now_ns())
        if key in self._spares:
            self._spares.pop(key)[0].close()
        self.say(Ended(key, end.status, end.ended_ns, self._report(member.rank)))

    def _report(self, rank: int) -> bytes:
        path = os.path.join(self._directory, f"rank-{rank}-gen{self._generation}.json")
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(REPORT_BYTES_MAX)
        return b""

    def _feed(self, key: int, data: bytes) -> None:
        if key in self._stdins:
            self._stdins[key].feed(data)

    def _close_stdins(self) -> None:
        for each in self._stdins.values():
            each.close()
        self._stdins.clear()

    def _close_listeners(self) -> None:
        for each in self._listeners:
            each.close()
        self._listeners = []

    def _destroy_all(self) -> None:
        left = [each for each in self._all() if not each.gone]
        end_s = time.monotonic() + KILL_S
        while left and time.monotonic() < end_s:
            left = [each for each in left if not each.destroyed()]
            time.sleep(POLL_S if left else 0)

    def _farewell(self) -> None:
        self._exits.close()
        self._close_listeners()
        self._close_stdins()
        for line, _ in self._spares.values():
            line.close()
        for stream in self.streams.values():
            stream.close()
        self._board.close()
        sweep_segments()
        self._guardian.close()  # last: whoever ends us before leaves the rest to it
        self._pipes.close()


def _found(order: Start) -> Program:
    """Find the program on this host: at the launcher's place for it, else by its name."""
    path = order.path
    if not os.access(path, os.X_OK):
        path = find_program(order.command[0], os.environ.get("PATH", os.defpath))
    return Program(path, order.command)


def _usable_folder(cwd: str) -> str:
    """Return the launcher's working directory where there is such a one, else the user's home."""
    return cwd if os.path.isdir(cwd) else os.path.expanduser("~")


def _addresses() -> tuple[str, str]:
    """Return this host's address in its ssh connection, and the launcher's; "" without one."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return (words[2], words[0]) if len(words) == 4 else ("", "")


def _hello(addresses: tuple[str, str]) -> Hello:
    return Hello(
        version=version(),
        pid=os.getpid(),
        name=socket.gethostname(),
        boot=_boot(),
        space=_space(),
        address=addresses[0],
        launcher=addresses[1],
    )


def _boot() -> str:
    """Return what tells this run of the system from its others, if there is such a thing."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def _space() -> str:
    """Return what tells this space of process ids from others, if there can be several."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def main() -> int:
    """Be an agent on stdin and stdout; whatever else is printed here goes to stderr."""
    for each in NOT_FOR_US:
        signal.signal(each, lambda *_: None)  # a handler: ranks would inherit SIG_IGN
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    adopt_orphans()
    with selectors.DefaultSelector() as selector, report_directory(os.environ) as directory:
        agent = Agent(selector, read_fd, write_fd, directory)
        agent.run()
        return exits.OK if agent.over == "" else exits.FAILURE


if __name__ == "__main__":
    sys.exit(main())
