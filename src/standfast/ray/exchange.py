"""How a function and its results travel between run() and the ranks: a listener and its callers.

A rank connects twice: for the call, and with its result; it begins with the token, and nothing is
given or unpickled without. It goes around Ray, for then a rank needs no connection to Ray at all.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

TOKEN_BYTES = 32
HEAD = struct.Struct("!IIQ")
"""Rank, generation, bytes of the result."""
SIZE = struct.Struct("!Q")
FETCH, DELIVER = b"?", b"!"
TAKEN = b"+"
LIMIT_S = 60.0
"""How long either side may keep the other waiting for the next bytes."""
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """What a rank has delivered, pickled."""

    generation: int
    data: bytes


class Exchange:
    """Gives the call to ranks and takes their results, in threads, until it is closed."""

    def __init__(self, address: str, ranks: int, call: bytes) -> None:
        self._token = os.urandom(TOKEN_BYTES)
        self._call = call
        self._ranks = ranks
        self._found: dict[int, Result] = {}
        self._lock = threading.Lock()  # guards _found
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def variable(self) -> str:
        """Return what ranks have to know: port and token."""
        return f"{self._listener.getsockname()[1]}:{self._token.hex()}"

    def values(self, ranks: int, generation: int) -> list[Any]:
        """Return the results of a generation's ranks in their order; KeyError if one is missing."""
        with self._lock:
            found = dict(self._found)
        missing = [rank for rank in range(ranks) if generation_of(found.get(rank)) != generation]
        if missing:
            raise KeyError(f"no result of rank {missing[0]} in generation {generation}")
        return [pickle.loads(found[rank].data) for rank in range(ranks)]

    def close(self) -> None:
        """Give and take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(1.0)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError, EOFError):
            line.settimeout(LIMIT_S)
            if not hmac.compare_digest(_read(line, TOKEN_BYTES), self._token):
                return
            if _read(line, 1) == FETCH:
                line.sendall(SIZE.pack(len(self._call)) + self._call)
                return
            rank, generation, size = HEAD.unpack(_read(line, HEAD.size))
            self._keep(rank, Result(generation, _read(line, size)))
            line.sendall(TAKEN)

    def _keep(self, rank: int, result: Result) -> None:
        """Keep the latest generation's: one that is late is no news."""
        with self._lock:
            if rank < self._ranks and generation_of(self._found.get(rank)) <= result.generation:
                self._found[rank] = result


def generation_of(result: Result | None) -> int:
    """Return a result's generation, 0 if there is none."""
    return 0 if result is None else result.generation


def fetch(host: str, variable: str) -> bytes:
    """Return the pickled call.

    Raises:
        OSError, EOFError: the process that called run() cannot be reached.
    """
    with _dial(host, variable) as line:
        line.sendall(FETCH)
        (size,) = SIZE.unpack(_read(line, SIZE.size))
        return _read(line, size)


def deliver(host: str, variable: str, *, rank: int, generation: int, data: bytes) -> None:
    """Send a rank's pickled result, and wait until it was taken.

    Raises:
        OSError, EOFError: the process that called run() cannot be reached, or did not take it.
    """
    with _dial(host, variable) as line:
        line.sendall(DELIVER + HEAD.pack(rank, generation, len(data)))
        line.sendall(data)
        _read(line, len(TAKEN))


def _dial(host: str, variable: str) -> socket.socket:
    port, _, token = variable.partition(":")
    line = socket.create_connection((host, int(port)), LIMIT_S)
    line.sendall(bytes.fromhex(token))
    return line


def _read(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = line.recv(min(PIECE_BYTES, count - len(data)))
        if not piece:
            raise EOFError(f"the other side left after {len(data)} of {count} bytes")
        data += piece
    return bytes(data)
