"""A spare: a process that has done its imports, and waits in init() for a lost rank's place.

The launcher gives it one end of a socket (STANDFAST_SPARE_FD). A line of JSON is a place: what its
environment becomes. The end of the connection is the end of the job. launch/spares.py is the other
end.
"""

from __future__ import annotations

import array
import json
import socket
from collections.abc import MutableMapping

from standfast.errors import ConfigError

SPARE_FD = "STANDFAST_SPARE_FD"
LISTEN_FD = "STANDFAST_LISTEN_FD"
READ_BYTES = 65536


def wait_for_place(environ: MutableMapping[str, str]) -> None:
    """Return at once in any process but a spare; there, when it has a place: then it is that rank.

    Args:
        environ: this process's environment, which becomes that of the rank.

    Raises:
        SystemExit: with status 0, when the job is over and the spare was not needed.
        ConfigError: STANDFAST_SPARE_FD is no such socket.
    """
    text = environ.pop(SPARE_FD, None)
    if text is None:
        return
    try:
        line = socket.socket(fileno=int(text))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{SPARE_FD}={text!r} is not a socket of a launcher: {error}",
            hint="`standfast run --spares` sets it; unset it elsewhere",
        ) from error
    with line:
        line.set_inheritable(False)
        place, fds = _receive(line)
    if place is None:
        raise SystemExit(0)
    for name in place["unset"]:
        environ.pop(name, None)
    environ.update(place["set"])
    if fds:
        environ[LISTEN_FD] = str(fds[0])


def _receive(line: socket.socket) -> tuple[dict[str, dict[str, str]] | None, list[int]]:
    """Return this spare's place, or None at the end, and the listener."""
    data, fds = b"", array.array("i")
    try:
        while not data.endswith(b"\n"):
            piece, ancillary, _, _ = line.recvmsg(READ_BYTES, socket.CMSG_SPACE(fds.itemsize))
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            if not piece:
                return None, []
            data += piece
    except ConnectionError:
        return None, []
    return json.loads(data), list(fds)
