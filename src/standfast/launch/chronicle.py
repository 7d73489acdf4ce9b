"""Where a job's events and its status record go: a stream of JSON lines, and a file."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
from typing import Any

from standfast import exits
from standfast.launch.clock import now_ns
from standfast.launch.ledger import Ledger
from standfast.launch.output import Sink
from standfast.launch.parts import process_start
from standfast.launch.spec import JobSpec, LaunchError

RECORD = "status.json"
HOOK_NS = 10_000_000_000
"""How long the on_fault commands may still run when the job is over."""


class Chronicle:
    """Takes what the ledger tells to whoever wants to know: events, status, hooks."""

    def __init__(self, spec: JobSpec, selector: selectors.BaseSelector, directory: str) -> None:
        self._events: EventStream | None = None
        if spec.events is not None:
            self._events = EventStream(selector, spec.events)
        self._status = StatusFile(directory)
        self._hooks = Hooks(spec.on_fault)
        owner = {"pid": os.getpid(), "pid_start": process_start(os.getpid())}
        job_id = f"standfast-{os.urandom(6).hex()}"
        self.ledger: Ledger = Ledger(job_id, spec.command, owner, self._tell)

    @property
    def empty(self) -> bool:
        """Whether all events were written, or can never be."""
        return self._events is None or self._events.empty

    def settle(self) -> None:
        """Let out what has changed."""
        if self._events is not None:
            self._events.settle()
        if self.ledger.changed:
            self.ledger.changed = False
            self._status.write(self.ledger.record())

    def close(self) -> None:
        """Let go of everything."""
        self._hooks.finish()
        if self._events is not None:
            self._events.close()

    def _tell(self, event: dict[str, Any]) -> None:
        if self._events is not None:
            self._events.emit(event)
        if event["event"] == "group_failed":
            self._hooks.run(event)


class EventStream:
    """`--events FILE|fd`: never blocks, and whoever does not read it loses it, not the job."""

    def __init__(self, selector: selectors.BaseSelector, target: str) -> None:
        self._owned = not target.isdecimal()
        try:
            self._fd = int(target) if target.isdecimal() else _opened(target)
            os.set_inheritable(self._fd, False)
            self._sink = Sink(selector, self._fd)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "OSError")
            text = f"--events {target}: {error.strerror} ({name})"
            raise LaunchError(text, status=exits.USAGE) from error

    def emit(self, event: dict[str, Any]) -> None:
        """Write a line."""
        self._sink.push(f"{_text(event)}\n".encode())
        self._sink.settle()

    def settle(self) -> None:
        """Go on writing."""
        self._sink.settle()

    @property
    def empty(self) -> bool:
        """Whether everything was written, or can never be."""
        return self._sink.empty

    def close(self) -> None:
        """Let go of it."""
        self._sink.close()
        if self._owned:
            os.close(self._fd)


class StatusFile:
    """The job's record, for `standfast status`: whole, or not there."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, RECORD)

    def write(self, record: dict[str, Any]) -> None:
        """Replace it; a full disk costs the status its truth, and the job nothing."""
        with contextlib.suppress(OSError):
            with open(f"{self._path}.new", "w", encoding="utf-8") as file:
                file.write(_text(record))
            os.replace(f"{self._path}.new", self._path)


class Hooks:
    """`--on-fault COMMAND`: a shell runs it with the event on stdin; nothing waits for it."""

    def __init__(self, command: str | None) -> None:
        self._command = command
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, event: dict[str, Any]) -> None:
        """Start it, if there is one."""
        if self._command is None:
            return
        text = _text(event)
        process = subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,
            env={**os.environ, "STANDFAST_EVENT": text},
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it need not read; a line fits into the pipe
            process.stdin.write(f"{text}\n".encode())
            process.stdin.close()
        self._running.append(process)

    def finish(self) -> None:
        """Wait for what still runs, but not for long; then kill it."""
        until_ns = now_ns() + HOOK_NS
        for process in self._running:
            try:
                process.wait(max(0.0, (until_ns - now_ns()) / 1e9))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _text(value: dict[str, Any]) -> str:
    import json  # the first ranks have been started when it is needed

    return json.dumps(value)


def _opened(path: str) -> int:
    """Open a file for appending; of a FIFO that nobody reads that is an error, not a wait."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    return os.open(path, flags, 0o644)
