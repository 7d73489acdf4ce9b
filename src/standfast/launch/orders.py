"""What the launcher and its agents say to each other, and how it is framed. Pure: bytes to values.

A frame is a 4-byte length and msgpack. An agent's stream begins with MAGIC, since a login shell may
print whatever it likes before. Both ends are of one version: Hello comes first, and is compared.
Processes have keys, which are never given twice: a rank may have several, one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from standfast.launch.environment import Formation, Place

MAGIC = b"\nstandfast agent\n"
NOISE_BYTES_MAX = 1 << 16
FRAME_BYTES_MAX = 1 << 22
WINDOW_BYTES = 1 << 18
"""How much of one stream may be under way. More waits in the rank's pipe, and then in the rank."""
PING_NS = 500_000_000
LEASE_NS = 3_500_000_000
"""Who hears nothing from the other side for so long takes it for lost: the agent kills its ranks,
the launcher counts them as dead. Below the 5 s after which no rank of a lost launcher may live."""
FENCE_NS = 5_000_000_000
"""After so long the ranks of an agent that is not heard of any more are dead."""

T = TypeVar("T")


# --- from the launcher


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Find ports for a generation at `host`, an address of this host's.

    first: rank 0 will run here, so listen for the ranks, and with `watch` for their wardens.
    ring: so many ranks will run here, each with a port for MLX's ring.
    """

    host: str
    watch: bool
    first: bool
    ring: int = 0


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Write files for a generation's ranks of this host: see descriptions.py. "": none."""

    generation: int
    ring: str
    devices: str


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a rank. `path` is where the launcher found the program; it may be elsewhere here.

    A spare is no rank yet: it gets its place by `Seat`.
    """

    formation: Formation
    place: Place
    path: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str
    watch: bool
    kill_after_s: float
    stdin: bool = False
    terminal: Mapping[str, str] = {}
    """COLUMNS and LINES of the launcher's terminal; a host's own win."""
    key: int = 0
    spare: bool = False


class Seat(msgspec.Struct, frozen=True, tag=True):
    """Give a spare a rank's place."""

    key: int
    formation: Formation
    place: Place
    environment: Mapping[str, str]
    terminal: Mapping[str, str] = {}


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to a rank's group."""

    key: int
    signal: int


class Cut(msgspec.Struct, frozen=True, tag=True):
    """Read what is in a pipe already, and no more."""

    key: int
    stderr: bool


class Feed(msgspec.Struct, frozen=True, tag=True):
    """A piece of the launcher's stdin for a rank; nothing at its end."""

    key: int
    data: bytes


class Credit(msgspec.Struct, frozen=True, tag=True):
    """So much of a stream was passed on."""

    key: int
    stderr: bool
    count: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """The launcher lives."""

    sent_ns: int


class Check(msgspec.Struct, frozen=True, tag=True):
    """Say when none of these groups of a lost agent is left."""

    groups: tuple[int, ...]


class Obituary(msgspec.Struct, frozen=True, tag=True):
    """Tell the ranks that still wait for each other what became of one of them."""

    generation: int
    text: str


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """The job is over; `status` is the launcher's exit status."""

    status: int


Order = (
    Prepare
    | Describe
    | Start
    | Seat
    | Tell
    | Feed
    | Cut
    | Credit
    | Ping
    | Check
    | Obituary
    | Goodbye
)


# --- from an agent


class Home(msgspec.Struct, frozen=True):
    """Where process ids mean what they meant: a host, a run of its system, and a space of them."""

    host: str = ""
    boot: str = ""
    space: str = ""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who an agent is. Addresses are those of its connection, empty if it has none.

    boot: what tells this run of the system from its others. space: the same for the space in which
    process ids count, as each container has one.
    """

    version: str
    pid: int
    name: str
    boot: str
    space: str
    address: str
    launcher: str

    @property
    def home(self) -> Home:
        """Where its process ids count."""
        return Home(self.name, self.boot, self.space)


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The ports of `Prepare`. All but `ring` are 0 or None where rank 0 does not run."""

    port: int
    master_port: int
    watch_port: int | None
    jaccl_port: int
    ring: tuple[int, ...] = ()


class Started(msgspec.Struct, frozen=True, tag=True):
    """A rank's process is there."""

    key: int
    pid: int
    started_ns: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A rank could not be started; `status` is what the launcher ends with for that."""

    key: int
    status: int
    text: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A rank's process was reaped. `report` is its report file, if it wrote one."""

    key: int
    status: int
    ended_ns: int
    report: bytes


class Gone(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left of a rank's group."""

    key: int


class Printed(msgspec.Struct, frozen=True, tag=True):
    """A piece of a rank's output; nothing at its end."""

    key: int
    stderr: bool
    data: bytes


class Fed(msgspec.Struct, frozen=True, tag=True):
    """So much of `Feed` was taken, or thrown away since the rank does not want it."""

    key: int
    count: int


class Notice(msgspec.Struct, frozen=True, tag=True):
    """What a rank said to its launcher: see standfast/notices.py."""

    line: bytes


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """Somebody told this node's launcher to end: its ranks got that signal, no other may start."""

    signal: int


class Pong(msgspec.Struct, frozen=True, tag=True):
    """The agent lives; `now_ns` is its own clock."""

    sent_ns: int
    now_ns: int


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The groups of `Check` that are left after FENCE_NS: normally none."""

    living: tuple[int, ...]


News = (
    Hello
    | Listening
    | Started
    | Refused
    | Ended
    | Gone
    | Printed
    | Fed
    | Notice
    | Leaving
    | Pong
    | Checked
)


class Broken(Exception):
    """What came is no frame of ours."""


_encode = msgspec.msgpack.Encoder().encode


@functools.cache
def _decoder(kind: object) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind)


def frame(message: Order | News) -> bytes:
    """Return a message as it is sent."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Takes a stream apart. `magic`: what precedes the first frame, after any noise."""

    def __init__(self, kind: object, *, magic: bytes = b"") -> None:
        self._decode = _decoder(kind).decode
        self._magic = magic
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[object]:
        """Take what came; yield the messages that are whole.

        Raises:
            Broken: it is none of ours.
        """
        self._rest += data
        if self._magic and not self._find_magic():
            return
        while len(self._rest) >= 4:
            size = int.from_bytes(self._rest[:4], "big")
            if size > FRAME_BYTES_MAX:
                raise Broken(f"a frame of {size} bytes")
            if len(self._rest) < 4 + size:
                return
            body = bytes(self._rest[4 : 4 + size])
            del self._rest[: 4 + size]
            try:
                yield self._decode(body)
            except msgspec.MsgspecError as error:
                raise Broken(str(error)) from error

    def _find_magic(self) -> bool:
        at = self._rest.find(self._magic)
        if at < 0:
            if len(self._rest) > NOISE_BYTES_MAX:
                raise Broken(f"{len(self._rest)} bytes, and none of them an agent's")
            return False
        del self._rest[: at + len(self._magic)]
        self._magic = b""
        return True
