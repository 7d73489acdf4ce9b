"""What torch asks of a group besides operations: names, numbers, limits, state, and its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch

from standfast.errors import NoProgress, PeerStalled, RemoteFailure
from standfast.group import Group
from standfast.torch.collectives import Collectives
from standfast.torch.errors import torch_errors
from standfast.torch.exchanges import Exchanges
from standfast.torch.registration import NAME
from standfast.torch.works import Work

CPU = torch.device("cpu")


class Operations(Collectives, Exchanges):
    """All that torch asks of the backend, whichever of torch's classes it is dressed in."""

    options: Any = None

    # Torch's older names of the same operations.
    _allgather_base = Collectives.all_gather_single
    _reduce_scatter_base = Collectives.reduce_scatter_single
    alltoall_base: ClassVar[Callable[..., Work]] = Collectives.all_to_all_single
    allgather_into_tensor_coalesced: ClassVar[Callable[..., Work]] = (
        Collectives.all_gather_single_coalesced
    )
    reduce_scatter_tensor_coalesced: ClassVar[Callable[..., Work]] = (
        Collectives.reduce_scatter_single_coalesced
    )

    def getBackendName(self) -> str:
        """Return the backend's name. Torch's core calls it."""
        return NAME

    _get_backend_name = getBackendName
    name: ClassVar[Callable[..., str]] = getBackendName

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._me.rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._me.size

    @property
    def standfast_group(self) -> Group:
        """The group below: for hints(), links(), add_abort_hook() and whatever torch has not."""
        return self._group

    # What torch may ask for. Torch's own answers ask this class again, without end.
    supports_splitting = True
    supports_coalescing = True
    supports_shrinking = False
    supports_reconfigure = False
    supports_time_estimate = False
    supports_tensor_alloc = False
    supports_window = False

    # --- numbers and limits -------------------------------------------------------------------

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives this rank has begun."""
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Begin to count anew."""
        self._sequence = 0

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of operations that have none of their own.

        Raises:
            ValueError: it is not positive.
        """
        if timeout.total_seconds() <= 0:
            raise ValueError(f"timeout is {timeout}; it must be positive")
        self._limit_s = timeout.total_seconds()

    # --- state and end ------------------------------------------------------------------------

    def get_error(self) -> Any:
        """Return SUCCESS while the group is healthy; else what has ended it, in torch's words.

        TIMEOUT: somebody did not go on in time; REMOTE_ERROR: a peer's program raised; COMM_ERROR:
        a peer is gone, or anything else.
        """
        known = torch._C._distributed_c10d.ErrorType
        error = self._group.last_failure()
        if error is None:
            return known.SUCCESS
        if isinstance(error, (NoProgress, PeerStalled)):
            return known.TIMEOUT
        return known.REMOTE_ERROR if isinstance(error, RemoteFailure) else known.COMM_ERROR

    def abort(self) -> None:
        """End the group on all ranks: every operation raises GroupAborted. Returns soon."""
        self._group.abort(f"rank {self._me.rank} called abort()")
        self._group.end("orderly")

    def shutdown(self) -> None:
        """Leave the group: wait for what is under way, within its limits, and say goodbye.

        Raises:
            StandfastError: an operation in the background had failed and nobody has waited for it.
        """
        with torch_errors(self._global_ranks):
            self._group.close()

    # --- parts --------------------------------------------------------------------------------

    def _divide(self, ranks: Sequence[int], timeout: Any) -> Group | None:
        """Form a group of some of these ranks; all must call it, each with its own part's ranks."""
        me = self._me.rank
        part = list(ranks)
        color, key = (min(part), part.index(me)) if me in part else (None, -1)
        with torch_errors(self._global_ranks):
            return self._group.split(color, key, timeout_s=self._timeout_s(timeout))

    def _global_ranks_of(self, ranks: Sequence[int]) -> list[int]:
        return [self._global_ranks[rank] if self._global_ranks else rank for rank in ranks]
