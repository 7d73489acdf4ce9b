"""hooks.py: how a program ends while groups are open, and what the peers hear of it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Any

import pytest

import standfast
from standfast import hooks
from tests.ranks import run_ranks

ENDED = "an atexit function of the program has run"


def report(call: Any) -> Any:
    """Return what a call raises, as a dict."""
    try:
        call()
    except standfast.StandfastError as error:
        return error.to_dict()
    return None


def program(body: str) -> Any:
    """Form a group without a with block; rank 1 ends in one of many ways, the others wait."""
    atexit.register(print, ENDED, flush=True)
    if body == "own hook":
        sys.excepthook = own_hook
    group = standfast.init(excepthook=body != "no hook")
    group.barrier()
    if group.rank == 1:
        time.sleep(0.05)
        misbehave(body)
        return None
    if body == "leave it":
        group.barrier()
    return report(group.barrier)


def own_hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    print("own hook saw", kind.__name__, file=sys.stderr)


def misbehave(body: str) -> None:
    """End rank 1."""
    if body == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    if body == "exit 4":
        sys.exit(4)
    if body == "thread":
        thread = threading.Thread(target=misbehave, args=("raise",))
        threading.excepthook = lambda args: None
        thread.start()
        thread.join()
        return
    if body not in ("return", "leave it"):
        raise LookupError("no such layer")


@pytest.mark.parametrize(
    ("body", "kind", "text", "status"),
    [
        ("raise", "RemoteFailure", "raised LookupError: no such layer", 1),
        ("own hook", "RemoteFailure", "raised LookupError: no such layer", 1),
        ("no hook", "PeerLeft", "left: closed its group", 1),
        ("interrupt", "PeerLeft", "left: interrupted", -signal.SIGINT),
        ("exit 4", "PeerLeft", "left: closed its group", 4),
        ("return", "PeerLeft", "left: closed its group", 0),
        ("thread", "PeerLeft", "left: closed its group", 0),
    ],
)
def test_how_a_rank_ends_is_told(body: str, kind: str, text: str, status: int) -> None:
    """Uncaught exceptions, Ctrl-C, exit and return each reach the peers as what they are."""
    ended = run_ranks(3, program, body, form=False, check=False)
    assert ended[1].status == status, str(ended[1])
    for rank in (0, 2):
        told = ended[rank].value
        assert (told["type"], told["rank"]) == (kind, 1), told
        assert text in told["message"]
        assert ended[rank].status == 0
    assert all(ENDED in rank.stdout for rank in ended)
    if kind == "RemoteFailure":
        tail = ended[0].value["remote_traceback"]
        assert tail.endswith("LookupError: no such layer")
        assert len(tail.splitlines()) <= 20
        expected = "own hook saw LookupError" if body == "own hook" else "Traceback (most recent"
        assert ended[1].stderr.count(expected) == 1


def test_an_uncaught_error_of_ours_sets_the_exit_status() -> None:
    """A lost peer ends the program with 75, the traceback printed once, atexit functions run."""
    ended = run_ranks(3, program, "leave it", form=False, check=False)
    assert ended[1].status == 0
    for rank in (0, 2):
        assert ended[rank].status == 75, str(ended[rank])
        assert ended[rank].stderr.count("Traceback (most recent call last)") == 1
        assert "standfast.errors.PeerLeft: rank 1 on " in ended[rank].stderr
        assert ENDED in ended[rank].stdout


def no_coordinator() -> None:
    standfast.init(rank=1, size=2, coordinator="127.0.0.1:9", timeout_s=0.3)


def bad_setting() -> None:
    standfast.init(rank=0, size=1, fabric="carrier pigeon")


def bad_setting_without_hook() -> None:
    standfast.init(rank=0, size=1, excepthook=False).close()
    raise standfast.PeerError("made up")


@pytest.mark.parametrize(
    ("function", "status", "text"),
    [
        (no_coordinator, 69, "RendezvousError"),
        (bad_setting, 78, "ConfigError"),
        (bad_setting_without_hook, 1, "PeerError"),
    ],
)
def test_errors_of_init_set_the_exit_status(function: Any, status: int, text: str) -> None:
    """What init() raises has its exit status, too; without the hook Python's own holds."""
    (ended,) = run_ranks(1, function, form=False, check=False)
    assert ended.status == status, str(ended)
    assert text in ended.stderr


def foreign(text: str) -> None:
    standfast.init(rank=0, size=1).close()
    hooks.expect(standfast.PeerDied("rank 1 died", hint="look at it"))
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("text", "status"), [("[stream] rank 1 died\nhint: look at it", 75), ("rank 2 died", 1)]
)
def test_foreign_code_that_raises_our_text(text: str, status: int) -> None:
    """An exception of another library with the text of our error ends with its status."""
    (ended,) = run_ranks(1, foreign, text, form=False, check=False)
    assert ended.status == status, str(ended)


def many_open() -> tuple[int, int]:
    group = standfast.init()
    parts = [group.split(0), group.split(group.rank)]
    assert all(parts)
    group.barrier()
    return group.rank, group.size


def test_open_groups_are_closed_at_exit() -> None:
    """A program that closes nothing ends at once and well, and nobody misses it."""
    began = time.monotonic()
    ended = run_ranks(3, many_open, form=False)
    assert [rank.value for rank in ended] == [(0, 3), (1, 3), (2, 3)]
    assert all(rank.stderr == "" for rank in ended)
    assert time.monotonic() - began < 30
