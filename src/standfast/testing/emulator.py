"""An emulated RDMA fabric: processes of this machine, joined as Thunderbolt joins Macs.

    from standfast.testing.emulator import Emulator
    from standfast.testing.topology import mesh

    with Emulator(mesh(2)) as fabric:
        lost = fabric.fault("lose", at="mac0:rdma_en2", first=3)
        ...start a process per host, with fabric.environment("mac0", os.environ)...
        assert lost.applied() == 1

emulator/README.md has the fabric file, the faults, and what is not known of Apple's stack. As a
program, `python -m standfast.testing.emulator FABRIC COMMAND...`, it is the control tool.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from standfast.testing.topology import Topology

LIBRARY_NAMES = ("librdma.dylib", "libibverbs.so.1")
FABRIC_VARIABLE = "STANDFAST_EMULATOR_FABRIC"
HOST_VARIABLE = "STANDFAST_EMULATOR_HOST"
LIBRARY_PATH_VARIABLE = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
ANSWER_BYTES = 1 << 18
MEMORY = Path("/dev/shm")
PREFIX = "standfast-emulator-"

CableState = Literal["up", "down", "errors", "segv", "wedged", "renew"]
Resource = Literal["queue_pairs", "memory_regions", "protection_domains"]


class EmulatorError(ValueError):
    """The fabric refused a command, or its file is wrong; the message says which word and why."""


def library_path() -> Path:
    """Return the emulated library's file."""
    return Path(__file__).parent.with_name("_librdma.so")


def command(fabric: Path, text: str) -> Any:
    """Give a fabric a command (emulator/README.md, "Commands"); return its answer, None if empty.

    Raises:
        EmulatorError: the command, or the fabric's file, is wrong.
    """
    answer = ctypes.create_string_buffer(ANSWER_BYTES)
    status = _library().standfast_emulator_command(
        os.fsencode(fabric), text.encode(), answer, ANSWER_BYTES
    )
    words = answer.value.decode()
    if status != 0:
        raise EmulatorError(words)
    return json.loads(words) if words else None


class Fault:
    """A fault that was asked for; see `Emulator.fault`."""

    def __init__(self, fabric: Path, number: int) -> None:
        self._fabric = fabric
        self._number = number

    def applied(self) -> int:
        """Return how often it has struck."""
        return int(command(self._fabric, f"applied {self._number}")["applied"])

    def seen(self) -> int:
        """Return how many events it could have struck so far."""
        return int(command(self._fabric, f"applied {self._number}")["seen"])

    def clear(self) -> None:
        """Take it back."""
        command(self._fabric, f"clear {self._number}")


class Emulator:
    """A fabric in a folder of its own, which is removed at the end, with all that is in it.

    Ports are named "host:device", cables as in the topology ("c0", "c1", ...).

    Raises:
        EmulatorError: the topology's settings are wrong.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        # In memory, where the system has a place for that: the data goes through here.
        place = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
        place = place or Path(tempfile.gettempdir())
        _sweep(place)
        self.folder: Path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        self.fabric: Path = self.folder / "fabric"
        self.devices_file: Path = self.folder / "devices.json"
        self._closed = False
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        self.fabric.write_text(self.topology.text(), encoding="utf-8")
        self.devices_file.write_text(json.dumps(self.topology.jaccl_matrix()), encoding="utf-8")
        names = self.folder / "lib"
        names.mkdir()
        for name in LIBRARY_NAMES:
            (names / name).symlink_to(library_path())
        self.command("ports")

    def __enter__(self) -> Emulator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. Processes that still have it open keep what they have mapped."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(EmulatorError):
            command(self.fabric, "forget")
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, host: str, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return `inherited` with what makes a process one of this host."""
        before = inherited.get(LIBRARY_PATH_VARIABLE)
        folders = [str(self.folder / "lib"), *([before] if before else [])]
        return {
            **inherited,
            FABRIC_VARIABLE: str(self.fabric),
            HOST_VARIABLE: host,
            LIBRARY_PATH_VARIABLE: os.pathsep.join(folders),
        }

    def jaccl_environment(self, rank: int, coordinator: str) -> dict[str, str]:
        """Return the variables by which a JACCL program knows its group.

        `coordinator` is host:port, of rank 0's listener.
        """
        variables = {"JACCL_RANK": str(rank), "MLX_RANK": str(rank)}
        variables |= {
            "JACCL_IBV_DEVICES": str(self.devices_file),
            "MLX_IBV_DEVICES": str(self.devices_file),
            "JACCL_COORDINATOR": coordinator,
            "MLX_JACCL_COORDINATOR": coordinator,
        }
        if self.topology.prefers_ring:
            variables |= {"JACCL_RING": "1", "MLX_JACCL_RING": "1"}
        return variables

    def command(self, text: str) -> Any:
        """Give the fabric any command; see the function of this name."""
        return command(self.fabric, text)

    # --- faults

    def fault(
        self,
        kind: str,
        *,
        at: str | None = None,
        call: str | None = None,
        first: int = 0,
        count: int | None = 1,
        probability: float = 1.0,
        seed: int = 0,
        value: int = 0,
    ) -> Fault:
        """Let a fault strike events first, ..., first + count - 1, counted from now on.

        Args:
            kind: lose, duplicate, corrupt, truncate, delay or reorder a message (one send
                request); fail-send or fail-receive for a completion; fail, slow, kill, stop or segv
                for a call.
            at: the port "host:device", or the host, where it strikes; None: everywhere.
            call: which call, for the last five: "reg_mr", "modify_rtr", "post_send", ...
            first: the first event that it strikes, from 0.
            count: how many it strikes; None: all that follow.
            probability: the chance of each of those.
            seed: what chances are drawn from.
            value: nanoseconds (delay, slow), which byte (corrupt), bytes left (truncate), status
                (fail-send, fail-receive) or what the call returns or sets errno to (fail).

        Raises:
            EmulatorError: there is no such kind, call or place.
        """
        words = [f"fault {kind}", f"first={first}", f"count={'all' if count is None else count}"]
        words += [f"probability={probability}", f"seed={seed}", f"value={value}"]
        words += [f"{name}={text}" for name, text in (("at", at), ("call", call)) if text]
        return Fault(self.fabric, int(self.command(" ".join(words))))

    def clear_faults(self) -> None:
        """Take all faults back."""
        self.command("clear")

    def cable(self, name: str, state: CableState) -> None:
        """Pull or plug a cable.

        "down": silence; "errors": all requests complete with errors; "segv": the next call on one
        of its queue pairs crashes; "wedged": nothing moves though ports stay active; "renew": the
        link is made anew, and queue pairs connected before are cut off for good.
        """
        self.command(f"cable {name} {state}")

    def port(self, name: str, state: Literal["up", "down"]) -> None:
        """Switch one end off or on."""
        self.command(f"port {name} {state}")

    def gids(self, port: str, *entries: str) -> None:
        """Set a port's table, from index 0: "none", "fe80", "fe80:HEX" or an IPv4 address each."""
        self.command(f"gids {port} {' '.join(entries)}")

    def budget(self, port: str, resource: Resource, limit: int) -> None:
        """Let a device have no more than `limit` of something; what is there already stays."""
        self.command(f"budget {port} {resource} {limit}")

    # --- what has happened

    def counters(self, port: str) -> dict[str, int]:
        """Return how often things have happened at a port: "sent", "received", "lost", ..."""
        return dict(self.command(f"counters {port}"))

    def held(self, port: str) -> dict[str, Any]:
        """Return what living processes have of a device, and whether its port is active."""
        return dict(self.command(f"held {port}"))

    def trace_on(self) -> None:
        """Write every message into the trace, with a digest of its data."""
        self.command("trace on")

    def trace(self) -> list[dict[str, Any]]:
        """Return the trace so far, in the order in which it was written."""
        return [json.loads(line) for line in self._lines(".trace")]

    def reports(self) -> list[str]:
        """Return what programs did wrong: things destroyed in the wrong order."""
        return self._lines(".reports")

    def _lines(self, ending: str) -> list[str]:
        try:
            return Path(f"{self.fabric}{ending}").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []


def _sweep(place: Path) -> None:
    """Remove folders whose makers were killed before they could."""
    for folder in place.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if not pid.isdigit():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:
            continue


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.standfast_emulator_command.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return library


def main(arguments: list[str]) -> int:
    """Give a fabric a command, print the answer."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python -m standfast.testing.emulator FABRIC COMMAND...\n")
        return 2
    try:
        answer = command(Path(arguments[0]).resolve(), " ".join(arguments[1:]))
    except EmulatorError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if answer is not None:
        sys.stdout.write(f"{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
