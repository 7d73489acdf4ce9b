"""torch's messages between two ranks of a standfast group.

Between two ranks messages arrive in the order in which they were sent; a receive whose tag, dtype
or size is not that of the next message is a MessageMismatch on both ranks, and never takes another.
"""

from __future__ import annotations

from typing import Any

from standfast import operations
from standfast.torch import tensors
from standfast.torch.running import Runner, Step
from standfast.torch.works import Work


class Exchanges(Runner):
    """Operations of two ranks."""

    def send(self, tensors_: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor, in the background.

        Args:
            tensors_: the tensor, or a list of it.
            dst: the rank of the group to send to.
            tag: must equal the receive's.
        """
        tensor = tensors.check(_one(tensors_), "send")
        wire = tensors.freight(tensors.flat(tensor))
        plan = operations.send(self._me, wire, dst, tag, self._limit_s)
        return self._run([Step(plan)], [tensor])

    def recv(self, tensors_: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor, in the background.

        Args:
            tensors_: the tensor that it goes to, or a list of it.
            src: the rank of the group that sends.
            tag: must equal the send's.
        """
        tensor = tensors.check(_one(tensors_), "recv")
        into, back = tensors.target(tensor)
        wire = tensors.freight(into)
        plan = operations.recv(self._me, wire.shape, wire.dtype, src, tag, wire, self._limit_s)
        return self._run([Step(plan, back)], [tensor], source=src)

    def recv_anysource(self, tensors_: Any, tag: int = 0) -> Work:
        """Receive the next message with this tag from whichever rank sends one first.

        Args:
            tensors_: the tensor that it goes to, or a list of it.
            tag: must equal the send's; another's message waits until it is received.
        """
        tensor = tensors.check(_one(tensors_), "recv")
        into, back = tensors.target(tensor)
        plan = operations.recv_from_any(tensors.freight(into), tag, self._limit_s)
        return self._run([Step(plan, back)], [tensor])


def _one(given: Any) -> Any:
    if not isinstance(given, (list, tuple)):
        return given
    if len(given) != 1:
        raise ValueError(f"a message is one tensor; there are {len(given)}")
    return given[0]
