"""The torch.distributed backend ``standfast``: a dead peer is a prompt error in any torch job.

    import torch.distributed as dist

    dist.init_process_group("standfast")

Importing this registers the backend. An installed standfast does so by itself when torch is
imported, through the entry points ``torch.backends`` and ``torch.distributed.backends``.
docs/how-to/torch.md says what is different from other backends.
"""

from standfast.torch.registration import NAME, autoload, register

__all__ = ["NAME", "autoload", "register"]

autoload()
