"""A rank's stand-by port: where the others find it when the group forms again.

It is the data port of the first generation, kept open as long as the process belongs to the group:
a port that refuses a connection therefore says that its rank is gone. While a later generation is
at work, a thread answers there, so that a rank without which the others went on is told so.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import socket
import threading
import weakref

from standfast.rendezvous import lineage
from standfast.rendezvous.channel import Channel
from standfast.rendezvous.door import Door
from standfast.rendezvous.lineage import Lineage
from standfast.rendezvous.loop import READ, Loop
from standfast.rendezvous.muster import COMER
from standfast.rendezvous.protocol import EVERYBODY, REFORM, Begin, Hello, Malformed, Refused

logger: logging.Logger = logging.getLogger("standfast")

# How long the thread stays awake after somebody has come: 10 s to be answered, 1 s to be read.
AWAKE_S = 11.0
STOP_S = 2.0

_all: weakref.WeakSet[StandBy] = weakref.WeakSet()


class StandBy:
    """Owns the port. In a forked child it is closed: the child is no rank."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self._keeper: DoorKeeper | None = None
        weakref.finalize(self, listener.close)
        _watch_forks()
        _all.add(self)

    def serve(
        self, known: Lineage, hello: Hello, key: bytes | None, closed: Refused | None = None
    ) -> None:
        """Answer those who come, from here on. A thread that cannot be had is only logged.

        closed: why newcomers cannot be taken in at all, if so.
        """
        keeper = DoorKeeper(self.listener, known, hello, key, closed)
        try:
            keeper.start()
        except RuntimeError as error:
            logger.warning("nobody answers at the stand-by port: %s", error)
            return
        self._keeper = keeper
        # Where a group is dropped without close(), too.
        self._dropped = weakref.finalize(self, keeper.ring)

    def rest(self) -> None:
        """Answer nobody any more; the port stays open."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._dropped.detach()
            keeper.stop()

    def close(self) -> None:
        """Close the port: this rank does not come back."""
        self.rest()
        self.listener.close()

    def forget(self) -> None:
        """In a forked child: the thread is not there."""
        self._keeper = None
        self.listener.close()


class DoorKeeper(threading.Thread):
    """Tells each comer that the group is at work, or that it went on without it.

    It sleeps until somebody comes. Everything that comes is bounded by Door.
    """

    def __init__(
        self,
        listener: socket.socket,
        known: Lineage,
        hello: Hello,
        key: bytes | None,
        closed: Refused | None = None,
    ) -> None:
        super().__init__(name="standfast-standby", daemon=True)
        self._listener = listener
        self._known = known
        self._hello = hello
        self._key = key
        self._closed = closed
        self._bell, self._ring = socket.socketpair()

    def ring(self) -> None:
        """Let the thread end."""
        self._ring.close()

    def stop(self) -> None:
        """End the thread."""
        self.ring()
        self.join(STOP_S)

    def run(self) -> None:
        """Serve until the other end of the bell is closed."""
        try:
            with self._bell:
                while self._await_somebody():
                    self._answer()
        except Exception:  # the group itself is not concerned
            logger.exception("the stand-by port is not served any more")

    def _await_somebody(self) -> bool:
        """Sleep; False when it is time to end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            bell = selector.register(self._bell, selectors.EVENT_READ)
            return bell not in [key for key, _ in selector.select()]

    def _answer(self) -> None:
        with Loop(AWAKE_S) as loop, contextlib.suppress(_Over):
            loop.watch(self._bell, READ, _end)
            door = Door(
                loop,
                [self._listener],
                purpose=REFORM,
                rank=EVERYBODY,
                size=self._known.full_size,
                secret=self._key,
                local_only=False,
                came=lambda channel, begin, proof: self._came(door, channel, begin),
            )
            door.open()
            while not loop.expired():
                loop.turn()

    def _came(self, door: Door, channel: Channel, begin: Begin) -> None:
        try:
            comer = COMER.read(begin.body)
        except Malformed as error:
            door.refuse(channel, Refused("rendezvous", f"it sent {error}"))
            return
        answer = lineage.answer_at_work(comer, self._known, self._hello, self._closed)
        door.refuse(channel, answer)


class _Over(Exception):
    """The bell has rung."""


def _end(events: int) -> None:
    raise _Over


@functools.cache
def _watch_forks() -> None:
    """Once: see to it that forked children do not keep the ports of a dead parent open."""
    os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for standby in list(_all):
        standby.forget()
