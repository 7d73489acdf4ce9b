"""The sum of sparse (COO) tensors: every rank gets all elements and adds them up in one order."""

from __future__ import annotations

from typing import Any

import torch

from standfast.group import Group


def total(group: Group, tensor: Any, timeout_s: float | None) -> Any:
    """Add up sparse tensors of all ranks; all get the same bits.

    Args:
        group: whose ranks take part.
        tensor: of the same shape and dtype on all ranks; each has as many elements as it likes.
        timeout_s: limit of each of three exchanges.

    Raises:
        ValueError: the ranks' tensors have different shapes.
    """
    own = tensor.detach().coalesce()
    shape = torch.tensor([own.sparse_dim(), *own.shape])
    highest = group.all_max(shape, timeout_s=timeout_s)
    counts = group.all_gather(torch.tensor([own._nnz()]), timeout_s=timeout_s).tolist()
    if not torch.equal(shape, highest):
        raise ValueError(f"all_reduce of sparse tensors: here is {shape}, elsewhere {highest}")
    most = max(counts)
    indices = group.all_gather(_padded(own.indices().t(), most), timeout_s=timeout_s)
    values = group.all_gather(_padded(own.values(), most), timeout_s=timeout_s)
    kept = torch.cat([torch.arange(n) + rank * most for rank, n in enumerate(counts)])
    made = torch.sparse_coo_tensor(
        indices[kept].t(), values[kept], own.shape, check_invariants=False
    )
    return made.coalesce()


def _padded(rows: Any, count: int) -> Any:
    """Return `count` rows, of which the last are zeros."""
    made = rows.new_zeros((count, *rows.shape[1:]))
    made[: rows.shape[0]] = rows
    return made
