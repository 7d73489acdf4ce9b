"""torch's reduce operators in terms of the core's: which one it runs, and what is done after it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

Kind = dist.ReduceOp.RedOpType

CORE: dict[Any, str] = {
    Kind.SUM: "sum",
    Kind.AVG: "sum",
    Kind.PRODUCT: "prod",
    Kind.MIN: "min",
    Kind.MAX: "max",
}
BITWISE: dict[Any, Any] = {
    Kind.BAND: torch.bitwise_and,
    Kind.BOR: torch.bitwise_or,
    Kind.BXOR: torch.bitwise_xor,
}


class Reduction(NamedTuple):
    """A reduce operator. core: the core's name, or "" for a bitwise one, which it has not."""

    kind: Any
    core: str

    def finish(self, total: Any, size: int) -> None:
        """Turn a sum into a mean, in place; whole numbers are rounded towards zero."""
        if self.kind != Kind.AVG:
            return
        if total.is_floating_point() or total.is_complex():
            total.div_(size)
        else:
            total.div_(size, rounding_mode="trunc")

    def combine(self, rows: Any) -> Any:
        """Combine all ranks' elements, one row each, bit by bit."""
        return functools.reduce(BITWISE[self.kind], rows.unbind(0))


def reduction(op: Any, dtype: Any, what: str) -> Reduction:
    """Read one of torch's operators.

    Args:
        op: a ReduceOp, or its kind.
        dtype: of the tensors.
        what: the operation, for messages.

    Raises:
        TypeError: it is not possible with this dtype.
        ValueError: the operator is not supported.
    """
    kind = op if isinstance(op, Kind) else op.op
    if kind in BITWISE:
        if dtype.is_floating_point or dtype.is_complex:
            raise TypeError(f"{what} with {kind.name} of {dtype}: it takes integers or bool")
        return Reduction(kind, "")
    if kind not in CORE:
        raise ValueError(
            f"{what} with {kind.name}: the backend standfast has {_names()}; for PREMUL_SUM,"
            " multiply first and take SUM"
        )
    if dtype.is_complex and kind not in (Kind.SUM, Kind.AVG) and dtype != torch.complex64:
        raise TypeError(f"{what} with {kind.name} of {dtype}: it takes complex64")
    if dtype == torch.bool and kind == Kind.AVG:
        raise TypeError(f"{what} with AVG of bool: a mean of truths is no truth; convert it first")
    return Reduction(kind, CORE[kind])


def _names() -> str:
    return ", ".join(kind.name for kind in (*CORE, *BITWISE))
