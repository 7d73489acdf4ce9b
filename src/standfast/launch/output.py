"""The ranks' output on its way to the launcher's stdout and stderr, with back-pressure.

Nothing here may block, since the same thread watches the ranks. A sink that cannot take more leaves
its streams unread; then the pipes fill and the ranks wait, as they would for a slow terminal
without us. So memory is bounded whatever they write: 64 KiB of held-back line per stream, and a
little over SINK_BYTES_MAX per sink.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import selectors
import stat
import termios
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from standfast.launch.clock import now_ns
from standfast.launch.lines import Prefixer, Tail
from standfast.launch.logs import Log, Logs
from standfast.launch.process import Pipe

READ_BYTES = 65536
SINK_BYTES_MAX = 262144
HOLD_NS = 500_000_000
"""How long a stream in an overlong line keeps the others waiting while it writes nothing."""
COLOURS = (36, 32, 33, 35, 34, 96, 92, 93)


class Sink:
    """A descriptor that the launcher writes to: its stdout, its stderr, or both in one."""

    def __init__(self, selector: selectors.BaseSelector, fd: int) -> None:
        self.lost: str | None = None
        self.terminal: bool = os.isatty(fd)
        self.owner: Stream | None = None
        self._dangling: Stream | None = None
        self._held_until_ns = 0
        self._selector = selector
        self._own_fd = _reopened(fd)
        self._fd = fd if self._own_fd is None else self._own_fd
        self._registered = False
        self._ready_always = not pollable(self._fd)
        self._step = (
            READ_BYTES if self._ready_always or self._own_fd is not None else select.PIPE_BUF
        )
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether everything was written, or can never be."""
        return not self._pending

    @property
    def full(self) -> bool:
        """Whether streams have to wait."""
        return self._pending_bytes >= SINK_BYTES_MAX

    def push(self, data: bytes, source: Stream | None = None) -> None:
        """Queue whole lines, or pieces of the line that `source` is in."""
        if self.lost is not None or not data:
            return
        if self._dangling is not None and self._dangling is not source:
            self._dangling.lines.break_line()
            data = b"\n" + data
        in_line = source is not None and source.lines.in_line
        self._dangling = self.owner = source if in_line else None
        self._held_until_ns = now_ns() + HOLD_NS
        self._pending.append(memoryview(data))
        self._pending_bytes += len(data)

    def settle(self) -> None:
        """Write what can be written, and ask to be called when there is room for the rest."""
        self._write()
        if self._pending:
            self._held_until_ns = now_ns() + HOLD_NS
        elif now_ns() > self._held_until_ns:
            self.owner = None
        wanted = bool(self._pending) and not self._ready_always
        if wanted and not self._registered:
            self._selector.register(self._fd, selectors.EVENT_WRITE, self._write)
        elif self._registered and not wanted:
            self._selector.unregister(self._fd)
        self._registered = wanted

    def close(self) -> None:
        """Give up the descriptor if it was opened here."""
        if self._registered:
            self._selector.unregister(self._fd)
        if self._own_fd is not None:
            os.close(self._own_fd)

    def _write(self) -> None:
        while self._pending and self._writable():
            head = self._pending.popleft()
            try:
                written = os.write(self._fd, head[: self._step])
            except BlockingIOError:
                self._pending.appendleft(head)
                return
            except OSError as error:
                self._lose(error)
                return
            self._pending_bytes -= written
            if written < len(head):
                self._pending.appendleft(head[written:])

    def _writable(self) -> bool:
        """Ask before each step: a blocking pipe that is ready takes PIPE_BUF bytes, no more."""
        if self._ready_always or self._own_fd is not None:
            return True
        return bool(select.select([], [self._fd], [], 0)[1])

    def abandon(self) -> None:
        """Drop what is pending, and all that comes, if the reader does not take it."""
        if self._pending:
            self._drop("nobody reads it")

    def _lose(self, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "OSError")
        self._drop(f"write: {os.strerror(error.errno or 0)} ({name})")

    def _drop(self, why: str) -> None:
        self.lost = why
        self._pending.clear()
        self._pending_bytes = 0
        self._dangling = self.owner = None


class Stream:
    """The reading end of a rank's stdout or stderr."""

    def __init__(self, fd: int, sink: Sink, prefix: bytes, tail: Tail | None) -> None:
        self.fd = fd
        self.sink = sink
        self.lines: Prefixer = Prefixer(prefix)
        self.open: bool = True
        self.registered = False
        self.log: Log | None = None
        self._tail = tail
        self._budget: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether it may be read now."""
        return self.open and not self.sink.full and self.sink.owner in (None, self)

    def read(self) -> None:
        """Pass on one piece of what the rank wrote."""
        if not self.wanted:
            return
        try:
            data = os.read(self.fd, self._limit())
        except BlockingIOError:
            if self._budget is None:
                return
            data = b""
        if data:
            self._pass_on(data)
        else:
            self.finish()

    def cut(self) -> None:
        """Accept only what is in the pipe already: its writers are no longer ours."""
        if self._budget is None:
            self._budget = bytes_in(self.fd)

    @property
    def cut_off(self) -> bool:
        """Whether cut() was called: then it may be read at any time."""
        return self._budget is not None

    def finish(self) -> None:
        """Complete the last line. Output unregisters the descriptor, and closes it then."""
        self.sink.push(self.lines.finish(), self)
        self.open = False

    def _limit(self) -> int:
        return READ_BYTES if self._budget is None else min(READ_BYTES, self._budget)

    def _pass_on(self, data: bytes) -> None:
        if self._budget is not None:
            self._budget -= len(data)
        if self._tail is not None:
            self._tail.feed(data)
        if self.log is not None:
            self.log.write(data)
        self.sink.push(self.lines.feed(data), self)


class FedStream(Stream):
    """The same for a rank on another host: what its agent has sent.

    `grant(bytes)` lets the agent send as much again, so that no more than its window waits here;
    `ask_cut()` tells it to close the pipe.
    """

    def __init__(
        self,
        sink: Sink,
        prefix: bytes,
        tail: Tail | None,
        grant: Callable[[int], None],
        ask_cut: Callable[[], None],
    ) -> None:
        super().__init__(-1, sink, prefix, tail)
        self._waiting: deque[bytes] = deque()
        self._asked = False
        self._grant = grant
        self._ask_cut = ask_cut

    def feed(self, data: bytes) -> None:
        """Take what came; nothing means that no more comes."""
        self._waiting.append(data)

    def pump(self) -> bool:
        """Pass on a piece, if there is one and room for it; whether it did."""
        if not self._waiting or not self.wanted:
            return False
        data = self._waiting.popleft()
        if data:
            self._pass_on(data)
            self._grant(len(data))
        else:
            self.finish()
        return True

    def cut(self) -> None:
        """Ask the agent to take what is in the pipe, and no more."""
        if not self._asked:
            self._asked = True
            self._ask_cut()


class Output:
    """All streams and both sinks of a job."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        environ: Mapping[str, str],
        *,
        json: bool,
        log_dir: str | None = None,
    ) -> None:
        self._selector = selector
        self._environ = environ
        self._streams: list[Stream] = []
        self._fed: list[FedStream] = []
        self.out: Sink = Sink(selector, 1)
        same = _identity(1) == _identity(2)
        self.err: Sink = self.out if same else Sink(selector, 2)
        self._ranks_out = self.err if json else self.out
        self._logs = Logs(log_dir)

    def attach(self, fd: int, *, rank: int, stderr: bool, tail: Tail | None) -> Stream:
        """Take over the reading end of a rank's pipe. `rank`: negative for a spare."""
        os.set_blocking(fd, False)
        sink = self._sink(stderr=stderr)
        prefix = rank_prefix(rank, stderr=stderr, colour=self._colourful(sink))
        stream = Stream(fd, sink, prefix, tail)
        if rank >= 0:
            stream.log = self._logs.of(rank, stderr=stderr)
        self._streams.append(stream)
        return stream

    def rename(self, streams: Sequence[Pipe], rank: int, host: str = "") -> None:
        """A spare is this rank from here on. `streams`: its stdout and stderr, from attach()."""
        for stderr, stream in enumerate(streams):
            assert isinstance(stream, Stream)
            colour = self._colourful(stream.sink)
            stream.lines.rename(rank_prefix(rank, host, stderr=bool(stderr), colour=colour))
            stream.log = self._logs.of(rank, stderr=bool(stderr))

    def attach_fed(
        self,
        *,
        rank: int,
        host: str,
        stderr: bool,
        tail: Tail | None,
        grant: Callable[[int], None],
        ask_cut: Callable[[], None],
    ) -> FedStream:
        """Make the end of a stream that comes from another host."""
        sink = self._sink(stderr=stderr)
        prefix = rank_prefix(rank, host, stderr=stderr, colour=self._colourful(sink))
        stream = FedStream(sink, prefix, tail, grant, ask_cut)
        if rank >= 0:
            stream.log = self._logs.of(rank, stderr=stderr)
        self._fed.append(stream)
        return stream

    def _sink(self, *, stderr: bool) -> Sink:
        return self.err if stderr else self._ranks_out

    def say(self, lines: list[str]) -> None:
        """Write lines of the launcher's own to stderr."""
        self.err.push("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))

    def settle(self) -> None:
        """Write what can be written, and read only those streams whose sink has room."""
        for stream in self._streams:
            if stream.cut_off:
                stream.read()
        self._settle_sinks()
        # No descriptor tells of what waits here: go on until the sinks are full.
        while self._pump():
            self._settle_sinks()
        for stream in self._streams:
            self._watch(stream)
        self._streams = [stream for stream in self._streams if stream.open]
        self._fed = [stream for stream in self._fed if stream.open]

    def _pump(self) -> bool:
        """Pass on a piece of each stream that has one; whether there was any."""
        moved = [stream.pump() for stream in self._fed]
        return any(moved)

    def _settle_sinks(self) -> None:
        for sink in {self.out, self.err}:
            sink.settle()

    @property
    def busy(self) -> bool:
        """Whether a hold may run out soon, of which no descriptor will tell."""
        return any(sink.owner is not None for sink in {self.out, self.err})

    @property
    def empty(self) -> bool:
        """Whether everything was written, or can never be."""
        return self.out.empty and self.err.empty

    @property
    def lost(self) -> str | None:
        """Why the output can no longer be written, if so."""
        if self.out.lost is not None:
            return f"stdout: {self.out.lost}"
        return None if self.err.lost is None else f"stderr: {self.err.lost}"

    def abandon(self) -> None:
        """Drop what could not be written: whoever reads it does not, and the job has to end."""
        for sink in {self.out, self.err}:
            sink.abandon()

    def close(self) -> None:
        """Give up all descriptors."""
        for stream in self._streams:
            stream.open = False
            self._watch(stream)
        for sink in {self.out, self.err}:
            sink.close()
        self._logs.close()

    def _watch(self, stream: Stream) -> None:
        if stream.wanted and not stream.registered:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream.read)
        elif stream.registered and not stream.wanted:
            self._selector.unregister(stream.fd)
        stream.registered = stream.wanted
        if not stream.open:
            os.close(stream.fd)

    def _colourful(self, sink: Sink) -> bool:
        if self._environ.get("NO_COLOR"):
            return False
        if self._environ.get("FORCE_COLOR"):
            return True
        return sink.terminal and self._environ.get("TERM") != "dumb"


def rank_prefix(rank: int, host: str = "", *, stderr: bool, colour: bool) -> bytes:
    """Return "[r2] " or "[r2 host-b] ", in the rank's colour on a terminal, bold for stderr.

    A spare has a negative rank: "[spare] ".
    """
    who = f"r{rank}" if rank >= 0 else "spare"
    plain = f"[{who} {host}] " if host else f"[{who}] "
    if not colour:
        return plain.encode()
    bold = "1;" if stderr else ""
    return f"\x1b[{bold}{COLOURS[rank % len(COLOURS)]}m{plain}\x1b[0m".encode()


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino)


def _reopened(fd: int) -> int | None:
    """Return a non-blocking descriptor of our own for a terminal or a pipe, if there is a way.

    O_NONBLOCK belongs to the open file, which we share with the shell and others, so it is never
    set on `fd` itself.
    """
    if not (os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)):
        return None
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(os.ttyname(fd) if os.isatty(fd) else f"/proc/self/fd/{fd}", flags)
    return None


def pollable(fd: int) -> bool:
    """Whether a selector can wait for it: not for a file, which is always ready."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


def bytes_in(fd: int) -> int:
    """Return how much can be read from a pipe at once."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
