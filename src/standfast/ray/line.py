"""Stands where ssh stands otherwise: the launcher's connection to the agent in one place of Ray's.

    python -I -S line.py SOCKET ... -- ray-2 COMMAND

A process of its own per place, started by launch/link.py and in the guardian's care. It asks the
steward behind SOCKET for the place, waits for the actor to call, and passes bytes on: stdin to the
agent, the agent's to stdout. What goes wrong it says on stderr, as ssh does. Needs nothing but the
standard library, so that it starts within milliseconds.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import sys
import threading
from typing import Any

READ_BYTES = 1 << 16
REASON_S = 1.0
"""How long the steward may take to say what became of a place."""
TOKEN_S = 5.0
FAILED = 255
"""ssh's status for its own failures."""


class NoPlace(Exception):
    """The steward cannot give the place."""


class Steward:
    """The connection to the steward: lines of JSON, one thing each."""

    def __init__(self, path: str) -> None:
        self.socket: socket.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self._rest = b""

    def say(self, **words: Any) -> None:
        """Send a line."""
        self.socket.sendall(json.dumps(words).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Return the next line; NoPlace if there is none any more."""
        while b"\n" not in self._rest:
            try:
                data = self.socket.recv(READ_BYTES)
            except TimeoutError:
                return {}
            if not data:
                raise NoPlace("the process that talks to Ray is gone")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\n")
        words: dict[str, Any] = json.loads(text)
        return words


def open_place(steward: Steward, host: str) -> socket.socket:
    """Ask for a place; return the connection of the actor that took it."""
    address = steward.hear()["host"]
    token = os.urandom(16).hex()
    with socket.create_server((address, 0), family=_family(address)) as listener:
        steward.say(host=host, address=address, port=listener.getsockname()[1], token=token)
        while True:
            ready, _, _ = select.select([listener, steward.socket], [], [])
            if steward.socket in ready:
                said = steward.hear()
                if said.get("over"):
                    raise NoPlace(said["text"])
                complain(said["text"])
            if listener in ready:
                line, _ = listener.accept()
                if _knows(line, token):
                    return line
                line.close()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _knows(line: socket.socket, token: str) -> bool:
    """Whether the caller begins with the token: anybody can call here."""
    line.settimeout(TOKEN_S)
    got = b""
    wanted = f"{token}\n".encode()
    with contextlib.suppress(OSError):
        while len(got) < len(wanted) and (data := line.recv(len(wanted) - len(got))):
            got += data
    line.settimeout(None)
    return hmac.compare_digest(got, wanted)


def carry(line: socket.socket, steward: Steward) -> str:
    """Pass bytes on until the agent, the way to it, or its actor in Ray's eyes has ended.

    Returns what the steward knows about that.
    """
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_carry_orders, args=(line,), daemon=True).start()
    with contextlib.suppress(OSError):
        while True:
            ready, _, _ = select.select([line, steward.socket], [], [])
            if line in ready:
                data = line.recv(READ_BYTES)
                if not data:
                    break
                _write_all(data)
            elif (said := steward.hear()).get("over"):
                return str(said["text"])
    return last_words(steward)


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _carry_orders(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, READ_BYTES):
            line.sendall(data)
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)


def last_words(steward: Steward) -> str:
    """Return what the steward knows about the end of the place; empty if it was in order."""
    steward.socket.settimeout(REASON_S)
    while True:
        said = steward.hear()
        if not said or said.get("over"):
            return str(said.get("text", ""))


def complain(text: str) -> None:
    """Say something on stderr, as a line."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Be the line; return the exit status."""
    path, host = arguments[0], arguments[arguments.index("--") + 1]
    try:
        steward = Steward(path)
        with open_place(steward, host) as line:
            reason = carry(line, steward)
    except (NoPlace, OSError) as error:
        reason = str(error)
    if reason:
        complain(reason)
    return FAILED if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
