"""Starts three ranks of a foreign job, harms one, and tells how the others end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = 3
VICTIM = 1
SURVIVORS = (0, 2)
RANK = Path(__file__).with_name("rank.py")
ROOT = Path(__file__).resolve().parents[2]
# The Python that runs the foreign ranks, and has their libraries; `make test-foreign` makes one.
PYTHON = os.environ.get("FOREIGN_PYTHON", sys.executable)
START_S = 90.0
SILENCE_S = 2.0
LIMITS = {"silence_s": SILENCE_S, "exit_grace_s": 1.0}
MODULES = {"mlx": "mlx.core", "gloo": "torch", "mpi": "mpi4py"}


def missing(library: str) -> str | None:
    """Say why a library's job cannot be run here, or None."""
    code = (
        f"import importlib.util as u; raise SystemExit(u.find_spec({MODULES[library]!r}) is None)"
    )
    if subprocess.run([PYTHON, "-c", code], check=False).returncode:
        return f"{PYTHON} has no {MODULES[library]}: see `make test-foreign`"
    if library == "mpi" and mpirun() is None:
        return f"there is no mpirun beside {PYTHON}: see `make test-foreign`"
    return None


def mpirun() -> str | None:
    """Find the launcher that belongs to the foreign Python's MPI."""
    return shutil.which("mpirun", path=str(Path(PYTHON).parent))


@dataclass
class Survivor:
    """How a rank that was not harmed is at the end. status: None while it still runs."""

    status: int | None
    text: str
    seconds: float


class ForeignJob:
    """Three ranks. `how`: "alone", "inside" (they call standfast.watch) or "outside" (--watch)."""

    def __init__(self, library: str, how: str, folder: Path) -> None:
        self.library = library
        self.how = how
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._harmed_s = 0.0
        self._environment = self._common()

    def __enter__(self) -> ForeignJob:
        try:
            self._start_all()
            self._wait_until_it_runs()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        if self.library == "mpi":
            self._start_by_mpirun()
        elif self.how == "outside":
            self._start_by_launcher()
        else:
            for rank in range(SIZE):
                self._start(rank, [PYTHON, str(RANK), self.library, str(self.folder)])

    def _wait_until_it_runs(self) -> None:
        end_s = time.monotonic() + START_S
        while not all(self._count(rank) >= 10 for rank in range(SIZE)):
            ended = [process.args for process in self._started if process.poll() is not None]
            assert not ended, f"{ended} ended\n{self.story()}"
            assert time.monotonic() < end_s, f"the job did not start\n{self.story()}"
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        for rank in range(SIZE):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if _is_ours(self.pid(rank)):
                    os.kill(self.pid(rank), signal.SIGKILL)
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    # --- starting

    def _common(self) -> dict[str, str]:
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("STANDFAST_", "OMPI_", "PMIX_", "PRTE_"))
        }
        ports = iter(_free_ports(SIZE + 2))
        hosts = self.folder / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{next(ports)}"] for _ in range(SIZE)]))
        kept |= {
            "MLX_HOSTFILE": str(hosts),
            "FOREIGN_MEETING": f"127.0.0.1:{next(ports)}",
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder),
        }
        if _is_source_tree():
            kept["PYTHONPATH"] = str(ROOT / "src")
        if self.how == "inside":
            kept["FOREIGN_COORDINATOR"] = f"127.0.0.1:{next(ports)}"
            kept["FOREIGN_LIMITS"] = json.dumps(LIMITS)
        return kept

    def _start(self, rank: int | str, command: list[str], **more: str) -> None:
        with (self.folder / f"{rank}.text").open("wb") as text:
            self._started.append(
                subprocess.Popen(
                    command,
                    env={**self._environment, "RANK": str(rank), **more},
                    stdin=subprocess.DEVNULL,
                    stdout=text,
                    stderr=subprocess.STDOUT,
                )
            )

    def _start_by_mpirun(self) -> None:
        """Recovery is on: without it, mpirun kills everybody at once, and nobody can say a word."""
        number = "$OMPI_COMM_WORLD_RANK"
        script = (
            f'"$0" "$@" > {self.folder}/{number}.text 2>&1; '
            f"echo $? > {self.folder}/{number}.new && mv {self.folder}/{number}.new "
            f"{self.folder}/{number}.status"
        )
        launcher = [str(mpirun()), "--enable-recovery", "--oversubscribe", "-n", str(SIZE)]
        ranks = ["sh", "-c", script, PYTHON, str(RANK), self.library, str(self.folder)]
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self._start("mpirun", [*launcher, *ranks], **allowed)

    def _start_by_launcher(self) -> None:
        command = [sys.executable, "-m", "standfast.command", "run", "-n", str(SIZE), "--watch"]
        limits = ["--kill-after-s", "1", "--json"]
        program = [PYTHON, str(RANK), self.library, str(self.folder)]
        silence = {"STANDFAST_SILENCE_S": str(SILENCE_S)}
        self._start("launcher", [*command, *limits, "--", *program], **silence)

    # --- harming and looking

    def pid(self, rank: int) -> int:
        """The foreign rank's own process."""
        return int((self.folder / f"{rank}.pid").read_text())

    def harm(self, number: signal.Signals) -> None:
        """Kill or freeze the victim, and make sure that it is."""
        pid = self.pid(VICTIM)
        self._harmed_s = time.monotonic()
        os.kill(pid, number)
        states = "T" if number is signal.SIGSTOP else "ZX"
        _until(lambda: _state(pid) in states, f"the victim has state {_state(pid)}")

    def is_stuck(self, seconds: float) -> bool:
        """Whether a survivor does not get on for so long."""
        before = [self._count(rank) for rank in SURVIVORS]
        time.sleep(seconds)
        return before == [self._count(rank) for rank in SURVIVORS]

    def survivors(self, limit_s: float) -> list[Survivor]:
        """Wait for the survivors' ends, but only so long."""
        found: dict[int, Survivor] = {}
        while len(found) < len(SURVIVORS) and time.monotonic() - self._harmed_s < limit_s:
            for rank in SURVIVORS:
                status = self._status(rank)
                if status is not None and rank not in found:
                    found[rank] = Survivor(status, "", time.monotonic() - self._harmed_s)
            time.sleep(0.005)
        for rank in SURVIVORS:
            found.setdefault(rank, Survivor(None, "", limit_s))
            found[rank].text = self.text(rank)
        return [found[rank] for rank in SURVIVORS]

    def launcher_report(self, limit_s: float = 20.0) -> dict[str, object]:
        """Wait for the end of `standfast run`; return what --json prints."""
        (launcher,) = self._started
        launcher.wait(limit_s)
        last = (self.folder / "launcher.text").read_text().splitlines()
        report: dict[str, object] = json.loads(next(line for line in last if line[:1] == "{"))
        return report

    def text(self, rank: int) -> str:
        """What a rank has written."""
        if self.library != "mpi" and self.how == "outside":
            lines = (self.folder / "launcher.text").read_text(errors="replace").splitlines()
            return "\n".join(line for line in lines if line.startswith(f"[r{rank}]"))
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"{rank}.text").read_text(errors="replace")
        return ""

    def story(self) -> str:
        """What all have written."""
        files = sorted(self.folder.glob("*.text"))
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in files
        )

    def _status(self, rank: int) -> int | None:
        if self.library != "mpi":
            return self._started[rank].poll()
        with contextlib.suppress(FileNotFoundError):
            return int((self.folder / f"{rank}.status").read_text())
        return None

    def _count(self, rank: int) -> int:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.folder / f"{rank}.count").read_text())
        return 0


def _is_source_tree() -> bool:
    import standfast

    return Path(standfast.__file__).is_relative_to(ROOT / "src")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _is_ours(pid: int) -> bool:
    """Whether a number still is that of a rank of ours, and not a stranger's by now."""
    return str(RANK).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def _until(happened: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < end_s, what
        time.sleep(0.002)


def _free_ports(count: int) -> Iterator[int]:
    """Return ports below those that the system gives out, free at the moment."""
    socks: list[socket.socket] = []
    try:
        while len(socks) < count:
            sock = socket.socket()
            port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                sock.close()
                continue
            socks.append(sock)
        return iter([sock.getsockname()[1] for sock in socks])
    finally:
        for sock in socks:
            sock.close()
