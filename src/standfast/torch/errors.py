"""standfast's errors as torch's: each class here is also a torch.distributed.DistBackendError.

So a program catches PeerDied wherever it comes from, and one that only knows torch catches what it
always did. The classes are made from the tree in standfast.errors, and are named alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from standfast import errors
from standfast.errors import FIELDS


class TorchError:
    """Mixed into each: says which rank of the whole job the error is about.

    Fields:
        global_rank: ``rank`` is a rank of the group; this is the same process's in the whole job.
    """

    global_rank: int | None

    @classmethod
    def extra_fields(cls) -> Sequence[str]:
        """Names of the fields of the class, and of this."""
        return (*super().extra_fields(), "global_rank")  # type: ignore[misc] # of the other base


def _made(cls: type[errors.StandfastError]) -> type[errors.StandfastError]:
    """Return the class that is `cls` and a DistBackendError; pickle finds it in this module."""
    body = {"__doc__": cls.__doc__, "__module__": __name__}
    return type(cls.__name__, (TorchError, cls, dist.DistBackendError), body)


BY_CLASS: dict[type[errors.StandfastError], type[errors.StandfastError]] = {
    cls: _made(cls)
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.StandfastError)
}
# Their names are those of the originals, so the originals are errors.PeerDied and so on here.
globals().update({made.__name__: made for made in BY_CLASS.values()})


# Where limits are set by a torch program.
MORE_TIME = (
    "where more time is needed, pass a longer timeout to init_process_group(), new_group() or this"
    " call: a timeout of torch's is the limit here"
)


def as_torch_error(
    error: errors.StandfastError, global_ranks: Sequence[int] = (), more: str = ""
) -> errors.StandfastError:
    """Return the same error, of the class that is torch's as well.

    Args:
        error: any error of this package.
        global_ranks: by rank of the group, the rank in the whole job; empty if they are the same.
        more: is added to the message.
    """
    if isinstance(error, TorchError):
        return error
    fields: dict[str, Any] = {name: getattr(error, name) for name in FIELDS}
    fields |= {name: getattr(error, name) for name in type(error).extra_fields()}
    message = error.message + more
    if error.rank is not None and 0 <= error.rank < len(global_ranks):
        fields["global_rank"] = global_ranks[error.rank]
        if fields["global_rank"] != error.rank:
            message += f" (rank {error.rank} of this group is rank {fields['global_rank']} of all)"
    elif not global_ranks:
        fields["global_rank"] = error.rank
    ran_out = isinstance(error, errors.NoProgress | errors.PeerStalled)
    hint = MORE_TIME if ran_out else error.hint
    made = BY_CLASS[type(error)](message, hint=hint, **fields)
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    return made


@contextlib.contextmanager
def torch_errors(global_ranks: Sequence[int] = ()) -> Iterator[None]:
    """Let errors of this package leave the block as torch's; a caller's mistake stays as it is."""
    try:
        yield
    except errors.StandfastError as error:
        raised = as_torch_error(error, global_ranks)
    else:
        return
    raise raised
