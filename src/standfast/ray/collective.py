"""The backend ``standfast`` of ray.util.collective, for actors and tasks; registration.py names it.

Ray makes a CollectiveGroup in each actor, and calls its methods in the actor's threads. They work
in place and return when they are done. A lost peer is raised as standfast raises it, with its
fields; Ray hands it on to whoever gets the actor's result.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import ray
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from standfast.group import Group
from standfast.ray import tensors
from standfast.ray.meeting import Party, RayBoard, meet
from standfast.ray.registration import NAME

OPS = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}
"""Ray's reduce operators in standfast's words."""


class CollectiveGroup(BaseGroup):  # type: ignore[misc] # Any, where Ray is not installed
    """A collective group of Ray's on a standfast group.

    Tensors are NumPy arrays or torch tensors on the CPU, of any shape and strides and of every
    dtype that standfast has, the same on all ranks. Methods raise as those of ``standfast.Group``.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Meet the other ranks. Not for users: init_collective_group() makes it.

        Raises:
            ConfigError: a STANDFAST_... variable is wrong.
            RendezvousError: not all ranks came before the deadline.
        """
        super().__init__(world_size, rank, group_name)
        host = str(ray.util.get_node_ip_address())
        self._group = meet(Party(RayBoard(group_name), rank, world_size, group_name, host))

    @classmethod
    def backend(cls) -> str:
        """Return the backend's name."""
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Tell whether the native core can be loaded here."""
        try:
            from standfast import _core  # noqa: F401
        except ImportError:
            return False
        return True

    @property
    def standfast_group(self) -> Group:
        """The group below: for hints(), links(), add_abort_hook() and whatever Ray has not."""
        return self._group

    def destroy_group(self) -> None:
        """Leave the group in good order. Others that still wait for this rank get PeerLeft."""
        self._group.close()

    # --- collectives --------------------------------------------------------------------------

    def allreduce(self, tensor: Any, allreduce_options: Any = None) -> None:
        """Combine a tensor of all ranks element by element, in place.

        Args:
            tensor: the tensor, or a list of it.
            allreduce_options: reduceOp, SUM without it; timeout_ms.
        """
        x = self._own(tensor, "allreduce", written=True)
        into, finish = tensors.target(x)
        self._group.all_reduce(
            x, _op(allreduce_options), out=into, timeout_s=_limit_s(allreduce_options)
        )
        _do(finish)

    def barrier(self, barrier_options: Any = None) -> None:
        """Return once all ranks have called it."""
        self._group.barrier(timeout_s=_limit_s(barrier_options))

    def reduce(self, tensor: Any, reduce_options: Any = None) -> None:
        """Combine a tensor of all ranks at the root, in place; elsewhere it stays as it is.

        Args:
            tensor: the tensor, or a list of it.
            reduce_options: root_rank, 0 without it; reduceOp; timeout_ms.
        """
        root = getattr(reduce_options, "root_rank", 0)
        x = self._own(tensor, "reduce", written=root == self._rank)
        total = self._group.all_reduce(x, _op(reduce_options), timeout_s=_limit_s(reduce_options))
        if root == self._rank:
            tensors.copy(x, total)

    def broadcast(self, tensor: Any, broadcast_options: Any = None) -> None:
        """Give every rank the root's tensor, in place.

        Args:
            tensor: the tensor, or a list of it.
            broadcast_options: root_rank, 0 without it; timeout_ms.
        """
        root = getattr(broadcast_options, "root_rank", 0)
        x = self._own(tensor, "broadcast", written=root != self._rank)
        into, finish = tensors.target(x)
        # The root's own array may be read-only, as what comes out of Ray's object store is.
        out = None if root == self._rank else into
        self._group.broadcast(x, root, out=out, timeout_s=_limit_s(broadcast_options))
        if out is not None:
            _do(finish)

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = None) -> None:
        """Give every rank the tensors of all.

        Args:
            tensor_list: as many tensors as ranks, each like ``tensor``, or a list of that list;
                rank i's goes into the i-th.
            tensor: the tensor, or a list of it.
            allgather_options: timeout_ms.

        Raises:
            ValueError: the list has another length, or other tensors.
        """
        x = self._own(tensor, "allgather")
        outputs = self._one_each(tensor_list, "allgather", written=True)
        tensors.same(outputs, x, "allgather")
        whole = self._group.all_gather(x.reshape(-1), timeout_s=_limit_s(allgather_options))
        tensors.part(whole, outputs)

    def reducescatter(
        self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None
    ) -> None:
        """Combine lists of tensors of all ranks; rank i gets the i-th of the combined list.

        Args:
            tensor: for the result, or a list of it.
            tensor_list: as many tensors as ranks, each like ``tensor``, or a list of that list.
                They stay as they are.
            reducescatter_options: reduceOp; timeout_ms.

        Raises:
            ValueError: the list has another length, or other tensors.
        """
        x = self._own(tensor, "reducescatter", written=True)
        inputs = self._one_each(tensor_list, "reducescatter")
        tensors.same(inputs, x, "reducescatter")
        share = self._group.reduce_scatter(
            tensors.joined(inputs),
            _op(reducescatter_options),
            timeout_s=_limit_s(reducescatter_options),
        )
        tensors.copy(x, share)

    # --- between two ranks --------------------------------------------------------------------

    def send(self, tensor: Any, send_options: Any) -> None:
        """Send a tensor to one rank.

        Args:
            tensor: the tensor, or a list of it.
            send_options: dst_rank; timeout_ms.
        """
        _refuse_pieces(send_options, "send")
        x = self._own(tensor, "send")
        self._group.send(x, send_options.dst_rank, timeout_s=_limit_s(send_options))

    def recv(self, tensor: Any, recv_options: Any) -> None:
        """Receive a tensor from one rank, in place.

        Args:
            tensor: the tensor, or a list of it; as it was sent, in dtype and number of elements.
            recv_options: src_rank; timeout_ms.

        Raises:
            MessageMismatch: another tensor was sent.
        """
        _refuse_pieces(recv_options, "recv")
        x = self._own(tensor, "recv", written=True)
        into, finish = tensors.target(x)
        self._group.recv_like(
            into, recv_options.src_rank, out=into, timeout_s=_limit_s(recv_options)
        )
        _do(finish)

    # --- arguments ----------------------------------------------------------------------------

    def _own(self, given: Any, what: str, *, written: bool = False) -> Any:
        return tensors.check(tensors.only(given, what), what, written=written)

    def _one_each(self, given: Any, what: str, *, written: bool = False) -> list[Any]:
        """Return a list of one tensor per rank."""
        found = tensors.only(given, what) if given and isinstance(given[0], list) else given
        if len(found) != self._world_size:
            raise ValueError(f"{what} got {len(found)} tensors for {self._world_size} ranks")
        return [tensors.check(each, what, written=written) for each in found]


def _op(options: Any) -> str:
    """Return the operator that Ray's options name."""
    return OPS[options.reduceOp.name] if options is not None else "sum"


def _limit_s(options: Any) -> float | None:
    """Return the limit that Ray's options name, which is a timedelta; negative means none."""
    limit = getattr(options, "timeout_ms", None)
    if isinstance(limit, timedelta) and limit.total_seconds() > 0:
        return limit.total_seconds()
    return None


def _refuse_pieces(options: Any, what: str) -> None:
    """Refuse what Ray's multi-GPU forms of messages may ask for."""
    if getattr(options, "n_elements", 0):
        raise ValueError(
            f"{what} of {options.n_elements} elements of a tensor: the backend standfast sends"
            " whole tensors; pass the part, such as tensor[:n]"
        )


def _do(finish: tensors.Finish | None) -> None:
    if finish is not None:
        finish()
