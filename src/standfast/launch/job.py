"""A whole `standfast run`: generations, until all ranks returned 0 or nothing is left to try."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import selectors
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from standfast import exits
from standfast.launch.clock import now_ns
from standfast.launch.environment import Formation
from standfast.launch.generation import Generation, Workshop
from standfast.launch.guardian import Guardian
from standfast.launch.inbox import SignalInbox
from standfast.launch.output import Output
from standfast.launch.parts import adopt_orphans, reap_strays
from standfast.launch.ports import free_port, open_listener, port_of
from standfast.launch.process import Program
from standfast.launch.program import cannot_exec, find_program
from standfast.launch.spec import JobSpec, LaunchError

if TYPE_CHECKING:
    from standfast.launch.verdicts import GenerationRecord, Report

FLUSH_NS = 1_000_000_000
"""How long a reader may take for the last lines once somebody wants the end."""


def run_job(spec: JobSpec) -> int:
    """Run the job and return the launcher's exit status; LaunchError if it can't be started."""
    program = _program(spec)
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        inbox = SignalInbox(selector)
        stack.callback(inbox.close)
        directory = stack.enter_context(_report_directory(spec.environ))
        guardian = Guardian(directory)
        stack.callback(guardian.close)
        output = Output(selector, spec.environ, json=spec.json)
        stack.callback(output.close)
        read_reports = functools.partial(_read_reports, directory, spec.ranks)
        shop = Workshop(selector, output, inbox, guardian, read_reports)
        return Job(spec, program, shop, directory).run()


class Job:
    """The generations of one job."""

    def __init__(self, spec: JobSpec, program: Program, shop: Workshop, directory: str) -> None:
        self._spec = spec
        self._program = program
        self._shop = shop
        self._directory = directory
        self._id = f"standfast-{os.urandom(6).hex()}"
        self._key = os.urandom(32).hex()
        self._began_ns = now_ns()

    def run(self) -> int:
        """Form the group until it ended well, or must not be formed again."""
        record = self._generation(1)
        from standfast.launch.story import Story  # ranks started earlier without it

        story = Story(self._spec, self._id, self._began_ns)
        output = self._shop.output
        output.say(story.add(record))
        while story.again:
            output.say(story.next_words())
            output.say(story.add(self._generation(record.generation + story.restarts + 1)))
        output.say(story.last_words())
        if self._spec.json:
            output.out.push(f"{story.json()}\n".encode())
        return self._flush(story.status, hurried=story.hurried)

    def _generation(self, number: int) -> GenerationRecord:
        listener = open_listener()
        watch_listener = open_listener() if self._spec.watch else None
        formation = self._formation(number, listener, watch_listener)
        generation = Generation(self._shop, self._spec, formation, self._deadline_ns())
        try:
            return generation.run(self._program, listener, watch_listener)
        except OSError as error:
            raise _cannot_start(self._program, error) from error
        finally:
            reap_strays(keep=self._shop.guardian.pid)
            sweep_segments()

    def _formation(
        self, generation: int, listener: socket.socket, watch_listener: socket.socket | None
    ) -> Formation:
        return Formation(
            job_id=self._id,
            generation=generation,
            size=self._spec.ranks,
            port=port_of(listener),
            master_port=free_port(),
            key=self._key,
            report_dir=self._directory,
            watch_port=None if watch_listener is None else port_of(watch_listener),
        )

    def _deadline_ns(self) -> int | None:
        limit_s = self._spec.timeout_s
        return None if limit_s is None else self._began_ns + int(limit_s * 1e9)

    def _flush(self, status: int, *, hurried: bool) -> int:
        """Wait for a slow reader, unless somebody wants the end; return the exit status."""
        output = self._shop.output
        limit_ns = now_ns() + FLUSH_NS if hurried else None
        output.settle()
        while not output.empty:
            for key, _ in self._shop.selector.select(0.1):
                key.data()
            output.settle()
            signals = self._shop.inbox.take()
            if signals and not hurried:
                return exits.SIGNAL_BASE + signals[0]
            if signals or (limit_ns is not None and now_ns() > limit_ns):
                return status
        return status


def _read_reports(directory: str, ranks: int, generation: int) -> dict[int, Report]:
    from standfast.launch.reports import read_reports  # msgspec is not needed to start ranks

    return read_reports(directory, generation=generation, ranks=ranks)


def sweep_segments() -> None:
    """Remove shared memory whose makers were killed, if the native core is installed."""
    try:
        core = importlib.import_module("standfast._core")
    except ImportError:
        return
    core.shm_sweep()


@contextlib.contextmanager
def _report_directory(environ: Mapping[str, str]) -> Iterator[str]:
    path = os.path.join(environ.get("TMPDIR") or "/tmp", f"standfast-{os.urandom(8).hex()}")
    os.mkdir(path, mode=0o700)
    try:
        yield path
    finally:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def _program(spec: JobSpec) -> Program:
    """Return what every rank runs: the program, or a warden that runs it."""
    path = find_program(spec.command[0], _search_path(spec.environ))
    if not spec.watch:
        return Program(path, spec.command)
    from standfast.launch.warding import check_limits, warden_command

    check_limits(spec.environ)
    command = warden_command(path, spec.command, kill_after_s=spec.kill_after_s)
    return Program(command[0], command)


def _search_path(environ: Mapping[str, str]) -> str:
    return environ.get("PATH", os.defpath)


def _cannot_start(program: Program, error: OSError) -> LaunchError:
    if error.filename is not None:
        return cannot_exec(program.path, error)
    return LaunchError(f"cannot start the ranks: {error.strerror}", status=exits.UNAVAILABLE)
