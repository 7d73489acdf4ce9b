"""The two classes of torch's in which the backend is dressed, and the choice between them.

A torch that lets Python write a Backend (2.14 has the class for it, after #189817) gets one: it
lives in torch's own ProcessGroup, beside other devices' backends. An older torch gets a
ProcessGroup, which is then the whole group, whatever other backends were asked for.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import torch.distributed as dist

from standfast.group import Group
from standfast.torch.errors import torch_errors
from standfast.torch.lifecycle import CPU, Operations
from standfast.torch.meeting import Party, meet
from standfast.torch.works import Work

if TYPE_CHECKING:

    class _Backend:
        """What torch's class is here for; where checkers see torch, they see no such name in it."""

        def __init__(self, rank: int, size: int) -> None: ...
else:
    _Backend = dist._Backend

# The group of the whole job, if there is one: while it fails, no part of it can be formed.
_whole: weakref.ref[Group] | None = None


def create(options: Any, backend_options: Any) -> Any:
    """Meet the others and dress the group: see ``registration.create``."""
    if backend_options is not None:
        raise TypeError(
            f"pg_options is a {type(backend_options).__name__}: the backend standfast has none;"
            " its settings are environment variables, STANDFAST_..."
        )
    global_ranks = tuple(options.global_ranks_in_group)
    party = Party(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        name=f"torch:{options.group_id}" if global_ranks else "",
        global_ranks=global_ranks,
        timeout_s=options.timeout.total_seconds(),
    )
    with torch_errors(global_ranks):
        group = meet(party, _check_whole if global_ranks else _hope)
    if not global_ranks:
        _remember(group)
    return dressed(group, global_ranks)


def dressed(group: Group, global_ranks: Sequence[int]) -> Any:
    """Return a group in the class of torch's that this torch takes."""
    shell = StandfastBackend if takes_backends() else StandfastProcessGroup
    return shell(group, global_ranks)


@functools.cache
def takes_backends() -> bool:
    """Tell whether this torch lets Python write a Backend: whether one can be constructed."""
    try:
        type("Probe", (_Backend,), {})(0, 1)
    except TypeError:
        return False
    return True


def _remember(group: Group) -> None:
    global _whole  # noqa: PLW0603 - a process has one job
    _whole = weakref.ref(group)


def _check_whole() -> None:
    """Raise what ended the group of the whole job, if anything did and it is still in use."""
    group = None if _whole is None else _whole()
    error = None if group is None or group._closed else group.last_failure()
    if error is not None:
        raise error


def _hope() -> None:
    """Raise nothing: there is no group yet that could tell of a death."""


class StandfastProcessGroup(Operations, dist.ProcessGroup):  # type: ignore[misc] # Any, if not there
    """The backend as a whole process group."""

    def __init__(self, group: Group, global_ranks: Sequence[int]) -> None:
        """Not for users: init_process_group() and new_group() make it."""
        dist.ProcessGroup.__init__(self, group.rank, group.size)
        self._adopt(group, global_ranks)
        self._name = self._description = ""

    # Torch's own keep names with the backends of a group, of which this one has none.
    def getGroupName(self) -> str:
        """Return the name by which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Set it."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Return what the program calls the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Set it."""
        self._description = description

    @property
    def _device_types(self) -> list[Any]:
        """The devices whose tensors it takes."""
        return [CPU]

    def _get_backend(self, device: Any) -> Any:
        """Return what carries the tensors of a device: this object."""
        if str(device).partition(":")[0] != "cpu":
            raise RuntimeError(f"the backend standfast carries CPU tensors, and none of {device}")
        return self

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
        """Form a group of some of these ranks. All ranks must call it, each with its own part.

        Args:
            ranks: of this group; a rank that is not among them gets None.
            timeout: limit of each step.
            opts: must be None.
            group_name: by which torch finds it.
            group_desc: what the program calls it.
            device_types: means nothing here.
        """
        group = self._divide(ranks, timeout)
        if group is None:
            return None
        part = StandfastProcessGroup(group, self._global_ranks_of(ranks))
        if group_name is not None:
            part._set_group_name(group_name)
        if group_desc is not None:
            part._set_group_desc(group_desc)
        return part

    splitGroup = split_group


class StandfastBackend(Operations, _Backend):
    """The backend as one of torch's, within a ProcessGroup of torch's own.

    Written after the interface of torch 2.14; with 2.13, where the tests run, it cannot be made.
    """

    supports_splitting = False  # torch's own way to split asks for more than ours gives

    def __init__(self, group: Group, global_ranks: Sequence[int]) -> None:
        """Not for users: init_process_group() and new_group() make it."""
        _Backend.__init__(self, group.rank, group.size)
        self._adopt(group, global_ranks)

    start_coalescing: ClassVar[Callable[..., None]] = Operations._start_coalescing
    end_coalescing: ClassVar[Callable[..., Work]] = Operations._end_coalescing
