"""The `_async` form of each operation of Group: same arguments and meaning, but at once a Handle.

Kept apart from group.py only for length; Group inherits them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from standfast import operations
from standfast.handles import Handle
from standfast.operations import Member, Plan


class AsyncForms(abc.ABC):
    """Operations that return before they are done.

    They run in the order of submission, one after the other; all ranks must submit in one order.
    A handle's array arguments must not be touched until it is done. Mistakes in the arguments are
    raised here, failures by the handle.
    """

    _me: Member

    @abc.abstractmethod
    def _submit(self, plan: Plan) -> Handle[Any]:
        """Hand a plan to the core's own threads."""

    def all_reduce_async(
        self, x: Any, op: str = "sum", *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``all_reduce``."""
        return self._submit(operations.all_reduce(self._me, x, op, out, timeout_s))

    def all_sum_async(
        self, x: Any, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``all_sum``."""
        return self._submit(operations.all_reduce(self._me, x, "sum", out, timeout_s))

    def all_max_async(
        self, x: Any, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``all_max``."""
        return self._submit(operations.all_reduce(self._me, x, "max", out, timeout_s))

    def all_min_async(
        self, x: Any, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``all_min``."""
        return self._submit(operations.all_reduce(self._me, x, "min", out, timeout_s))

    def all_gather_async(
        self, x: Any, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``all_gather``."""
        return self._submit(operations.all_gather(self._me, x, out, timeout_s))

    def reduce_scatter_async(
        self, x: Any, op: str = "sum", *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``reduce_scatter``."""
        return self._submit(operations.reduce_scatter(self._me, x, op, out, timeout_s))

    def sum_scatter_async(
        self, x: Any, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``sum_scatter``."""
        return self._submit(operations.reduce_scatter(self._me, x, "sum", out, timeout_s))

    def broadcast_async(
        self, x: Any, root: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``broadcast``."""
        return self._submit(operations.broadcast(self._me, x, root, out, timeout_s))

    def all_to_all_async(
        self, x: Any, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``all_to_all``."""
        return self._submit(operations.all_to_all(self._me, x, out, timeout_s))

    def gather_async(
        self, x: Any, root: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``gather``."""
        return self._submit(operations.gather(self._me, x, root, out, timeout_s))

    def scatter_async(
        self, x: Any = None, root: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``scatter``."""
        return self._submit(operations.scatter(self._me, x, root, out, timeout_s))

    def send_async(
        self, x: Any, dst: int, tag: int = 0, *, timeout_s: float | None = None
    ) -> Handle[None]:
        """Begin ``send``."""
        return self._submit(operations.send(self._me, x, dst, tag, timeout_s))

    def recv_async(
        self,
        shape: int | Sequence[int] | None,
        dtype: Any,
        src: int,
        tag: int = 0,
        *,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Handle[Any]:
        """Begin ``recv``."""
        return self._submit(operations.recv(self._me, shape, dtype, src, tag, out, timeout_s))

    def recv_like_async(
        self, x: Any, src: int, tag: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Begin ``recv_like``."""
        return self._submit(operations.recv_like(self._me, x, src, tag, out, timeout_s))

    def barrier_async(self, *, timeout_s: float | None = None) -> Handle[None]:
        """Begin ``barrier``."""
        return self._submit(operations.barrier(self._me, timeout_s))

    def agree_async(self, flag: bool, *, timeout_s: float | None = None) -> Handle[bool]:
        """Begin ``agree``."""
        return self._submit(operations.agree(self._me, flag, timeout_s))
