"""What stands in for Wiring where ranks only watch each other: there is nothing to make.

Coordinator and member use the one or the other alike.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.rendezvous.formation import WireEnd
from standfast.rendezvous.protocol import Trouble


class Unwired:
    """No wires: complete from the start."""

    def __init__(self, *, finished: Callable[[], None]) -> None:
        self._finished = finished

    @property
    def topology(self) -> str:
        """Anything."""
        return ""

    def start(self) -> None:
        """Be done at once."""
        self._finished()

    def complete(self) -> bool:
        """Nothing is missing."""
        return True

    def trouble(self) -> Trouble:
        """Nothing is wrong."""
        return Trouble([], "")

    def close_door(self) -> None:
        """Nobody calls."""

    def release(self) -> list[WireEnd]:
        """Hand over nothing."""
        return []

    def abandon(self) -> None:
        """There is no memory to let go of."""
