"""Starts the ranks of one measured job: plain processes, or the library's own launcher for MPI."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends import MPICH_VENV, VENV, Backend

RANK_PROGRAM = Path(__file__).parent / "rank_speed.py"


class Job:
    """One job of size ranks that measures the given cells and writes its results to folder."""

    def __init__(
        self,
        backend: Backend,
        size: int,
        folder: Path,
        cells: Sequence[tuple[str, int]],
        budget_s: float,
    ) -> None:
        self.backend, self.size, self.folder = backend, size, folder
        self.processes: list[subprocess.Popen[bytes]] = []
        description = {
            "adapter": backend.adapter,
            "size": size,
            "folder": str(folder),
            "cells": cells,
            "budget_s": budget_s,
        }
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "BENCH_JOB": json.dumps(description),
            **backend.environment,
        }

    def start(self) -> None:
        """Start every rank; returns without waiting for them."""
        self.folder.mkdir(parents=True)
        if self.backend.launcher == "plain":
            ports = free_ports(self.size)
            hosts = self.folder / "hosts.json"
            hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
            for rank in range(self.size):
                identity = self._identity(rank, ports[0], hosts)
                self._spawn(f"rank{rank}.out", [sys.executable, str(RANK_PROGRAM)], identity)
        else:
            self._spawn("launcher.out", self._launcher_command(), {})

    def wait(self, limit_s: float) -> list[int]:
        """Wait for all processes and return their exit statuses; end them when the time is up."""
        end = time.monotonic() + limit_s
        try:
            for process in self.processes:
                process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"{self.backend.name}: not finished after {limit_s:.0f} s", file=sys.stderr)
        finally:
            self._end()
        return [process.returncode for process in self.processes]

    def results(self) -> list[list[dict[str, Any]]]:
        """Return what the ranks wrote, by rank; empty unless every rank wrote."""
        files = [self.folder / f"rank{rank}.json" for rank in range(self.size)]
        if not all(file.exists() for file in files):
            return []
        return [json.loads(file.read_text()) for file in files]

    def output(self) -> str:
        """Return the end of what each process printed, for error messages."""
        files = sorted(self.folder.glob("*.out"))
        return "".join(file.read_text(errors="replace")[-1500:] for file in files)

    def _identity(self, rank: int, port: int, hosts: Path) -> dict[str, str]:
        """Return the variables from which the library learns who it is, and no other's."""
        match self.backend.adapter:
            case "standfast":
                library = {
                    "STANDFAST_RANK": str(rank),
                    "STANDFAST_WORLD_SIZE": str(self.size),
                    "STANDFAST_COORDINATOR": f"127.0.0.1:{port}",
                }
            case "gloo":
                library = {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                }
            case _:
                library = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
        return {"BENCH_RANK": str(rank), **library}

    def _launcher_command(self) -> list[str]:
        if self.backend.launcher == "mpiexec":
            program = [str(MPICH_VENV / "bin/python"), str(RANK_PROGRAM)]
            return [str(MPICH_VENV / "bin/mpiexec"), "-n", str(self.size), *program]
        crowded = self.size > (os.cpu_count() or 1)
        return [
            str(VENV / "bin/mpirun"),
            *self.backend.arguments,
            *(["--oversubscribe"] if crowded else []),
            *("-n", str(self.size), sys.executable, str(RANK_PROGRAM)),
        ]

    def _spawn(self, output: str, command: list[str], identity: dict[str, str]) -> None:
        with (self.folder / output).open("wb") as file:
            process = subprocess.Popen(
                command,
                env={**self.environment, **identity},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)

    def _end(self) -> None:
        """End what still runs: politely first, since an MPI launcher must end its ranks."""
        for number, patience_s in ((signal.SIGTERM, 2), (signal.SIGKILL, 10)):
            left = [process for process in self.processes if process.poll() is None]
            for process in left:
                os.killpg(process.pid, number)
            for process in left:
                try:
                    process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
