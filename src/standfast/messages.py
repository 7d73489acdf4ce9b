"""From the core's Failure to an exception with words: pure functions, called by group.py.

The words follow docs/design/style.md: what happened, to which rank on which host, over which link,
the numbers, the operation and its number; then, on a line of its own, what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from standfast.errors import BY_KIND, GroupClosed, InternalError, RemoteFailure, StandfastError


class Failure(Protocol):
    """What the core says about an operation that did not end well; -1 and "" where unknown."""

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
    @property
    def detected_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Who raises the error, and what it knows about the others.

    hosts, pids: by rank. links: text by rank, without this one. group: "" for the one that init()
    made; the ranks of others are not those that the launcher counts.
    """

    here: int
    hosts: Sequence[str]
    pids: Sequence[int]
    links: Mapping[int, str]
    generation: int
    group: str = ""


def error_of(
    failure: Failure, place: Place, op: str | None = None, what: str = ""
) -> StandfastError:
    """Return the exception for a failure, with message, hint and all fields.

    Args:
        failure: from the core.
        place: this rank, and what it knows about the others.
        op: the operation's name as the user knows it; by default the core's.
        what: the operation's array, e.g. ``"float32[1024]"``.
    """
    cls = GroupClosed if _was_own_signal(failure, place) else BY_KIND.get(failure.kind)
    if cls is None:
        cls = InternalError
    fields: dict[str, Any] = {
        "rank": _known(failure.rank),
        "host": _host(failure.rank, place),
        "cause": failure.cause or None,
        "evidence": tuple(failure.evidence),
        "reporter": _known(failure.reporter),
        "here": place.here,
        "generation": place.generation,
        "detected_ns": failure.detected_ns or None,
    }
    if op or failure.op:
        fields["op"] = op or failure.op
    if failure.op:
        fields |= {
            "seq": failure.seq or None,
            "waiting_for": _known(failure.waiting_for),
            "link": place.links.get(failure.waiting_for),
            "waited_s": failure.waited_s,
            "bytes_done": _known(failure.bytes_done),
            "bytes_total": _known(failure.bytes_total),
        }
    if cls is RemoteFailure:
        fields["remote_type"] = failure.remote_type
        fields["remote_message"] = failure.remote_message
        fields["remote_traceback"] = failure.remote_traceback
    return cls(message(failure, place, op, what), hint=hint(failure, place), **fields)


def message(failure: Failure, place: Place, op: str | None = None, what: str = "") -> str:
    """Return one line: what happened; who saw it first; where that met this rank."""
    headline = _HEADLINES.get(failure.kind, _unknown)
    if _was_own_signal(failure, place):
        headline = _interrupted
    parts = [headline(failure, place), _seen(failure, place), _met(failure, place, op, what)]
    return "; ".join(part for part in parts if part)


def hint(failure: Failure, place: Place) -> str | None:
    """Return what to do about it, or None."""
    rank, host = failure.rank, _host(failure.rank, place)
    if _was_own_signal(failure, place):
        return _HINTS["closed"]
    if failure.kind == "stalled" and host is not None:
        pid = place.pids[rank]
        if any("is stopped" in text for text in failure.evidence):
            return f"on {host}, find out who stopped rank {rank}; kill -CONT {pid} continues it"
        return f"on {host}, look at what rank {rank} does: py-spy dump --pid {pid}"
    if failure.kind == "closed" and "fork" in failure.cause:
        return "call standfast.init() in the child, or start it by spawn instead of fork"
    if failure.kind == "left" and "interrupt" in failure.cause:
        return None  # somebody's wish, not a mistake
    text = _HINTS.get(failure.kind)
    if text is None or ("{rank}" in text and rank < 0):
        return None
    return text.format(rank=rank, host=host or "its host")


def _was_own_signal(failure: Failure, place: Place) -> bool:
    """Tell whether the group ended because a signal had interrupted an operation of this rank."""
    own = failure.kind == "left" and failure.rank == place.here
    return failure.kind == "interrupted" or own


def _died(failure: Failure, place: Place) -> str:
    return f"{_who(failure.rank, place)} died{_because(failure)}"


def _left(failure: Failure, place: Place) -> str:
    return f"{_who(failure.rank, place)} left{_because(failure)}"


def _failed(failure: Failure, place: Place) -> str:
    text = f"{_who(failure.rank, place)} raised {failure.remote_type or 'an exception'}"
    return f"{text}: {failure.remote_message}" if failure.remote_message else text


def _unreachable(failure: Failure, place: Place) -> str:
    return f"{_who(failure.rank, place)} is unreachable{_because(failure)}"


def _stalled(failure: Failure, place: Place) -> str:
    return f"{_who(failure.rank, place)} stalled{_because(failure)}"


def _link_lost(failure: Failure, place: Place) -> str:
    return f"a link of {_who(failure.rank, place)} was lost{_because(failure)}"


def _no_progress(failure: Failure, place: Place) -> str:
    return f"no progress{_because(failure)}"


def _mismatch(failure: Failure, place: Place) -> str:
    return f"ranks disagree{_because(failure)}"


def _message_mismatch(failure: Failure, place: Place) -> str:
    return f"send and recv disagree{_because(failure)}"


def _digest_mismatch(failure: Failure, place: Place) -> str:
    return f"damaged data{_because(failure)}"


def _aborted(failure: Failure, place: Place) -> str:
    return f"{_who(failure.rank, place)} aborted the group{_because(failure)}"


def _closed(failure: Failure, place: Place) -> str:
    return f"the group is closed{_because(failure)}"


def _interrupted(failure: Failure, place: Place) -> str:
    return "the group is over: an operation of this rank was interrupted by a signal"


def _unknown(failure: Failure, place: Place) -> str:
    kind = "" if failure.kind == "internal" else f" ({failure.kind})"
    return f"internal error{kind}{_because(failure)}"


_HEADLINES: Mapping[str, Callable[[Failure, Place], str]] = {
    "died": _died,
    "left": _left,
    "failed": _failed,
    "unreachable": _unreachable,
    "stalled": _stalled,
    "link_lost": _link_lost,
    "no_progress": _no_progress,
    "mismatch": _mismatch,
    "message_mismatch": _message_mismatch,
    "digest_mismatch": _digest_mismatch,
    "aborted": _aborted,
    "closed": _closed,
    "internal": _unknown,
}

_HINTS: Mapping[str, str] = {
    "died": "why it ended shows in the output and exit status of rank {rank}; form the group again",
    "left": "do all ranks make the same calls? rank {rank} was done before this one",
    "failed": "the cause is in rank {rank}; its traceback is in its output and in remote_traceback",
    "unreachable": "check power, cable and network of {host}",
    "link_lost": "rank {rank} itself lives; check cable and network between here and {host}",
    "no_progress": "where more time is needed, pass timeout_s=, or progress_s= to init()",
    "mismatch": "all ranks must call the same operations in the same order, sizes and dtypes",
    "message_mismatch": "compare shape, dtype and tag of this recv with those of its send",
    "digest_mismatch": "memory or a device of {host} may be faulty: do not use the last results",
    "closed": "form a new group with standfast.init()",
    "internal": "this is a bug in standfast; please report it",
}


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _host(rank: int, place: Place) -> str | None:
    return place.hosts[rank] if 0 <= rank < len(place.hosts) else None


def _who(rank: int, place: Place) -> str:
    if rank < 0:
        return "a rank"
    host = _host(rank, place)
    of = f" of group {place.group!r}" if place.group else ""
    me = " (this rank)" if rank == place.here else ""
    return f"rank {rank}{of} on {host}{me}" if host else f"rank {rank}{of}{me}"


def _because(failure: Failure) -> str:
    return f": {failure.cause}" if failure.cause else ""


def _seen(failure: Failure, place: Place) -> str:
    if failure.reporter < 0 or failure.kind in ("aborted", "closed", "no_progress", "interrupted"):
        return ""
    if failure.reporter == place.here:
        return "seen first here"
    return f"seen first by rank {failure.reporter}"


def _met(failure: Failure, place: Place, op: str | None, what: str) -> str:
    """Say what this rank was doing: how long it waited, for whom, over what, in which operation."""
    name = op or failure.op
    if failure.kind == "no_progress" and failure.reporter == place.here and failure.op:
        return ""  # the cause says just that
    if not name:
        return f"here is rank {place.here}"
    number = f" #{failure.seq}" if failure.op and failure.seq > 0 else ""
    operation = f"{name}{number}" + (f" ({what})" if what else "")
    if not failure.op:
        return f"here rank {place.here} called {operation}"
    done = ""
    if failure.bytes_done > 0:
        done = f", {failure.bytes_done} bytes received"
    if failure.waiting_for < 0:
        return f"here rank {place.here} was {failure.waited_s:.3f} s into {operation}{done}"
    link = place.links.get(failure.waiting_for)
    over = f" over {link}" if link else ""
    waited = f"waited {failure.waited_s:.3f} s for rank {failure.waiting_for}{over}"
    return f"here rank {place.here} {waited} in {operation}{done}"
