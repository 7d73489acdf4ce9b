"""Runs a function on n ranks, processes all: `run_ranks`, `Job` to kill some, `Pool` for many.

A function is named by the file and the name in which it was defined, so it must stand at the top
level of a module; its arguments and result are pickled. It is called as function(group, *args).
Rank 0 gets its listener from here, so no port is ever raced for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import os
import pickle
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import emulated

ROOT = Path(__file__).resolve().parent.parent
KILL_GRACE_S = 5.0


@dataclasses.dataclass
class Ended:
    """How one rank ended. status: exit status, negative for a signal, None in a pool."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    status: int | None = None
    stdout: str = ""
    stderr: str = ""
    returned: bool = False

    def __str__(self) -> str:
        parts = [f"rank {self.rank}: status {self.status}", self.traceback, self.stderr[-4000:]]
        return "\n".join(part for part in parts if part)


@dataclasses.dataclass
class Task:
    """What a rank's process has to do."""

    file: str
    name: str
    args: tuple[Any, ...]
    init: dict[str, Any] | None
    """Arguments of standfast.init(), or None: the function gets no group and forms its own."""
    forms: bool = True
    """False: the function gets the arguments in place of a group."""


def task_of(
    function: Callable[..., Any], args: tuple[Any, ...], init: dict[str, Any] | None
) -> Task:
    """Name a function such that another process finds it."""
    code = function.__code__
    name = function.__name__
    assert function.__qualname__ == name, f"{function.__qualname__} is not at the top level"
    return Task(str(Path(code.co_filename).resolve()), name, args, init)


def find(task: Task) -> Callable[..., Any]:
    """Load the function of a task, once per file."""
    path = Path(task.file)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, task.name)
    return found


def be_killed() -> None:
    """Be killed, when the others are done with what this rank was in before.

    An operation that finds the group over at its very end raises, though all its data is there.
    """
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def listener() -> tuple[socket.socket, str]:
    """Open the coordinator's socket; return it and its address."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=128)
    return sock, f"127.0.0.1:{sock.getsockname()[1]}"


def rank_environment(rank: int, size: int, address: str, **more: str) -> dict[str, str]:
    """Return the environment of a rank; nothing of an outer launcher gets through."""
    foreign = ("STANDFAST_", "MLX_", "JACCL_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in names}
    paths = [str(ROOT), *(path for path in [os.environ.get("PYTHONPATH")] if path)]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "STANDFAST_RANK": str(rank),
        "STANDFAST_WORLD_SIZE": str(size),
        "STANDFAST_COORDINATOR": address,
        **more,
    }


class Job:
    """n ranks under way, each a process of its own; a context manager that leaves none behind."""

    def __init__(
        self,
        n: int,
        function: Callable[..., Any],
        *args: Any,
        init: dict[str, Any] | None = None,
        form: bool = True,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        fabric: emulated.Fabric | None = None,
    ) -> None:
        self.n = n
        self._fabric = fabric or emulated.shared()
        self.deadline = time.monotonic() + timeout_s
        self.folder = Path(tempfile.mkdtemp(prefix="standfast-ranks-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._env = dict(env or {})
        self._task = task_of(function, args, emulated.arguments(n, init) if form else None)

    def __enter__(self) -> Job:
        sock, address = listener()
        with sock:
            for rank in range(self.n):
                self.processes.append(self._start(rank, address, sock))
        return self

    def _start(self, rank: int, address: str, sock: socket.socket) -> subprocess.Popen[bytes]:
        env = rank_environment(
            rank, self.n, address, **{**self._fabric.environment(rank), **self._env}
        )
        fds: tuple[int, ...] = ()
        if rank == 0:
            fds = (sock.fileno(),)
            env["STANDFAST_LISTEN_FD"] = str(sock.fileno())
        task = self.folder / "task"
        if rank == 0:
            task.write_bytes(pickle.dumps(self._task))
        with self._file(rank, "out") as out, self._file(rank, "err") as err:
            return subprocess.Popen(
                [sys.executable, __file__, "job", str(task), str(self.folder / f"{rank}.result")],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=fds,
                cwd=ROOT,
            )

    def _file(self, rank: int, kind: str) -> io.FileIO:
        return io.FileIO(self.folder / f"{rank}.{kind}", "ab")

    def text(self, rank: int, kind: str = "out") -> str:
        """Return what a rank has written so far."""
        return (self.folder / f"{rank}.{kind}").read_text(errors="replace")

    def wait_for(self, rank: int, text: str, kind: str = "out") -> None:
        """Wait until a rank has written a text."""
        while text not in self.text(rank, kind):
            assert time.monotonic() < self.deadline, self._late(f"rank {rank} never said {text!r}")
            assert self.processes[rank].poll() is None or text in self.text(rank, kind), str(
                self._ended(rank)
            )
            time.sleep(0.002)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank."""
        self.processes[rank].send_signal(number)

    def wait(self) -> list[Ended]:
        """Wait for all ranks to end."""
        for process in self.processes:
            try:
                process.wait(max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(self._late("some ranks did not end")) from None
        return [self._ended(rank) for rank in range(self.n)]

    def _ended(self, rank: int) -> Ended:
        ended = Ended(rank)
        result = self.folder / f"{rank}.result"
        if result.exists():
            ended = pickle.loads(result.read_bytes())
        ended.rank = rank
        ended.status = self.processes[rank].poll()
        ended.stdout, ended.stderr = self.text(rank), self.text(rank, "err")
        return ended

    def _late(self, what: str) -> str:
        states = "\n".join(str(self._ended(rank)) for rank in range(self.n))
        return f"{what} before the deadline\n{states}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(KILL_GRACE_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def run_ranks(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    init: dict[str, Any] | None = None,
    form: bool = True,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    check: bool = True,
    fabric: emulated.Fabric | None = None,
) -> list[Ended]:
    """Run function(group, *args) on n ranks and return how each ended.

    Args:
        n: number of ranks.
        function: at the top level of a module below the repository's root.
        args: passed on; pickled.
        init: arguments of standfast.init(), such as {"fabric": "tcp"}.
        form: False: call function(*args), which forms its own group.
        env: further environment variables.
        timeout_s: then every rank is killed, and AssertionError tells what each had said.
        check: assert that every rank returned.
        fabric: of emulated Macs, one for each rank; without it that of emulated.shared().
    """
    with Job(
        n, function, *args, init=init, form=form, env=env, timeout_s=timeout_s, fabric=fabric
    ) as job:
        ended = job.wait()
    if check:
        bad = [str(rank) for rank in ended if not rank.returned or rank.status != 0]
        assert not bad, "\n".join(bad)
    return ended


class Pool:
    """Processes that stay, and run one function after another, each time as a group of its own.

    Starting Python takes longer than most tests. After a failure the processes are replaced.
    """

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self._workers: list[_Worker] = []

    def run(
        self,
        n: int,
        function: Callable[..., Any],
        *args: Any,
        init: dict[str, Any] | None = None,
        form: bool = True,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> list[Ended]:
        """Run function(group, *args) on n ranks, as run_ranks does.

        With form=False it is called as function(arguments, *args), and forms its own group by
        standfast.init(**arguments).
        """
        assert n <= self.most
        while len(self._workers) < n:
            self._workers.append(_Worker(len(self._workers)))
        team = self._workers[:n]
        sock, address = listener()
        with sock:
            for rank, worker in enumerate(team):
                given = {"rank": rank, "size": n, "coordinator": address}
                given |= emulated.arguments(n, init)
                task = dataclasses.replace(task_of(function, args, given), forms=form)
                worker.begin(task, sock if rank == 0 else None)
        try:
            ended = _collect(team, time.monotonic() + timeout_s)
        except AssertionError:
            self.close()
            raise
        bad = [str(rank) for rank in ended if not rank.returned]
        if bad:
            self.close()
        assert not (bad and check), "\n".join(bad)
        return ended

    def close(self) -> None:
        """End all processes."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()


LENGTH = struct.Struct("<I")


class _Worker:
    """A process of a pool, and the socket over which it gets tasks and gives results."""

    def __init__(self, rank: int) -> None:
        self.sock, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        env = rank_environment(0, 0, "")
        for name in [name for name in env if name.startswith("STANDFAST_")]:
            del env[name]
        env |= emulated.shared().environment(rank)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "pool", str(theirs.fileno())],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self.errors,
                stderr=self.errors,
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
            )

    def begin(self, task: Task, coordinator: socket.socket | None) -> None:
        payload = pickle.dumps(task)
        fds = [] if coordinator is None else [coordinator.fileno()]
        socket.send_fds(self.sock, [LENGTH.pack(len(payload))], fds)
        self.sock.sendall(payload)

    def result(self) -> Ended | None:
        """Return the result, or None if the process is gone. Called once something can be read."""
        try:
            payload = _read(self.sock, LENGTH.unpack(_read(self.sock, LENGTH.size))[0])
        except (EOFError, ConnectionError):
            return None
        ended: Ended = pickle.loads(payload)
        return ended

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-4000:]

    def end(self) -> None:
        self.sock.close()
        self.process.kill()
        self.process.wait(KILL_GRACE_S)
        self.errors.close()


def _read(sock: socket.socket, length: int) -> bytes:
    parts, missing = [], length
    while missing:
        part = sock.recv(min(missing, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _collect(team: Sequence[_Worker], deadline: float) -> list[Ended]:
    found: dict[int, Ended] = {}
    with selectors.DefaultSelector() as selector:
        for rank, worker in enumerate(team):
            selector.register(worker.sock, selectors.EVENT_READ, rank)
        while len(found) < len(team):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                late = [rank for rank in range(len(team)) if rank not in found]
                said = "\n".join(f"rank {r}: {team[r].said()}" for r in range(len(team)))
                done = "\n".join(str(ended) for ended in found.values() if not ended.returned)
                raise AssertionError(f"ranks {late} did not end in time\n{done}\n{said}")
            for key, _ in ready:
                rank, worker = key.data, team[key.data]
                ended = worker.result()
                if ended is None:
                    status = worker.process.wait(KILL_GRACE_S)
                    ended = Ended(rank, status=status, stderr=worker.said())
                ended.rank = rank
                found[rank] = ended
                selector.unregister(worker.sock)
    return [found[rank] for rank in range(len(team))]


# --- in the ranks' processes ----------------------------------------------------------------------


def _call(task: Task) -> Any:
    import standfast

    function = find(task)
    if task.init is None:
        return function(*task.args)
    if not task.forms:
        return function(task.init, *task.args)
    with standfast.init(**task.init) as group:
        return function(group, *task.args)


def _picklable(ended: Ended) -> bytes:
    try:
        return pickle.dumps(ended)
    except Exception as error:  # noqa: BLE001 - whatever cannot be pickled is told as text
        return pickle.dumps(
            Ended(ended.rank, traceback=f"{ended.traceback}\nnot picklable: {error}")
        )


def _job_main(task_file: str, result_file: str) -> None:
    """Do one task; an exception is written down, and ends the process as if nobody had looked."""
    task: Task = pickle.loads(Path(task_file).read_bytes())
    ended = Ended(-1)
    try:
        ended.value = _call(task)
        ended.returned = True
    except BaseException as error:
        ended.error, ended.traceback = error, traceback.format_exc()
        raise
    finally:
        partial = Path(result_file + ".new")
        partial.write_bytes(_picklable(ended))
        partial.replace(result_file)


def _pool_main(fd: int) -> None:
    """Do tasks until the parent is gone."""
    sock = socket.socket(fileno=fd)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            head, fds, _, _ = socket.recv_fds(sock, LENGTH.size, 1)
            if not head:
                return
            task: Task = pickle.loads(_read(sock, LENGTH.unpack(head)[0]))
            if fds and task.init is not None:
                task.init = {**task.init, "listen_fd": fds[0]}
            ended = Ended(-1)
            try:
                ended.value = _call(task)
                ended.returned = True
            except Exception as error:  # noqa: BLE001 - told to the parent
                ended.error, ended.traceback = error, traceback.format_exc()
            for listening in fds:
                os.close(listening)
            payload = _picklable(ended)
            sock.sendall(LENGTH.pack(len(payload)) + payload)


if __name__ == "__main__":
    # Results name the classes of this file as tests.ranks, which is what the parent knows.
    from tests import ranks

    if sys.argv[1] == "job":
        ranks._job_main(sys.argv[2], sys.argv[3])
    else:
        ranks._pool_main(int(sys.argv[2]))
