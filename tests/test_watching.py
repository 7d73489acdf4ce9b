"""watching.py: standfast.watch() by its arguments, its states and its end; deaths: tests/death."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Watch, hooks, joining, settings
from standfast.errors import ConfigError
from tests.ranks import Job, run_ranks


def caught(call: Callable[[], Any]) -> BaseException:
    """Return what a call raises."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - judged by the test
        return error
    raise AssertionError("nothing was raised")


def alone(**more: Any) -> Watch:
    """A watch over one rank."""
    return standfast.watch(0, 1, **more)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"on_fault": "explode"}, "on_fault='explode'"),
        ({"on_fault": None}, "on_fault=None"),
        ({"on_fault": "exit", "exit_on_fault": False}, "contradict each other"),
        ({"speed": 3}, "there is no setting 'speed'"),
        ({"silence_s": 0.5}, "silence_s=0.5"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    """Each is a ConfigError that says what is wrong, before anything is joined."""
    with pytest.raises(ConfigError, match=words):
        alone(**arguments)


def test_the_bounded_end_is_on_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """exit_on_fault is True unless somebody says no; on_fault="exit" wins over the environment."""
    made: list[settings.Settings] = []
    joined = joining.join

    def join(who: Any, chosen: settings.Settings, **more: Any) -> Any:
        made.append(chosen)
        return joined(who, chosen, **more)

    monkeypatch.setattr(joining, "join", join)
    alone().end()
    alone(exit_on_fault=False).end()
    monkeypatch.setenv("STANDFAST_EXIT_ON_FAULT", "0")
    alone().end()
    alone(on_fault="exit").end()
    assert [chosen.exit_on_fault for chosen in made] == [True, False, False, True]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda watch: watch.beat(3, 4), TypeError, "label is a int"),
        (lambda watch: watch.beat("x", -1), ValueError, "step is -1"),
        (lambda watch: watch.beat("x", 2**64), ValueError, "step is"),
        (lambda watch: watch.add_abort_hook(7), TypeError, "abort hook must be callable"),
        (lambda watch: watch.add_listener("x"), TypeError, "listener must be callable"),
        (lambda watch: watch.end("bye"), ValueError, "how is 'bye'"),
    ],
)
def test_wrong_calls(call: Any, kind: type[Exception], words: str) -> None:
    """A mistake is raised at once, and the watch goes on."""
    with alone() as watch:
        with pytest.raises(kind, match=words):
            call(watch)
        assert watch.healthy()


# --- states ---------------------------------------------------------------------------------------


def test_alone_all_is_well() -> None:
    """One rank: nothing to hint at, check() is silent, the end is orderly; twice is once."""
    watch = alone()
    watch.beat("decode", 1)
    watch.idle()
    watch.check()
    assert (watch.rank, watch.size, watch.generation) == (0, 1, 1)
    assert watch.hints() == []
    assert watch.last_failure() is None
    assert repr(watch) == "<standfast.Watch: rank 0 of 1, open>"
    assert watch.end("done") == "orderly"
    assert watch.end() == "orderly"
    assert not watch.healthy()
    assert repr(watch) == "<standfast.Watch: rank 0 of 1, closed>"


def test_after_the_end() -> None:
    """check() and hooks raise GroupClosed; beats and hints are nothing, as late threads need."""
    watch = alone()
    watch.end()
    with pytest.raises(standfast.GroupClosed, match="the watch was closed"):
        watch.check()
    with pytest.raises(standfast.GroupClosed):
        watch.add_abort_hook(print)
    watch.beat("decode", 1)
    watch.idle()
    assert watch.hints() == []


def test_the_threads_end_with_the_watch() -> None:
    """A herald is there while it is needed, and gone after end()."""
    watch = alone()
    watch.add_listener(lambda event: None)
    assert "watch-herald" in [thread.name for thread in threading.enumerate()]
    began_s = time.monotonic()
    watch.end()
    assert "watch-herald" not in [thread.name for thread in threading.enumerate()]
    assert time.monotonic() - began_s < 5.0


def test_in_a_forked_child() -> None:
    """A child has no part in its parent's watch, is told so, and cannot end it."""
    watch = alone()
    watch.add_listener(lambda event: None)
    child = os.fork()
    if child == 0:
        right = 0
        for call in (watch.check, lambda: watch.add_abort_hook(print)):
            if "of which this is a forked child" not in str(caught(call)):
                right = 1
        os._exit(right if watch.end() == "orderly" else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    watch.check()
    assert watch.end() == "orderly"


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that cannot start what it promises is no watch: RendezvousError, nothing left."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(standfast.RendezvousError, match="could not start its watch"):
        alone(on_fault="exit")
    assert hooks.open_groups() == []


# --- together -------------------------------------------------------------------------------------


def go_through(how: str) -> Any:
    """Three ranks watch; rank 1 ends in some way; the others tell how it looks to them."""
    events: list[dict[str, Any]] = []
    watch = standfast.watch(silence_s=30.0, progress_s=0.0)
    watch.add_listener(events.append)
    if watch.rank == 1:
        time.sleep(0.2)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return watch.end(how)
    end_s = time.monotonic() + (1.0 if how == "done" else 20.0)
    error: standfast.StandfastError | None = None
    while error is None and time.monotonic() < end_s:
        try:
            watch.check()
        except standfast.StandfastError as found:
            error = found
        time.sleep(0.001)
    while error is not None and not events and time.monotonic() < end_s:
        time.sleep(0.001)
    again = None if error is None else type(caught(watch.check)).__name__
    return (
        None if error is None else error.to_dict(),
        again,
        [event["kind"] for event in events],
        watch.end("done" if error is None else "failed"),
    )


@pytest.mark.parametrize(
    ("how", "kind", "ended"),
    [
        ("kill", "PeerDied", "peer_fault"),
        ("interrupted", "PeerLeft", "peer_fault"),
        ("failed", "PeerDied", "peer_fault"),
        ("done", None, "orderly"),
    ],
)
def test_how_an_end_looks_to_the_others(how: str, kind: str | None, ended: str) -> None:
    """Killed, interrupted and failed are a peer's fault for all; done is none."""
    found = run_ranks(3, go_through, how, form=False, check=False)
    for rank in (0, 2):
        assert found[rank].returned, str(found[rank])
        error, again, events, end = found[rank].value
        assert (None if error is None else (error["type"], error["rank"])) == (
            None if kind is None else (kind, 1)
        )
        assert again == kind
        assert events == ([] if kind is None else ["verdict"])
        assert end == ended
        assert found[rank].status == 0
    if how != "kill":
        assert found[1].value == ("failed" if how == "failed" else "orderly")


def both_at_once() -> Any:
    """A group and a watch in one program, over one coordinator."""
    with standfast.init() as group, standfast.watch() as watch:
        watch.check()
        total = group.all_sum(np.ones(3))
        return total.tolist(), watch.size


def test_beside_a_group() -> None:
    """A program may have both; each has its own ranks to meet."""
    assert [rank.value for rank in run_ranks(3, both_at_once, form=False)] == [([3.0] * 3, 3)] * 3


def keep_up(number: int) -> float:
    watch = standfast.watch()
    began_s = time.perf_counter()
    for step in range(number):
        watch.beat("decode", step)
        watch.check()
    return (time.perf_counter() - began_s) / number


def test_check_is_cheap() -> None:
    """beat() and check() of every step together stay far below any step of a program."""
    assert all(rank.value < 50e-6 for rank in run_ranks(2, keep_up, 20000, form=False))


def come_and_go() -> tuple[list[int], list[str]]:
    """Watch several times; return how much was open each time, and the threads in the end."""
    opened = []
    for generation in range(1, 5):
        watch = standfast.watch(on_fault="exit", generation=generation)
        watch.add_listener(lambda event: None)
        watch.end()
        opened.append(len(os.listdir("/dev/fd")))
    return opened, [thread.name for thread in threading.enumerate()]


def test_nothing_is_left() -> None:
    """Neither descriptors nor threads add up."""
    for rank in run_ranks(2, come_and_go, form=False):
        opened, threads = rank.value
        assert len(set(opened[1:])) == 1, opened
        assert threads == ["MainThread"]


def forget_it() -> str:
    """Leave everything to the interpreter's exit."""
    watch = standfast.watch(on_fault=lambda error: None)
    watch.add_abort_hook(lambda: None)
    return repr(watch)


def test_interpreter_exit_ends_it_well() -> None:
    """A program that closes nothing ends at once, with 0, and is no fault to the others."""
    with Job(3, forget_it, form=False) as job:
        began_s = time.monotonic()
        for rank in job.wait():
            assert (rank.status, rank.stderr) == (0, ""), str(rank)
        assert time.monotonic() - began_s < 20.0


def end_before_it_is_seen() -> str:
    """End in the very moment in which a peer is gone."""
    watch = standfast.watch(silence_s=30.0, progress_s=0.0)
    if watch.rank == 1:
        time.sleep(60)
    pid = watch._place.pids[1]
    os.kill(pid, signal.SIGKILL)
    while state_of(pid) not in ("", "Z"):
        time.sleep(0)
    return watch.end("failed")


def state_of(pid: int) -> str:
    words = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()[:1]


def test_a_fault_that_nobody_has_seen_yet() -> None:
    """end() says peer_fault if a peer's link is gone, although no check() has told it."""
    found = run_ranks(2, end_before_it_is_seen, form=False, check=False)
    assert found[0].value == "peer_fault", str(found[0])


def test_a_watch_does_not_form_again() -> None:
    """It says why, and what to do instead; the watch itself goes on."""
    with alone() as watch:
        with pytest.raises(ConfigError, match="a watch cannot form again in process") as caught:
            watch.reform(wait_s=3.0)
        assert "standfast run --restarts" in str(caught.value)
        watch.check()
