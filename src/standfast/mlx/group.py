"""Group: MLX's own class of groups, on a group of standfast. Any thread may call."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any, Self

import mlx.core as mx

from standfast import _core, hooks
from standfast import group as groups
from standfast.errors import ConfigError, StandfastError
from standfast.hints import Hint
from standfast.mlx import extension

_lock = threading.Lock()  # guards _members and _asked
_members: dict[int, groups.Group] = {}  # by serial: as long as MLX or the program has the group
_serials = itertools.count(1)
_asked = False


def init(*, min_size: int = 1, **arguments: Any) -> Group:
    """Form a group with the other ranks of this job, and return it as a group of MLX's.

    To be called where ``mx.distributed.init()`` was, with the result passed as ``group=``: MLX has
    no way to make it the default. Ranks that ``mlx.launch`` or ``standfast run`` has started need
    no arguments.

    Args:
        min_size: the fewest ranks; ConfigError for a smaller group. MLX computes collectives of one
            rank itself, so a group of one never fails.
        arguments: as for ``standfast.init()``: rank, size, coordinator, fabric, timeout_s, ...

    Raises:
        ConfigError: standfast-mlx is missing or does not fit this MLX (``why_not()``); arguments or
            environment are wrong.
        RendezvousError: the group could not be formed before the deadline.
    """
    extension.native()  # before ranks meet: nobody should wait for one that cannot go on
    formed = groups.init(**arguments)
    if formed.size < min_size:
        formed.close()
        raise ConfigError(f"the group has {formed.size} ranks; min_size={min_size} asks for more")
    return _wrapped(formed)


def last_failure(group: mx.distributed.Group) -> StandfastError | None:
    """Return what ended a group of ``init()`` or of its ``split()``, or None.

    What ``mx.eval`` raises is a RuntimeError with the same text; this has the fields: rank, host,
    cause, op, seq, waited_s, ...

    Raises:
        TypeError: the group is not one of standfast's.
    """
    return member_of(group).last_failure()


def member_of(group: mx.distributed.Group) -> groups.Group:
    """Return the standfast group below a group of MLX's; TypeError if there is none."""
    serial = None
    if isinstance(group, mx.distributed.Group) and extension.why_not() is None:
        serial = extension.native().serial_of(group)
    with _lock:
        member = None if serial is None else _members.get(serial)
    if member is None:
        raise TypeError(f"{group!r} is not a group of standfast.mlx.init()")
    return member


class Group(mx.distributed.Group):  # type: ignore[misc]
    """A group of MLX's, made by ``standfast.mlx.init()``; a context manager.

    ``rank()``, ``size()`` and ``split()`` are MLX's, and every function that takes ``group=`` takes
    it. When a peer is lost, ``mx.eval`` (and whatever else evaluates) raises RuntimeError; the
    group is over then, and every later operation raises the same first cause at once.
    """

    standfast: groups.Group
    """The standfast group that carries it, with all that MLX has no word for.

    It is closed at the latest when nothing of MLX's knows this group any more.
    """

    def split(self, color: int, key: int = -1) -> Group:
        """Form a group of those ranks that pass the same color, as a group of MLX's.

        Args:
            color: ranks of one color form a group; not negative.
            key: ranks are ordered by it, then by their rank here; negative: by their rank here.
        """
        return _wrapped(_split(self.standfast, color, key))

    def last_failure(self) -> StandfastError | None:
        """Return what ended it, with fields (rank, host, cause, op, ...), or None."""
        return self.standfast.last_failure()

    def healthy(self) -> bool:
        """Tell whether it is open and has not failed, as far as this rank knows."""
        return self.standfast.healthy()

    def hints(self) -> list[Hint]:
        """Return which ranks are suspect at the moment, and why."""
        return self.standfast.hints()

    def abort(self, reason: str) -> None:
        """End the group on all ranks: evaluations raise a text that says so."""
        self.standfast.abort(reason)

    def reform(self, **arguments: Any) -> Group:
        """Form the group again with those who are left: see ``standfast.Group.reform``."""
        return _wrapped(self.standfast.reform(**arguments))

    def close(self) -> None:
        """Leave the group in good order. Evaluate first what still needs it."""
        self.standfast.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Close; after an exception the peers are told of it."""
        self.standfast.__exit__(kind, error, where)

    def __repr__(self) -> str:
        return f"<standfast.mlx.Group on {self.standfast!r}>"


def _wrapped(formed: groups.Group) -> Group:
    """Make a group of MLX's that runs on this one."""
    global _asked  # noqa: PLW0603 - a process has one native module
    native = extension.native()
    serial = next(_serials)
    with _lock:
        if not _asked:
            native.ask(_tell, _split_for_mlx)
            _asked = True
        _members[serial] = formed
    made: Group = native.make(Group, formed.native(), serial)
    made.standfast = formed
    _close_forgotten(native)
    return made


def _close_forgotten(native: Any) -> None:
    """Leave the groups that neither MLX nor the program knows any more."""
    for serial in native.released():
        with _lock:
            member = _members.pop(serial, None)
        if member is not None:
            member.end("orderly")


def _split(member: groups.Group, color: int, key: int) -> groups.Group:
    made = member.split(color, key)
    if made is None:
        raise ValueError(f"color is {color}; it must not be negative: MLX has no group of nobody")
    return made


def _split_for_mlx(serial: int, color: int, key: int) -> Group:
    """Split where C++ asks for it."""
    with _lock:
        member = _members[serial]
    return _wrapped(_split(member, color, key))


def _tell(serial: int, failure: _core.Failure, operation: str, array: str) -> str:
    """Return the text of what ended an operation; for a thread of the native module's."""
    with _lock:
        member = _members[serial]
    error = member.ended_by(failure, operation, array)
    hooks.expect(error)
    return str(error)
