"""The native core, as Python sees it (made by bind/). group.py and rendezvous/ call it."""

from typing import final

FRAME_BYTES: int
SHM_BYTES: int
"""Bytes of one pair's shared segment."""

def shm_create() -> tuple[str, int]:
    """Make a segment of SHM_BYTES, mode 0600, with a random name; return (name, descriptor)."""

def shm_attach(name: str) -> int:
    """Open a segment made by shm_create; return its descriptor. OSError if it can't be."""

def shm_unlink(name: str) -> None:
    """Remove the name; a name that is already gone is no error."""

def shm_sweep() -> list[str]:
    """Remove segments whose maker's process is gone; return their names."""

def buffer_view(
    x: object, writable: bool
) -> tuple[int, int, str, tuple[int, ...], bool, bool] | None:
    """Return (address, nbytes, format, shape, c_contiguous, readonly) of a buffer, or None."""

@final
class Peer:
    """A member of the group, as the core needs to know it."""
    def __init__(self, rank: int, host: str, pid: int, same_host: bool) -> None: ...

@final
class WireSpec:
    """A data connection that rendezvous has made; the core then owns its descriptors.

    fabric: "shm" or "tcp". fd: the pair's connected stream socket (the doorbell, for shm).
    shm_fd: the segment, or -1. first: True on the lower rank, which sends on the first lane.
    link: text for messages, e.g. "shm" or "tcp 10.0.0.3:41234".
    """
    def __init__(
        self, *, rank: int, fabric: str, fd: int, shm_fd: int, first: bool, link: str
    ) -> None: ...

@final
class Request:
    """One operation: what, from where, to where, how many elements. Unused addresses are 0."""
    def __init__(
        self,
        *,
        kind: str,
        src: int = 0,
        dst: int = 0,
        count: int = 0,
        dtype: int = 0,
        op: str = "sum",
        peer: int = 0,
        tag: int = 0,
        timeout_s: float = 0.0,
        meta: bytes = b"",
    ) -> None: ...

@final
class Failure:
    """Why an operation did not end well. kind is a key of errors.BY_KIND, or "interrupted"."""

    kind: str
    rank: int
    reporter: int
    cause: str
    evidence: list[str]
    remote_type: str
    remote_message: str
    remote_traceback: str
    op: str
    seq: int
    waiting_for: int
    waited_s: float
    bytes_done: int
    bytes_total: int
    detected_ns: int

@final
class Pending:
    """An operation handed to the core's own threads."""
    def done(self) -> bool: ...
    def wait(self, timeout_s: float) -> bool:
        """Wait without the GIL; False when the time ran out. A signal handler may raise."""
    def failure(self) -> Failure | None: ...
    def blob(self) -> memoryview: ...

@final
class Group:
    """The native group: wires, wait, watch. Closed and freed by close()."""
    def __init__(
        self,
        *,
        rank: int,
        size: int,
        generation: int,
        peers: list[Peer],
        control: list[tuple[int, int]],
        wires: list[WireSpec],
        topology: str,
        ranks_here: int,
        progress_s: float,
        close_linger_s: float,
        exit_on_fault: bool,
        exit_grace_s: float,
        handle_sigterm: bool,
    ) -> None: ...
    def run(self, request: Request) -> Failure | None:
        """Run one operation in this thread, without the GIL; None when it is done."""
    def run_blob(self, request: Request) -> Failure | memoryview:
        """As run, where only the sender knows the size: recv_bytes, gather_bytes, scatter."""
    def submit(self, request: Request) -> Pending:
        """Queue an operation behind those submitted before; returns at once."""
    def completion_fd(self) -> int:
        """A descriptor that becomes readable whenever a submitted operation ends."""
    def drain_completions(self) -> None: ...
    def healthy(self) -> bool: ...
    def failure(self) -> Failure | None:
        """The group's first cause, or None."""
    def taken(self) -> None:
        """The failure has reached the program: the exit timer is off from here on."""
    def abort(self, reason: str) -> None: ...
    def fail(self, type: str, message: str, traceback: str) -> None:
        """Tell the peers that this rank's program raised."""
    def close(self, how: str) -> str:
        """End the group: how is "orderly", "interrupted" or "failed"; returns how it ended."""
