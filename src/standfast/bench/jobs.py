"""Starts the ranks of one measured job and reads what rank 0 tells, as it comes.

Whoever launches them (we, an MPI, or a plain process per rank), results are marked lines of their
standard output; what else they write there goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import standfast
from standfast.bench.backends import Backend
from standfast.bench.plan import Cell, to_dict
from standfast.bench.rank import MARK, How, Result

SILENCE_S = 180.0  # a job of another library that tells nothing for so long is ended
PATIENCE_S = 15.0  # from SIGTERM to SIGKILL; longer than our launcher's own
PROGRAM = ("-m", "standfast.bench.rank")
READ_BYTES = 1 << 16


class JobFailed(Exception):
    """Not all ranks ended well. status: for this command to end with; output: the end of theirs."""

    def __init__(self, backend: Backend, status: int, output: str) -> None:
        self.backend: Backend = backend
        self.status: int = status
        self.output: str = output
        super().__init__(f"{backend.title} ended with status {status}")


@dataclasses.dataclass(frozen=True)
class Launch:
    """What all jobs have: the environment, and arguments of our own launcher, e.g. for hosts."""

    environ: Mapping[str, str]
    arguments: tuple[str, ...] = ()


class Job:
    """One job of `ranks` ranks; a context manager that leaves no process behind."""

    def __init__(
        self,
        backend: Backend,
        ranks: int,
        cells: Sequence[Cell],
        how: How,
        launch: Launch,
    ) -> None:
        self.backend: Backend = backend
        self.ranks: int = ranks
        self._launch = launch
        self._job = json.dumps(
            {
                "adapter": backend.adapter,
                "ranks": ranks,
                "init": dict(backend.init),
                "cells": [to_dict(cell) for cell in cells],
                "how": dataclasses.asdict(how),
            }
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        self._folder = Path(tempfile.mkdtemp(prefix="standfast-bench-"))
        self._errors = (self._folder / "stderr").open("w+b")
        self._read, write = os.pipe()
        try:
            for command, own in self._commands():
                self._start(command, own, write)
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(write)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        os.close(self._read)
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def results(self) -> Iterator[Result]:
        """Yield what rank 0 tells.

        Raises:
            JobFailed: a process ended with another status than 0, or told nothing for too long.
        """
        for line in self._lines():
            before, mark, text = line.partition(MARK)
            if mark:
                yield json.loads(text)
            elif before.strip():
                sys.stderr.write(before)
        statuses = [process.wait() for process in self._processes]
        failed = next((status for status in statuses if status), 0)
        if failed:
            raise JobFailed(self.backend, failed if failed > 0 else 128 - failed, self._output())

    def _lines(self) -> Iterator[str]:
        """Yield lines until all ends of the pipe that could write are closed."""
        pending = b""
        limit_s = None if self.backend.is_ours else SILENCE_S
        while True:
            if not select.select([self._read], [], [], limit_s)[0]:
                raise JobFailed(self.backend, 124, f"nothing was measured for {SILENCE_S:.0f} s")
            data = os.read(self._read, READ_BYTES)
            if not data:
                break
            *whole, pending = (pending + data).split(b"\n")
            yield from (line.decode(errors="replace") + "\n" for line in whole)
        if pending:
            yield pending.decode(errors="replace")

    def _output(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def _commands(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Yield what to start, and each process's own variables."""
        rank = [self.backend.python, *PROGRAM, self._job]
        count = str(self.ranks)
        match self.backend.launcher:
            case "run":
                ours = [sys.executable, "-m", "standfast", "run", "-n", count]
                yield [*ours, *self._launch.arguments, "--", *rank], {}
            case "emulate":
                topology = dict(self.backend.init)["topology"].replace("auto", "mesh")
                ours = [sys.executable, "-m", "standfast", "emulate", "--macs", count]
                yield [*ours, "--topology", topology, *self._launch.arguments, "--", *rank], {}
            case "mpirun":
                crowded = self.ranks > (os.cpu_count() or 1) and self.backend.mark == "ompi_info"
                yield (
                    [
                        str(self.backend.program()),
                        *self.backend.arguments,
                        *(["--oversubscribe"] if crowded else []),
                        *("-n", count, *rank),
                    ],
                    {},
                )
            case _:
                ports = free_ports(self.ranks)
                hosts = self._folder / "hosts.json"
                hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
                for number in range(self.ranks):
                    yield [*rank, str(number)], _identity(number, ports[0], hosts)

    def _start(self, command: list[str], own: dict[str, str], write: int) -> None:
        # A session of its own: the terminal's Ctrl-C is for us alone, and we tell an MPI's ranks.
        self._processes.append(
            subprocess.Popen(
                command,
                env=self._environment() | own,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=None if self.backend.is_ours else self._errors,
                start_new_session=True,
            )
        )

    def _environment(self) -> dict[str, str]:
        """Return the ranks' environment; another Python finds of ours this package and no more."""
        own = {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        if not self.backend.is_ours:
            package = Path(standfast.__file__).resolve().parent
            (self._folder / "path").mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (self._folder / "path" / "standfast").symlink_to(package)
            own["PYTHONPATH"] = str(self._folder / "path")
        return {**self._launch.environ, **own}

    def _end(self) -> None:
        """End what still runs: politely first, since launchers must end their ranks."""
        for number, patience_s in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, 10.0)):
            left = [process for process in self._processes if process.poll() is None]
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + patience_s
            for process in left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))


def _identity(rank: int, port: int, hosts: Path) -> dict[str, str]:
    """Return the variables by which Gloo and MLX learn who they are."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "MLX_RANK": str(rank),
        "MLX_HOSTFILE": str(hosts),
    }


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
