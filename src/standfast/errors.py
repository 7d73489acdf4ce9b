"""What can go wrong, as exceptions with fields. Raised by every layer; imports only exits.

::

    StandfastError
    ├── ConfigError            (ValueError)       wrong or contradictory arguments or environment
    ├── RendezvousError                           the group could not be formed before the deadline
    │   └── FabricError                           RDMA could not be set up
    ├── PeerError              (ConnectionError)  a peer is gone or cannot be reached
    │   ├── PeerDied                              its process ended without a goodbye
    │   ├── PeerLeft                              it closed its group while others still needed it
    │   ├── RemoteFailure                         its program raised
    │   ├── PeerUnreachable                       neither control traffic nor data comes from it
    │   ├── PeerStalled                           it answers, but does not go on
    │   └── LinkLost                              the connection broke while the peer lives
    ├── NoProgress             (TimeoutError)     an operation's time limit ran out
    ├── CollectiveMismatch     (ValueError)       ranks are in different operations
    │   ├── MessageMismatch                       a send and its recv disagree
    │   └── DigestMismatch                        verify=True: a rank has other data than the others
    ├── GroupAborted                              somebody called group.abort(reason)
    ├── GroupClosed            (RuntimeError)     used after close(), or in a forked child
    ├── StaleGroup             (RuntimeError)     the ranks have formed a later generation of it
    └── InternalError          (RuntimeError)     our bug; please report it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from standfast import exits

FIELDS = (
    "rank",
    "host",
    "cause",
    "evidence",
    "reporter",
    "here",
    "op",
    "seq",
    "waiting_for",
    "link",
    "waited_s",
    "bytes_done",
    "bytes_total",
    "generation",
    "detected_ns",
)


class StandfastError(Exception):
    """Above every error of this package.

    A field that does not apply is None.

    Fields:
        rank: the rank that the error is about: the one that died, left, raised, ...
        host: the host of that rank.
        cause: what was seen, e.g. ``"control link closed without goodbye"``.
        evidence: further observations, each with its time, as strings.
        reporter: the rank that saw it first.
        here: the rank that raises this.
        op, seq: the operation this rank was in, and its number (counted from 1).
        waiting_for: the rank whose data this rank was waiting for.
        link: the wire to that rank, e.g. ``"shm"`` or ``"tcp 10.0.0.3:41234"``.
        waited_s: seconds since the operation began.
        bytes_done: what this rank had received in the operation, from all ranks together.
        bytes_total: size of this rank's buffer.
        generation: of the group.
        detected_ns: CLOCK_MONOTONIC nanoseconds at which this rank learned of it.
        hint: what to do about it.
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = exits.FAILURE

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        unknown = fields.keys() - set(FIELDS) - set(self.extra_fields())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {sorted(unknown)}")
        self.message = message
        self.hint = hint
        self.rank: int | None = fields.get("rank")
        self.host: str | None = fields.get("host")
        self.cause: str | None = fields.get("cause")
        self.evidence: tuple[str, ...] = tuple(fields.get("evidence") or ())
        self.reporter: int | None = fields.get("reporter")
        self.here: int | None = fields.get("here")
        self.op: str | None = fields.get("op")
        self.seq: int | None = fields.get("seq")
        self.waiting_for: int | None = fields.get("waiting_for")
        self.link: str | None = fields.get("link")
        self.waited_s: float | None = fields.get("waited_s")
        self.bytes_done: int | None = fields.get("bytes_done")
        self.bytes_total: int | None = fields.get("bytes_total")
        self.generation: int | None = fields.get("generation")
        self.detected_ns: int | None = fields.get("detected_ns")
        for name in self.extra_fields():
            setattr(self, name, fields.get(name))
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")

    @classmethod
    def extra_fields(cls) -> Sequence[str]:
        """Names of the fields that this class adds to those of StandfastError."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return type, message, hint and every field that is set, fit for JSON."""
        values: dict[str, Any] = {"type": type(self).__name__, "kind": self.kind}
        values["message"] = self.message
        values["hint"] = self.hint
        for name in (*FIELDS, *self.extra_fields()):
            values[name] = getattr(self, name)
        values["evidence"] = list(self.evidence)
        return {name: value for name, value in values.items() if value not in (None, [])}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and fields, so that errors cross multiprocessing queues whole."""
        fields = {name: getattr(self, name) for name in (*FIELDS, *self.extra_fields())}
        return (_rebuild, (type(self), self.message, self.hint, fields))


def _rebuild(
    cls: type[StandfastError], message: str, hint: str | None, fields: Mapping[str, Any]
) -> StandfastError:
    return cls(message, hint=hint, **fields)


class ConfigError(StandfastError, ValueError):
    """Arguments or environment are wrong or contradict each other; names variables and values."""

    kind = "config"
    exit_code = exits.CONFIG


class RendezvousError(StandfastError):
    """The group could not be formed.

    Fields:
        missing: the ranks that did not come.
        address: the coordinator's address.
        attempts: how often this rank tried to connect.
    """

    kind = "rendezvous"
    exit_code = exits.UNAVAILABLE
    missing: Sequence[int] | None
    address: str | None
    attempts: int | None

    @classmethod
    def extra_fields(cls) -> Sequence[str]:
        """Names of the fields that this class adds."""
        return ("missing", "address", "attempts")


class FabricError(RendezvousError):
    """RDMA could not be set up: on one rank, and so for all.

    Where and what is told by rank, host and cause.

    Fields:
        code: the case, for programs; it never changes, e.g. ``"port_down"``.
        device: the RDMA device, e.g. ``"rdma_en5"``.
        error: the number that the verbs library gave, if it gave one (on macOS, and in its
            emulation: 22 EINVAL, 60 ETIMEDOUT, 102 EOPNOTSUPP).
        peer: the rank to which the device leads, where one is meant.
    """

    kind = "fabric"
    code: str | None
    device: str | None
    error: int | None
    peer: int | None

    @classmethod
    def extra_fields(cls) -> Sequence[str]:
        """Names of the fields that this class adds."""
        return (*super().extra_fields(), "code", "device", "error", "peer")


class PeerError(StandfastError, ConnectionError):
    """A peer is gone or cannot be reached; forming the group again is sensible."""

    kind = "peer"
    exit_code = exits.RETRY


class PeerDied(PeerError):
    """A peer's process ended without a goodbye: a signal, a crash, ``_exit``."""

    kind = "died"


class PeerLeft(PeerError):
    """A peer closed its group, or was interrupted, while this operation needed it."""

    kind = "left"


class RemoteFailure(PeerError):
    """A peer's program raised.

    Fields:
        remote_type: name of the exception's class there.
        remote_message: its text.
        remote_traceback: the last lines of its traceback.
    """

    kind = "failed"
    remote_type: str | None
    remote_message: str | None
    remote_traceback: str | None

    @classmethod
    def extra_fields(cls) -> Sequence[str]:
        """Names of the fields that this class adds."""
        return ("remote_type", "remote_message", "remote_traceback")


class PeerUnreachable(PeerError):
    """Neither control traffic nor data came from a peer for the silence limit."""

    kind = "unreachable"


class PeerStalled(PeerError):
    """A peer answers, but did not go on within its limit."""

    kind = "stalled"


class LinkLost(PeerError):
    """The connection to a peer broke while the peer itself lives."""

    kind = "link_lost"


class NoProgress(StandfastError, TimeoutError):
    """An operation's ``timeout_s``, or the group's progress limit, ran out."""

    kind = "no_progress"
    exit_code = exits.RETRY


class CollectiveMismatch(StandfastError, ValueError):
    """Ranks are in different operations, or in the same one with other sizes, dtypes or roots."""

    kind = "mismatch"
    exit_code = exits.MISMATCH


class MessageMismatch(CollectiveMismatch):
    """A send and its recv disagree in tag, dtype or size."""

    kind = "message_mismatch"


class DigestMismatch(CollectiveMismatch):
    """With ``verify=True``: what a rank has is not what another has, or sent."""

    kind = "digest_mismatch"


class GroupAborted(StandfastError):
    """Somebody called ``group.abort(reason)``; the reason is in ``cause``."""

    kind = "aborted"
    exit_code = exits.RETRY


class GroupClosed(StandfastError, RuntimeError):
    """The group was used after ``close()``, or in a child made by fork."""

    kind = "closed"


class StaleGroup(StandfastError, RuntimeError):
    """This generation of the group is over: the others went on with, or this rank is in, a later.

    Raised by calls on a group that has been formed again, by a process that comes to join a
    generation that is past, and by a rank without which the others went on.
    """

    kind = "stale"
    exit_code = exits.RETRY


class InternalError(StandfastError, RuntimeError):
    """A bug in standfast; please report it."""

    kind = "internal"
    exit_code = exits.SOFTWARE


BY_KIND: Mapping[str, type[StandfastError]] = {
    cls.kind: cls
    for cls in (
        PeerDied,
        PeerLeft,
        RemoteFailure,
        PeerUnreachable,
        PeerStalled,
        LinkLost,
        NoProgress,
        CollectiveMismatch,
        MessageMismatch,
        DigestMismatch,
        GroupAborted,
        GroupClosed,
        InternalError,
    )
}
