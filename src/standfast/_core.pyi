"""
The native core, as Python sees it (made by bind/). group.py and rendezvous/ call it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

# Written by `make stubs` from bind/; what is changed here by hand is lost.

FRAME_BYTES: int

SHM_BYTES: int

def shm_create(*, ranks_here: int = 2) -> tuple[str, int]:
    """
    Make a segment of SHM_BYTES, mode 0600, with a random name; return (name, descriptor).

    ranks_here: of how many ranks of this host the pair is one; where they are many, it takes only
    some of its pages now. OSError if there is no room for the segments of all their pairs.
    """

def shm_attach(name: str) -> int:
    """
    Open a segment made by shm_create; return its descriptor. OSError if it can't be.
    """

def shm_unlink(name: str) -> None:
    """Remove the name; a name that is already gone is no error."""

def shm_sweep() -> list[str]:
    """Remove segments whose maker's process is gone; return their names."""

def buffer_view(
    x: object, writable: bool
) -> tuple[int, int, str, tuple[int, ...], bool, bool] | None:
    """
    Return (address, nbytes, format, shape, c_contiguous, readonly) of a buffer, or None.
    """

def learn_numpy(samples: list[tuple[Any, int]], empty: Callable[..., Any]) -> bool:
    """
    Look at (array, dtype code) samples; tell whether shortcuts can read such arrays themselves.

    empty: numpy.empty, which makes their results.
    """

def learn_numpy_dtype(dtype: object, code: int) -> None:
    """Learn a dtype that no buffer has: bfloat16."""

def shared_memory(nbytes: int) -> memoryview | None:
    """
    Return zeroed memory that other ranks of this host can map; None where there is none.

    It goes back when the last view of it goes. MemoryError if there is not enough.
    """

def shared_memory_taken() -> int:
    """Return how many bytes of such memory are in use, in whole pages."""

class VerbsError(RuntimeError):
    """
    What is wrong with RDMA; args: code, text, hint, device, and the library's number or 0.
    """

RAILS_MAX: int

def verbs_devices(library: str) -> list[dict[str, Any]]:
    """
    Describe all devices; VerbsError where there are none. library: "" for the system's.
    """

class Rails:
    """What carries data to one peer over RDMA; a WireSpec takes it."""

class Station:
    """
    This rank's RDMA devices while a group is being formed. Every call may raise VerbsError.

    cells: by peer, the (device, port, address or "") of each rail. addresses() gives what the peer
    passes to its connect(): a tuple per rail, in the order of RailEnd. renew() makes new queue
    pairs in place of those that connect() has used.
    """

    def __init__(
        self, *, library: str, cells: Mapping[int, Sequence[tuple[str, int, str]]]
    ) -> None: ...
    def addresses(
        self, peer: int, *, likely: Sequence[str]
    ) -> list[tuple[str, int, int, bytes, int, int, int, int, int, int]]: ...
    def connect(
        self,
        peer: int,
        theirs: Sequence[tuple[str, int, int, bytes, int, int, int, int, int, int]],
        *,
        peer_text: str,
        key: int,
        first: bool,
    ) -> None: ...
    def renew(self, peer: int) -> None: ...
    def greet(self, peer: int) -> None: ...
    def is_greeted(self, peer: int) -> bool: ...
    def silent_rails(self, peer: int) -> str: ...
    def text(self, peer: int) -> str: ...
    def release(self, peer: int) -> Rails: ...

class JacclEngine:
    """JACCL's operations over connected queue pairs; a Group takes it."""

class JacclStation:
    """
    This rank's queue pairs while a JACCL group is being formed. Calls may raise VerbsError.

    berths: (peer, device, port, address or "") of each, in JACCL's order: for a mesh by rank, for a
    ring all to the left, then all to the right. A record is (lid, queue pair, PSN, GID).
    """

    def __init__(self, *, library: str, berths: Sequence[tuple[int, str, int, str]]) -> None: ...
    def records(self) -> list[tuple[int, int, int, bytes]]: ...
    def connect(
        self, berth: int, theirs: tuple[int, int, int, bytes], *, peer_text: str
    ) -> None: ...
    def text(self, berth: int) -> str: ...
    def release(
        self, *, rank: int, size: int, is_ring: bool, has_large_frames: bool, stock: Sequence[int]
    ) -> JacclEngine: ...

class Peer:
    """A member of the group, as the core needs to know it."""

    def __init__(self, rank: int, host: str, pid: int, same_host: bool) -> None: ...

class WireSpec:
    """
    A data connection that rendezvous has made; the core then owns its descriptors.

    fabric: "shm", "tcp" or "verbs". fd: the pair's connected stream socket (the doorbell, for shm).
    shm_fd: the segment, or -1. first: True on the lower rank, which sends on the first lane.
    link: text for messages, e.g. "shm" or "tcp 10.0.0.3:41234". rails: of "verbs".
    """

    def __init__(
        self,
        *,
        rank: int,
        fabric: str,
        fd: int,
        shm_fd: int,
        first: bool,
        link: str,
        rails: Rails | None = None,
    ) -> None: ...

class Request:
    """
    One operation: what, from where, to where, how many elements. Unused addresses are 0.
    """

    def __init__(
        self,
        *,
        kind: str,
        src: int = 0,
        dst: int = 0,
        count: int = 0,
        dtype: int = 5,
        op: str = "sum",
        peer: int = 0,
        tag: int = 0,
        timeout_s: float = 0.0,
        meta: bytes = ...,
    ) -> None: ...
    @property
    def peer(self) -> int: ...
    @property
    def tag(self) -> int: ...

class Failure:
    """
    Why an operation did not end well. kind is a key of errors.BY_KIND, or "interrupted".
    """

    @property
    def kind(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def reporter(self) -> int: ...
    @property
    def cause(self) -> str: ...
    @property
    def evidence(self) -> list[str]: ...
    @property
    def remote_type(self) -> str: ...
    @property
    def remote_message(self) -> str: ...
    @property
    def remote_traceback(self) -> str: ...
    @property
    def detected_ns(self) -> int: ...
    @property
    def op(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def waiting_for(self) -> int: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def bytes_total(self) -> int: ...

class Pending:
    """An operation handed to the core's own threads."""

    def done(self) -> bool: ...
    def wait(self, timeout_s: float) -> bool:
        """
        Wait without the GIL; False when the time ran out. A signal handler may raise.
        """

    def failure(self) -> Failure | None: ...
    @property
    def source(self) -> int:
        """The rank that a receive from any took its message from; else -1."""

    def blob(self) -> memoryview: ...

def beacon_open(*, maker: int, key: str, size: int) -> tuple[str, int]:
    """
    Open the memory for the beacons of a group of `size`, or make it; return (name, descriptor).

    The name is made of the pid `maker` and 12 hex digits. ("", -1) where there are no beacons.
    """

class Hint:
    """
    What one rank sees of another. kind: see hints.Hint. since_ns: when this rank heard of it.
    """

    @property
    def kind(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def reporter(self) -> int: ...
    @property
    def cause(self) -> str: ...
    @property
    def evidence(self) -> list[str]: ...
    @property
    def since_ns(self) -> int: ...

class Group:
    """The native group: wires, wait, watch. Closed and freed by close()."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        generation: int,
        peers: Sequence[Peer],
        control: Sequence[tuple[int, int]],
        wires: Sequence[WireSpec],
        topology: str,
        verify: bool,
        ranks_here: int,
        limits_s: tuple[float, float, float, float, float],
        close_linger_s: float,
        exit_on_fault: bool,
        exit_grace_s: float,
        handle_sigterm: bool,
        logs: bool,
        beacon_fd: int,
        sentinel: str,
        jaccl: JacclEngine | None = None,
        stock: Sequence[int] = [],
    ) -> None: ...
    def run(self, request: Request, /) -> Failure | None:
        """
        Run one operation in this thread, without the GIL; None when it is done.
        """

    def run_blob(self, request: Request, /) -> Failure | memoryview:
        """
        As run, where only the sender knows the size: recv_bytes, gather_bytes, scatter.
        """

    def submit(self, request: Request, /) -> Pending:
        """Queue an operation behind those submitted before; returns at once."""

    def completion_fd(self) -> int:
        """
        A descriptor that becomes readable whenever a submitted operation ends.
        """

    def drain_completions(self) -> None: ...
    def sentinel_trouble(self) -> str:
        """
        Why nobody stands in for the neighbours of a rank that has none, or "".
        """

    def native(self, rank: int, size: int) -> object:
        """
        A capsule by which native code of others runs operations: include/standfast/native.h.
        """

    def hints(self) -> list[Hint]:
        """What is suspect at the moment; all ranks have the same."""

    def await_news(self, seen: int, timeout_s: float) -> int:
        """
        Sleep without the GIL until the counter of news differs from `seen`; return it.

        News: hints began or ended, there is a verdict, the group closes.
        """

    def beat(self, label: str, step: int) -> None:
        """
        The program's own progress, where it does not use the group's operations.
        """

    def idle(self) -> None:
        """
        The program has nothing to do: no progress is expected of it until the next beat.
        """

    def healthy(self) -> bool: ...
    def failure(self) -> Failure | None:
        """The group's first cause, or None."""

    def taken(self) -> None:
        """
        The failure has reached the program: the exit timer is off from here on.
        """

    def abort(self, reason: str) -> None: ...
    def fail(self, type: str, message: str, traceback: str) -> None:
        """Tell the peers that this rank's program raised."""

    def close(self, how: str) -> str:
        """
        End the group: how is "orderly", "interrupted" or "failed"; returns how it ended.
        """

_Method = TypeVar("_Method", bound=Callable[..., Any])

class Anchor:
    """The base of Group, by which shortcuts find the core. Holds the attribute _over."""
    def _anchor(self, core: Group, rank: int, size: int) -> None: ...

def shortcut(method: _Method, /) -> _Method:
    """
    Let usual arguments take a short way past a method of Group, known by its name.

    The method is called where they are unusual or wrong. Group must have _stopped() and
    _cut_short() for what ends an operation.
    """

class Machine:
    """
    The watch's rules: a pure function of state, event and time, in nanoseconds. For tests.
    """

    def __init__(
        self, *, rank: int, size: int, heartbeat: int, hint: int, silence: int, progress: int
    ) -> None: ...
    def step(
        self,
        kind: str,
        now: int,
        *,
        rank: int = -1,
        frame: str = "",
        verdict: str = "none",
        about: int = -1,
        suspicion: bool = False,
        status: tuple[int, int, int] = (0, -1, 0),
        sights: Sequence[tuple[int, int]] = [],
    ) -> tuple[
        list[tuple[int, str, str, int]], tuple[str, int] | None, list[tuple[str, int]], list[int]
    ]:
        """
        Return (sends, verdict, hints, hints over).

        A send is (to, frame, verdict kind, about); a verdict or hint is (kind, rank).
        status: collectives begun, the rank that is waited for or -1, for how long.
        sights, by rank: when its data came, when its host had acknowledged everything.
        """

    def wakes_at(self) -> int: ...
    def is_review_due(self, now: int) -> bool: ...
    def is_decided(self) -> bool: ...

def measure_limit(name: str) -> list[float]:
    """
    Measure what this machine allows, for a second or so; samples in bytes/s or seconds.

    name: copy, copy_cached, copy_on_two, add, spin, wake_up, tcp_blocking, tcp_polling, tcp_stream
    (core/limits/limits.h). Empty: it takes two cores, and this process may use one only.
    """

def damage_next(on: bool) -> None:
    """For tests: let the next comparison of results find damage."""

def throw_in(thread: str) -> None:
    """For tests: let one of the core's own threads, watch or worker, fail."""
