"""Signals to the launcher, turned into something its loop can read."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Collects SIGINT, SIGTERM and SIGHUP, but none that was ignored at our start (nohup, `&`)."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._arrived: list[int] = []
        self._declined: dict[int, Callable[[], None]] = {}
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        selector.register(self._read_fd, selectors.EVENT_READ, self._drain)
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                self._before[each] = signal.signal(each, self._note)

    def take(self) -> list[int]:
        """Return the signals that came since the last call; tell of those that are declined."""
        arrived, self._arrived = self._arrived, []
        for number in arrived:
            if number in self._declined:
                self._declined[number]()
        return [number for number in arrived if number not in self._declined]

    def decline(self, number: signal.Signals, tell: Callable[[], None]) -> None:
        """Do not do what this signal wants, but tell so."""
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._declined[number] = tell
            self._before[number] = signal.signal(number, self._note)

    def close(self) -> None:
        """Put the handlers back."""
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._selector.unregister(self._read_fd)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 512):
                pass
