"""Lets signal handlers run between two turns of the loop, and at no other place.

A handler may raise (Ctrl-C does), and Python calls it between any two instructions: between sending
bytes and noting that they are sent, say, after which no further frame could be sent safely, and the
others would not learn that this rank was interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class Deferred:
    """While entered, remembers signals; `serve` calls the handlers that the program has for them.

    Only in the main thread, where Python runs handlers. Signals that the program leaves to the
    system or ignores stay as they are.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._pending: list[int] = []

    def enter(self) -> None:
        """Begin to remember."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._remember)

    def serve(self) -> None:
        """Call the handlers of the signals that have come; what one raises comes out of here."""
        while self._pending:
            number = self._pending.pop(0)
            self._handlers[number](number, None)

    def leave(self) -> None:
        """Give the program its handlers back, and serve what has come last."""
        for number, handler in self._handlers.items():
            # A handler of the program may have installed another one meanwhile.
            if signal.getsignal(number) == self._remember:
                signal.signal(number, handler)
        self.serve()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(number)
