"""The ranks' processes as a test sees them: what they have said; the nursery that starts them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.death.nursery import receive_message, send_message
from tests.ranks import ROOT, rank_environment

NURSERY = Path(__file__).with_name("nursery.py")
REAP_S = 10.0


@dataclasses.dataclass
class Event:
    """What a rank said, and when."""

    name: str
    ns: int
    fields: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    @property
    def error(self) -> dict[str, Any]:
        """The error of a "raised": its to_dict(), or type and message."""
        found: dict[str, Any] = self.fields["error"]
        return found


class Rank:
    """One rank's process, as the test sees it."""

    def __init__(self, number: int, rank: int, line: socket.socket) -> None:
        self.number = number
        self.rank = rank
        self.line = line
        self.pid = 0
        self.status: int | None = None
        self.ended_ns = 0
        self.events: list[Event] = []
        self._heard = b""

    def hear(self) -> bool:
        """Take what has come; False at the end."""
        try:
            part = self.line.recv(1 << 16)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self._heard += part
        *lines, self._heard = self._heard.split(b"\n")
        for text in lines:
            fields = json.loads(text)
            self.events.append(Event(fields.pop("event"), fields.pop("ns"), fields))
        return bool(part)

    def said(self, name: str) -> Event | None:
        return next((event for event in self.events if event.name == name), None)


class Nursery:
    """The nursery process, and the loop that hears it and the ranks."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        env = rank_environment(0, 0, "")
        for name in [name for name in env if name.startswith("STANDFAST_")]:
            del env[name]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(NURSERY), "nursery", str(theirs.fileno())],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                start_new_session=True,
            )
        self._numbers = itertools.count()
        self._ranks: dict[int, Rank] = {}
        self._answers: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sock, selectors.EVENT_READ, None)

    def close(self) -> None:
        self._selector.close()
        self._sock.close()
        self._process.wait(REAP_S)

    def pump(self, seconds: float) -> None:
        """Hear what has come; wait for it up to so long."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.data is None:
                self._take()
            elif not key.data.hear():
                self._selector.unregister(key.data.line)

    def _take(self) -> None:
        message, _ = receive_message(self._sock)
        if message["did"] != "end":
            self._answers.append(message)
            return
        rank = self._ranks[message["id"]]
        rank.status, rank.ended_ns = message["status"], message["ns"]
        while rank.line.fileno() in self._selector.get_map() and rank.hear():
            if not _readable(rank.line):
                break

    def ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Send a request and return the answer."""
        send_message(self._sock, message, fds)
        deadline = time.monotonic() + REAP_S
        while not self._answers:
            assert time.monotonic() < deadline, f"the nursery does not answer {message}"
            self.pump(0.5)
        return self._answers.pop(0)

    def start(self, message: dict[str, Any], coordinator: socket.socket | None) -> Rank:
        """Start a rank."""
        line, theirs = socket.socketpair()
        line.setblocking(False)
        number = next(self._numbers)
        rank = self._ranks[number] = Rank(number, message["rank"], line)
        self._selector.register(line, selectors.EVENT_READ, rank)
        with theirs:
            fds = (theirs.fileno(), *([coordinator.fileno()] if coordinator else []))
            rank.pid = self.ask({"do": "start", "id": number, **message}, fds)["pid"]
        return rank

    def forget(self, rank: Rank) -> None:
        self.ask({"do": "forget", "id": rank.number})
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(rank.line)
        rank.line.close()
        del self._ranks[rank.number]


def _readable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))
