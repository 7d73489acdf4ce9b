"""Makes the backend known to torch.distributed, and a process group when torch asks for one.

torch calls autoload() at the end of its own import, for every program: it must be cheap and must
never fail. All that needs the native core is imported by create(), with the first group.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

NAME = "standfast"
DEVICES = ["cpu"]


def register() -> None:
    """Make ``standfast`` a backend of torch.distributed for CPU tensors. Again: does nothing.

    Raises:
        RuntimeError: this torch was built without torch.distributed.
    """
    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed: install one with it")
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


def autoload() -> None:
    """Register, if this torch has torch.distributed: what ``import torch`` calls."""
    if dist.is_available():
        register()


def create(options: Any, backend_options: Any) -> Any:
    """Meet the group's other ranks; return a process group, or a backend where torch takes one.

    Args:
        options: torch's: store, group_rank, group_size, timeout, group_id, global_ranks_in_group.
        backend_options: what the program passed as ``pg_options``; must be None.

    Raises:
        ConfigError, RendezvousError: as ``standfast.init()``; each also a DistBackendError.
    """
    from standfast.torch import shells

    return shells.create(options, backend_options)
