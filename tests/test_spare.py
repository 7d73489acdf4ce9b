"""spare.py: how a process that waits for a place becomes a rank, and how it ends without one."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from standfast.errors import ConfigError
from standfast.launch.spares import seat
from standfast.spare import SPARE_FD, wait_for_place


def spare() -> tuple[socket.socket, dict[str, str]]:
    """The launcher's end of a line, and the environment of a spare at its other end."""
    ours, its = socket.socketpair()
    return ours, {SPARE_FD: str(its.detach()), "KEPT": "1", "OLD": "2"}


def test_other_processes_do_not_wait() -> None:
    """Without the variable nothing happens, and nothing is touched."""
    environ = {"A": "1"}
    wait_for_place(environ)
    assert environ == {"A": "1"}


def test_it_becomes_the_rank() -> None:
    """What is new is set, what the rank does not have is gone, and nothing is left of the spare."""
    ours, environ = spare()
    assert seat(ours, environ, {"KEPT": "1", "STANDFAST_RANK": "3", "LONG": "x" * 4_000}, [])
    wait_for_place(environ)
    assert environ == {"KEPT": "1", "STANDFAST_RANK": "3", "LONG": "x" * 4_000}


def test_rank_0_gets_its_listener() -> None:
    """The descriptor arrives, and its number is the one that is told."""
    ours, environ = spare()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert seat(ours, environ, {"STANDFAST_LISTEN_FD": "99"}, [listener.fileno()])
        wait_for_place(environ)
        with socket.socket(fileno=int(environ["STANDFAST_LISTEN_FD"])) as got:
            assert got.getsockname() == listener.getsockname()


@pytest.mark.parametrize("begun", [b"", b'{"set": {'])
def test_the_end_of_the_job_is_a_good_end(begun: bytes) -> None:
    """A launcher that goes, at whatever moment, leaves no rank behind, and no traceback."""
    ours, environ = spare()

    def go() -> None:
        with ours:
            ours.sendall(begun)

    waiting = threading.Timer(0.05, go)
    waiting.start()
    with pytest.raises(SystemExit) as ended:
        wait_for_place(environ)
    waiting.join()
    assert ended.value.code == 0


def test_a_spare_that_is_gone_hears_nothing() -> None:
    """The launcher learns that nobody is there, and is not harmed."""
    ours, environ = spare()
    os.close(int(environ[SPARE_FD]))
    assert not seat(ours, environ, {"A": "1"}, [])


@pytest.mark.parametrize("text", ["x", "999999"])
def test_a_variable_of_somebody_elses(text: str) -> None:
    """It is named, with what it is for."""
    with pytest.raises(ConfigError, match=SPARE_FD):
        wait_for_place({SPARE_FD: text})
