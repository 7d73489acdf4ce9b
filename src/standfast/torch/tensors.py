"""Tensors as operations want them: flat, contiguous, of a dtype that travels. Pure but for copies.

operations.py here is the caller. A flat view shares the tensor's memory wherever it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from standfast.kinds import TORCH

Tensor = Any
Finish = Callable[[], None]


def check(tensor: Any, what: str) -> Tensor:
    """Refuse what cannot travel, before any byte is sent; return the tensor without its gradient.

    Raises:
        TypeError: no tensor, not on the CPU, or sparse.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} takes tensors; this is a {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise TypeError(
            f"{what} of a tensor on {tensor.device}: the backend standfast carries CPU tensors;"
            " pass tensor.cpu(), or give that device a backend of its own"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{what} of a {tensor.layout} tensor: pass a dense one, tensor.to_dense()")
    return tensor.detach()


def is_plain(tensor: Tensor) -> bool:
    """Tell whether the memory holds the elements in order, without gaps or pending negations."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def flat(tensor: Tensor) -> Tensor:
    """Return the elements in one dimension: the tensor's own memory, or a copy if it has gaps."""
    if not is_plain(tensor):
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1)


def numbers(tensor: Tensor) -> Tensor:
    """See a flat tensor as numbers that the core adds: complex128 as pairs of float64."""
    return torch.view_as_real(tensor).view(-1) if tensor.dtype == torch.complex128 else tensor


def freight(tensor: Tensor) -> Tensor:
    """See a flat tensor as something that travels: as bytes, if the core has no such dtype."""
    return tensor if tensor.dtype in TORCH.codes() else tensor.view(torch.uint8)


def target(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Return flat memory for a result, and what brings it into the tensor, if it is not its own."""
    if is_plain(tensor):
        return tensor.view(-1), None
    made = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return made, lambda: copy_into(tensor, made)


def copy_into(tensor: Tensor, source: Tensor) -> None:
    """Copy flat elements into a tensor of any strides; not a step that autograd sees."""
    with torch.no_grad():
        tensor.copy_(source.view(tensor.shape))


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Copy tensors of one dtype into one flat tensor, one after the other."""
    return torch.cat([flat(tensor) for tensor in tensors])


def spread(source: Tensor, tensors: Sequence[Tensor]) -> None:
    """Undo joined(): copy the parts of a flat tensor into tensors of their sizes."""
    parts = source.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        copy_into(tensor, part)


def same(tensors: Sequence[Tensor], what: str, like: Tensor) -> None:
    """Check that tensors have the dtype and number of elements of another.

    Raises:
        ValueError: they have not.
    """
    for tensor in tensors:
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise ValueError(
                f"{what}: all tensors must have one dtype and size, and there are"
                f" {like.dtype} {tuple(like.shape)} and {tensor.dtype} {tuple(tensor.shape)}"
            )


def apart(tensor: Tensor, source: Tensor) -> tuple[Tensor, Finish | None]:
    """Do as target(), for a result that must not lie where `source` does."""
    if tensor.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
        return target(tensor)
    made = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return made, lambda: copy_into(tensor, made)
