"""The side channel of stock JACCL's start-up over our rendezvous: bounded, with named errors.

MLX calls it, in the thread that called mx.distributed.init.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from standfast import group as groups
from standfast.errors import ConfigError, StandfastError

Gather = Callable[[bytes, int], bytes]


def all_gather_factory(
    *, coordinator: str | None = None, timeout_s: float = 60.0, **settings: Any
) -> SideChannel:
    """Return what ``mx.distributed.init(backend="jaccl", all_gather_factory=...)`` wants.

    The data goes the way that it always goes in JACCL; only the addresses of the queue pairs are
    exchanged by us, so that a rank that does not come, or dies on the way, is an error that names
    it on all the others, at once or after `timeout_s`.

    The group that carries it stays open: until ``close()`` its watch tells of a rank's death
    (``check()``), which JACCL itself does not notice.

    Args:
        coordinator: ``host:port`` of rank 0; from the environment as in ``standfast.init()``, where
            MLX_JACCL_COORDINATOR counts as well: with this, JACCL itself does not use that port.
        timeout_s: for meeting, and for each exchange, in seconds.
        settings: further arguments of ``standfast.init()``, such as key.
    """
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s is {timeout_s}; it must be a positive number of seconds")
    return SideChannel(coordinator, timeout_s, settings)


class SideChannel:
    """What MLX calls to meet, and then with each rank's bytes. A context manager."""

    def __init__(self, coordinator: str | None, timeout_s: float, settings: dict[str, Any]) -> None:
        """Not for users: ``all_gather_factory()`` makes it."""
        self._arguments = {"coordinator": coordinator, "timeout_s": timeout_s, **settings}
        self._timeout_s = timeout_s
        self._group: groups.Group | None = None

    def __call__(self, rank: int, size: int) -> Gather:
        """Meet the others; return the function by which all give each other bytes of one length.

        Raises:
            RendezvousError: not all ranks came before the deadline.
            ConfigError: arguments or environment are wrong.
        """
        if self._group is not None:
            self._group.close()
        self._group = groups.init(rank=rank, size=size, **self._arguments)
        return self._gather

    def _gather(self, data: bytes, n_bytes: int) -> bytes:
        assert self._group is not None
        if len(data) != n_bytes:
            raise ValueError(f"{n_bytes} bytes were announced, {len(data)} were given")
        return bytes(self._group.all_gather(bytes(data), timeout_s=self._timeout_s))

    @property
    def group(self) -> groups.Group:
        """The standfast group that carries it; ConfigError before MLX has asked for one."""
        if self._group is None:
            raise ConfigError("MLX has not asked for the side channel yet")
        return self._group

    def last_failure(self) -> StandfastError | None:
        """Return what ended it, or None."""
        return None if self._group is None else self._group.last_failure()

    def check(self) -> None:
        """Raise what ended it, if anything did: a peer that died while JACCL carried the data."""
        failure = self.last_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Leave in good order; what JACCL does goes on."""
        if self._group is not None:
            self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Close; after an exception the peers are told of it."""
        if self._group is not None:
            self._group.__exit__(kind, error, where)
