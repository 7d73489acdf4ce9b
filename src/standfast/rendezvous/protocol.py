"""The frames of rendezvous: fixed opening bytes, then length-prefixed msgpack. Pure.

Any change here, however small, raises VERSION: the opening bytes are all that two versions share.
docs/design/rendezvous.md shows who sends what when.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

T = TypeVar("T")

VERSION = 4
MAGIC = b"\x89STFAST"
OPENING = MAGIC + bytes([VERSION])
LENGTH = struct.Struct(">I")

# From strangers, and from members of the group.
FRAME_BYTES_MAX = 8 * 1024
MEMBER_FRAME_BYTES_MAX = 4 * 1024 * 1024

NONCE_BYTES = 32
TEXT_MAX = 1024
# Texts of ours that are sent in a hello.
NAME_MAX = 255
# What a rank may say of the state that it holds.
STATE_BYTES_MAX = 64

Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Name = Annotated[str, Meta(max_length=NAME_MAX)]
Rank = Annotated[int, Meta(ge=0, lt=2**31)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Number = Annotated[int, Meta(ge=0, lt=2**32)]
State = Annotated[bytes, Meta(max_length=STATE_BYTES_MAX)]
Check = Annotated[bytes, Meta(max_length=64)]

CONTROL = "control"
DATA = "data"
REFORM = "reform"
# Between the launchers of a job's nodes (standfast.launch), before there is any rank.
LAUNCHER = "launcher"

# In place of a rank in a Begin of a re-forming: who somebody is stands in the body there.
EVERYBODY = 2**31 - 1

# Kinds of Refused that are no errors. AGAIN: not here, or not yet. LED: I serve already, follow me.
AGAIN, LED = NO_ERRORS = "again", "led"


class Challenge(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="challenge"):
    """The listening side's first frame. local_only: it can be reached from this machine alone."""

    nonce: Nonce
    keyed: bool
    local_only: bool


class Begin(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begin"):
    """The connecting side's answer: who calls whom, what for, and the proof over all of it."""

    purpose: Name
    rank: Rank
    target: Rank
    nonce: Nonce
    keyed: bool
    body: Annotated[bytes, Meta(max_length=FRAME_BYTES_MAX)]
    proof: Annotated[bytes, Meta(max_length=64)]


class Hello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a rank says about itself: the body of its Begin on a control connection.

    wires: the ranks are to be joined by wires; without them, they only watch each other.
    addresses, port: where it listens for data; explicit: it was told to listen there only.
    """

    version: Name
    size: int
    generation: int
    wires: bool
    name: Name
    job_id: Name | None
    settings: dict[str, str | float | bool]
    host: Name
    host_id: Name
    pid: int
    port: Port
    addresses: Annotated[list[Name], Meta(max_length=16)]
    explicit: bool


class Refused(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="refused"):
    """Why the listening side does not go on. kind: that of the error to raise."""

    kind: Name
    text: Text
    hint: Text | None = None


class Joined(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="joined"):
    """The coordinator takes this rank in, and proves itself."""

    proof: bytes


class Waiting(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="waiting"):
    """The coordinator still waits for these ranks."""

    missing: list[Rank]


class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rank, in the table of all; see Hello. Rank 0 has no addresses unless explicit."""

    host: Name
    host_id: Name
    pid: int
    port: Port
    addresses: list[Name]
    explicit: bool


class Table(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="table"):
    """Everybody came: all ranks in order, and the token that opens their data ports."""

    token: Nonce
    ranks: list[Entry]


class Offer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="offer"):
    """The lower rank of a pair proves itself and says what will carry data; segment: for shm."""

    proof: bytes
    fabric: Name
    segment: Name


class Attached(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="attached"):
    """The higher rank of a pair holds the segment, or tells why it cannot."""

    ok: bool
    reason: Text


class RailEnd(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One end of a cable that carries RDMA, as the core's RailAddress has it."""

    device: Name
    port: Annotated[int, Meta(ge=1, le=255)]
    lid: Port
    gid: Annotated[bytes, Meta(min_length=16, max_length=16)]
    gid_type: Annotated[int, Meta(ge=-1, le=2)]
    layer: Annotated[int, Meta(ge=0, le=2)]
    type: Annotated[int, Meta(ge=2, le=3)]
    mtu: Annotated[int, Meta(ge=1, le=5)]
    small: Number
    large: Number


class Ends(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ends"):
    """The ends of a pair's cables at the sender; key: the lower rank's choice for both.

    topology: what the sender's device file allows; it must be the same on all ranks. attempt: from
    1; addresses may have moved when the first fails.
    """

    ends: Annotated[list[RailEnd], Meta(min_length=1, max_length=4)]
    key: Number
    topology: Name
    attempt: Number


class Linked(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="linked"):
    """The sender has joined its ends to those it was told; messages may come to it."""

    attempt: Number


class Trouble(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="trouble"):
    """A rank still has no wire to these peers; the coordinator quotes it at the deadline."""

    peers: list[Rank]
    text: Text


class Ready(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ready"):
    """A rank has its wires to all others. check: of the table that it has; state: what it holds."""

    check: Check = b""
    state: State = b""


class Expired(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="expired"):
    """A rank's own deadline has passed; it came earlier than the coordinator, or waits less."""

    timeout_s: float


class Go(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="go"):
    """All ranks are ready. The last frame of rendezvous on a control link.

    check: of the table that all have. states: what each rank holds, by rank.
    """

    check: Check = b""
    states: list[State] = []


class Failed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="failed"):
    """Why the group is not formed: an error's kind, words and fields."""

    kind: Name
    message: str
    hint: str | None
    fields: dict[str, Any]


class Comer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who calls in a re-forming: the body of its Begin.

    hello: as for forming a group; its generation is the one that this process was in. group: id of
    the group; "" for a newcomer. number: what this process is called in all generations of the
    group, or -1. follows: wants to be led; otherwise only asks whether the callee is there.
    attempted, top: the highest generation and the highest number that it knows of.
    """

    hello: Hello
    group: Name
    number: int
    follows: bool
    attempted: int
    top: int


class Outcome(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="outcome"):
    """Who forms the new group, in the order of its ranks.

    rank: the receiver's. port: where rank 0 listens, at the address where it was found. old_ranks:
    each one's rank in the group before, -1 for newcomers. full_size: ranks when nobody is missing.
    """

    group: Name
    generation: int
    rank: Rank
    port: Port
    numbers: list[int]
    old_ranks: list[int]
    full_size: int


class Malformed(Exception):
    """What came is no frame of this protocol."""


class Reader(Generic[T]):
    """Decodes the payload of the frames that may come next, and no others."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def read(self, payload: bytes) -> T:
        """Return the message; Malformed if it is something else."""
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"an unexpected frame: {error}") from error


_encode = msgspec.msgpack.Encoder().encode


def encode(message: Struct) -> bytes:
    """Return a message's payload, without its length."""
    return _encode(message)


def frame(message: Struct) -> bytes:
    """Return a message as it goes over a connection."""
    payload = _encode(message)
    return LENGTH.pack(len(payload)) + payload


def clipped(text: str, limit: int = TEXT_MAX) -> str:
    """Return a text made to fit its field, and to be one line wherever it is shown."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
