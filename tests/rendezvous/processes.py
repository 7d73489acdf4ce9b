"""Processes that call rendezvous.form(), die or wait at a chosen stage, and tell what came of it.

One helper process forks them, since forking is 20 times faster than starting Python; it is single-
threaded, so that is safe. `Ranks` is what tests use.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LENGTH = struct.Struct("<I")
SHM = Path("/dev/shm")
KILL_GRACE_S = 10.0


@dataclasses.dataclass
class Task:
    """What one rank does; see Ranks.start."""

    rank: int
    size: int
    coordinator: str | None
    prefix: str
    generation: int = 1
    job_id: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    wires: bool = True
    die_at: str = ""
    hold_at: tuple[str, ...] = ()
    raise_at: str = ""
    host: str | None = None
    version: str | None = None
    protocol: int | None = None
    broken: tuple[str, ...] = ()
    talk: bool = False
    listener: str = ""
    interrupted_at_end: bool = False
    native: bool = False
    lookups: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outcome:
    """What came of it.

    beacon: the inode of the beacons' memory. leaked: descriptors, segments and threads that were
    left behind.
    """

    rank: int
    error: BaseException | None = None
    traceback: str = ""
    peers: tuple[Any, ...] = ()
    control: tuple[int, ...] = ()
    wires: dict[int, str] = dataclasses.field(default_factory=dict)
    links: dict[int, str] = dataclasses.field(default_factory=dict)
    ranks_here: int = 0
    beacon: int | None = None
    faults: list[str] = dataclasses.field(default_factory=list)
    leaked: list[str] = dataclasses.field(default_factory=list)
    ended: float = 0.0
    seconds: float = 0.0


class Rank:
    """A rank's process, seen from the test."""

    def __init__(self, rank: int, sock: socket.socket, deadline: float) -> None:
        self.rank = rank
        self.deadline = deadline
        self.seen: list[str] = []
        self.found: Outcome | None = None
        self.dead = False
        self._sock = sock
        self.pid = int(self._next())

    def reached(self, stage: str) -> None:
        """Wait until the rank has come to a stage."""
        while stage not in self.seen:
            assert self._step(), f"rank {self.rank} ended before stage {stage!r}: {self.found}"

    def has_reached(self, stage: str, *, within_s: float) -> bool:
        """Tell whether the rank comes to a stage in that time."""
        deadline, self.deadline = self.deadline, time.monotonic() + within_s
        try:
            self.reached(stage)
        except AssertionError:
            return False
        finally:
            self.deadline = deadline
        return True

    def died(self) -> None:
        """Wait until the process is gone."""
        while self._step():
            pass
        assert self.dead, f"rank {self.rank} did not die: {self.found}"

    def outcome(self) -> Outcome:
        """Wait for what came of it."""
        while self.found is None:
            assert self._step(), f"rank {self.rank} died at {self.seen[-1:]}"
        return self.found

    def go_on(self) -> None:
        """Release a rank that waits at a stage."""
        self._sock.sendall(b".")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """End the process, if it is still there."""
        if not self.dead:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._sock.close()

    def _step(self) -> bool:
        if self.dead or self.found is not None:
            return False
        message = self._next()
        if message is None:
            self.dead = True
            return False
        if isinstance(message, Outcome):
            self.found = message
        else:
            self.seen.append(message)
        return True

    def _next(self) -> Any:
        self._sock.settimeout(max(0.01, self.deadline - time.monotonic()))
        try:
            return receive(self._sock)
        except TimeoutError:
            raise AssertionError(f"rank {self.rank} said nothing more after {self.seen}") from None


class Ranks:
    """Starts ranks, and ends them with the test."""

    def __init__(self, server: Server, timeout_s: float = 60.0) -> None:
        self.address = free_address()
        self.deadline = time.monotonic() + timeout_s
        self.ranks: list[Rank] = []
        self.prefix = f"sft-{os.getpid()}-{time.monotonic_ns()}"
        self._server = server

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for rank in self.ranks:
            rank.close()
        left = self.segments()
        for path in left:
            path.unlink(missing_ok=True)
        assert error is not None or not left, f"segments left behind: {left}"

    def segments(self) -> list[Path]:
        """Return the segments of this test that have a name."""
        return list(SHM.glob(f"{self.prefix}*"))

    def start(
        self, rank: int, size: int, *, fds: tuple[socket.socket, ...] = (), **options: Any
    ) -> Rank:
        """Start a rank; options are the fields of Task and, below `settings`, those of Settings."""
        known = {field.name for field in dataclasses.fields(Task)}
        settings = {k: v for k, v in options.items() if k not in known}
        fields = {k: v for k, v in options.items() if k in known}
        fields.setdefault("coordinator", self.address)
        settings = {"init_timeout_s": 30.0, **settings}
        task = Task(rank, size, prefix=self.prefix, settings=settings, **fields)
        started = Rank(rank, self._server.fork(task, fds), self.deadline)
        self.ranks.append(started)
        return started

    def start_all(self, size: int, **options: Any) -> list[Rank]:
        """Start all ranks of a group."""
        return [self.start(rank, size, **options) for rank in range(size)]


class Server:
    """The process that forks ranks."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
            )

    def fork(self, task: Task, fds: tuple[socket.socket, ...]) -> socket.socket:
        """Fork a rank; return the socket over which it reports."""
        ours, theirs = socket.socketpair()
        with theirs:
            payload = pickle.dumps(task)
            numbers = [theirs.fileno(), *(sock.fileno() for sock in fds)]
            socket.send_fds(self._sock, [LENGTH.pack(len(payload))], numbers)
            self._sock.sendall(payload)
        return ours

    def close(self) -> None:
        """End the helper and with it nothing else: ranks belong to their tests."""
        self._sock.close()
        self._process.wait(KILL_GRACE_S)


def assert_formed(team: list[Rank]) -> list[Outcome]:
    """All ranks of a group formed it, and have what the native core needs."""
    outcomes = [rank.outcome() for rank in team]
    size = len(team)
    for outcome in outcomes:
        assert outcome.error is None, outcome.traceback
        assert outcome.faults == []
        assert [peer.rank for peer in outcome.peers] == list(range(size))
        others = [rank for rank in range(size) if rank != outcome.rank]
        assert list(outcome.wires) == others
        assert list(outcome.control) == (others if outcome.rank == 0 else [0])
    pids = [[peer.pid for peer in outcome.peers] for outcome in outcomes]
    assert pids == [[rank.pid for rank in team]] * size
    return outcomes


def free_address(host: str = "127.0.0.1") -> str:
    """Return an address that nobody listens on, below the ports that the system gives out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(1000):
        port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            try:
                sock.bind((host, port))
            except OSError:
                continue
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise AssertionError("no port is free")


def send(sock: socket.socket, message: Any) -> None:
    payload = pickle.dumps(message)
    sock.sendall(LENGTH.pack(len(payload)) + payload)


def receive(sock: socket.socket) -> Any:
    """Return the next message, None if the other side is gone."""
    try:
        (length,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
        return pickle.loads(_exactly(sock, length))
    except (EOFError, ConnectionError):
        return None


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# --- in the rank's process ------------------------------------------------------------------------


class Stages:
    """Tells the test of each stage, and dies, waits or raises at the chosen one."""

    def __init__(self, sock: socket.socket, task: Task) -> None:
        self._sock = sock
        self._task = task

    def __call__(self, stage: str) -> None:
        send(self._sock, stage)
        if stage == self._task.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if stage in self._task.hold_at:
            self._sock.recv(1)
        if stage == self._task.raise_at:
            raise OSError(28, "No space left on device")


class FakeSegments:
    """Stands in for the native core's shared memory: as _core.pyi says, and broken on demand."""

    def __init__(self, prefix: str, broken: tuple[str, ...], stage: Stages) -> None:
        self._prefix = prefix
        self._broken = broken
        self._stage = stage

    def shm_create(self, *, ranks_here: int) -> tuple[str, int]:
        assert ranks_here >= 2
        if "create" in self._broken:
            raise OSError(28, "No space left on device")
        name = f"{self._prefix}-{os.getpid()}-{os.urandom(6).hex()}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        fd = os.open(SHM / name, flags, 0o600)
        os.ftruncate(fd, 4096)
        self._stage("created")
        return name, fd

    def shm_attach(self, name: str, /) -> int:
        if "attach" in self._broken:
            raise PermissionError(13, "Permission denied")
        fd = os.open(SHM / name, os.O_RDWR | os.O_CLOEXEC)
        self._stage("attached")
        return fd

    def shm_unlink(self, name: str, /) -> None:
        (SHM / name).unlink(missing_ok=True)

    def shm_sweep(self) -> list[str]:
        gone = []
        for path in SHM.glob(f"{self._prefix}-*"):
            pid = int(path.name.split("-")[-2])
            if not Path(f"/proc/{pid}").exists():
                path.unlink(missing_ok=True)
                gone.append(path.name)
        return gone

    def beacon_open(self, *, maker: int, key: str, size: int) -> tuple[str, int]:
        if "beacon" in self._broken:
            raise OSError(28, "No space left on device")
        name = f"{self._prefix}-{maker}-{key}"
        fd = os.open(SHM / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, 64 * size)
        self._stage("beacon")
        return name, fd


def before(owner: Any, name: str, call: Callable[..., None]) -> None:
    """Make `call(self, *args)` before a method."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **more: Any) -> Any:
        call(*args)
        return original(*args, **more)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, call: Callable[..., None]) -> None:
    """Make `call(self, *args)` after a method."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        call(*args)
        return result

    setattr(owner, name, wrapped)


def watch_stages(stage: Stages) -> None:
    """Have the package tell of its stages. It has no hooks for that; its methods are wrapped."""
    from standfast.rendezvous import coordinator, member, protocol
    from standfast.rendezvous.call import Call

    def told(self: Any, message: Any) -> None:
        if isinstance(message, protocol.Ready):
            stage("ready")

    goes = 0

    def framed(message: Any) -> None:
        nonlocal goes
        if isinstance(message, protocol.Go):
            goes += 1
            stage(f"go {goes}")

    def telling(self: Any, message: Any) -> None:
        if isinstance(message, protocol.Ready):
            stage("complete")

    before(Call, "_challenged", lambda *args: stage("challenged"))
    after(member.Member, "_joined", lambda *args: stage("joined"))
    before(member.Member, "_wire_up", lambda *args: stage("table"))
    before(member.Member, "_tell", telling)
    after(member.Member, "_tell", told)
    before(coordinator.Coordinator, "run", lambda *args: stage("listening"))
    before(coordinator.Coordinator, "_join", lambda self, ch, rank, *more: stage(f"{rank} comes"))
    before(coordinator.Coordinator, "_hand_out_table", lambda *args: stage("all came"))
    after(coordinator.Coordinator, "_hand_out_table", lambda *args: stage("table"))
    before(coordinator, "frame", framed)


def disguise(task: Task) -> None:
    """Make this process look like one on another host, or of another version."""
    from standfast.rendezvous import channel, coordinator, hello, member, protocol

    changes: list[tuple[Any, str, Any]] = []
    if task.host is not None:
        host = task.host
        changes += [(hello, "host_name", lambda: host), (hello, "host_id", lambda: f"id-{host}")]
    if task.version is not None:
        version = task.version
        changes.append((hello, "package_version", lambda: version))
    if task.protocol is not None:
        opening = protocol.MAGIC + bytes([task.protocol])
        changes.append((channel, "OPENING", opening))
    if task.interrupted_at_end:
        for party in (coordinator.Coordinator, member.Member):
            after(party, "_formation", lambda *args: signal.raise_signal(signal.SIGINT))
    if task.lookups:
        original, names = socket.getaddrinfo, task.lookups

        def look_up(host: Any, *args: Any, **more: Any) -> Any:
            return original(names.get(host, host), *args, **more)

        changes.append((socket, "getaddrinfo", look_up))
    for owner, name, value in changes:
        setattr(owner, name, value)


def open_things(prefix: str) -> set[str]:
    """Return this process's open descriptors, its threads and the named segments of the test."""
    things = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            things.add(f"fd {fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    things |= {f"thread {thread.name}" for thread in threading.enumerate()}
    return things


def check_descriptors(fds: Mapping[str, int]) -> Iterator[str]:
    """Complain about descriptors that are not as the native core needs them."""
    for what, fd in fds.items():
        if os.get_blocking(fd):
            yield f"{what} blocks"
        if os.get_inheritable(fd):
            yield f"{what} is inherited"
        sock = socket.socket(fileno=fd)
        if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY):
            yield f"{what} has no TCP_NODELAY"
        sock.detach()


def talk(rank: int, fds: Mapping[str, int]) -> Iterator[str]:
    """Send a word over each connection at once, and complain if another one comes than was sent."""
    socks = {what: socket.socket(fileno=fd) for what, fd in fds.items()}
    for sock in socks.values():
        sock.sendall(f"from {rank:04}".encode())
    for what, sock in socks.items():
        sock.settimeout(20)
        got = _exactly(sock, 9).decode()
        peer = int(what.split()[-1])
        if got != f"from {peer:04}":
            yield f"{what} brought {got!r}"
        sock.setblocking(False)
        sock.detach()


def run(task: Task, sock: socket.socket, fds: list[int]) -> None:
    """Be a rank, report, and wait for the test's end."""
    from standfast.identity import Identity
    from standfast.rendezvous import form
    from standfast.settings import Settings

    send(sock, os.getpid())
    stage = Stages(sock, task)
    watch_stages(stage)
    disguise(task)
    identity = Identity(
        task.rank,
        task.size,
        coordinator=task.coordinator,
        generation=task.generation,
        job_id=task.job_id,
    )
    options: dict[str, Any] = dict(task.settings)
    listener = None
    if task.listener == "object":
        listener = socket.socket(fileno=fds[0])
    elif task.listener == "fd":
        options["listen_fd"] = fds[0]
    segments = None if task.native else FakeSegments(task.prefix, task.broken, stage)
    outcome = Outcome(task.rank)
    was_open = open_things(task.prefix)
    started = time.monotonic()
    formation = None
    try:
        formation = form(
            identity,
            Settings(**options),
            name=task.name,
            wires=task.wires,
            listener=listener,
            segments=segments,
        )
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test judges it
        outcome.error, outcome.traceback = error, traceback.format_exc()
        error.__traceback__ = error.__context__ = error.__cause__ = None
    outcome.ended = time.monotonic()
    outcome.seconds = outcome.ended - started
    if formation is None:
        outcome.leaked = sorted(open_things(task.prefix) - was_open)
    else:
        outcome.peers = formation.peers
        outcome.control = tuple(peer for peer, _ in formation.control)
        outcome.wires = {wire.rank: wire.fabric for wire in formation.wires}
        outcome.links = {wire.rank: wire.link for wire in formation.wires}
        outcome.ranks_here = formation.ranks_here
        if formation.beacon_fd >= 0:
            outcome.beacon = os.fstat(formation.beacon_fd).st_ino
            if os.get_inheritable(formation.beacon_fd):
                outcome.faults.append("the beacons' memory is inherited")
        used = {f"control {peer}": fd for peer, fd in formation.control}
        used |= {f"wire {wire.rank}": wire.fd for wire in formation.wires}
        outcome.faults = list(check_descriptors(used))
        for wire in formation.wires:
            if wire.first != (task.rank < wire.rank) or (wire.shm_fd >= 0) != (
                wire.fabric == "shm"
            ):
                outcome.faults.append(f"{wire}")
        if task.talk:
            outcome.faults += talk(task.rank, used)
    send(sock, outcome)
    while sock.recv(1):
        pass


def serve(sock: socket.socket) -> None:
    """Fork a rank for each task, until the tests are over."""
    import standfast.rendezvous.form  # noqa: F401 - loaded once here instead of in each rank
    from standfast.rendezvous.hello import package_version
    from standfast.rendezvous.host import host_id

    package_version()
    host_id()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        header, fds, _, _ = socket.recv_fds(sock, LENGTH.size, 8)
        if not header:
            return
        header += _exactly(sock, LENGTH.size - len(header))
        task = pickle.loads(_exactly(sock, LENGTH.unpack(header)[0]))
        if os.fork() == 0:
            sock.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                run(task, socket.socket(fileno=fds[0]), list(array.array("i", fds[1:])))
            except BaseException:  # noqa: BLE001 - the edge of the process
                traceback.print_exc()
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    # Classes must have the same name here as in the tests, to be pickled.
    from tests.rendezvous import processes

    processes.serve(socket.socket(fileno=int(sys.argv[1])))
