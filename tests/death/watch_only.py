"""What ranks do that only watch each other; scenarios of test_watch_only.py."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import standfast
from tests.death.nursery import Here
from tests.death.scenarios import attempt, described


def join(here: Here, **more: Any) -> standfast.Watch:
    """Watch, with what the test says."""
    return standfast.watch(**{**here.init_args, **more, **here.blinding})


def checking(here: Here) -> None:
    """Check at each step; after the verdict check again, live on, end."""
    watch = join(here)
    if here.args.get("listens"):
        watch.add_listener(lambda event: here.say(event["kind"], **_told(event)))
    here.say("ready")
    attempt(here, "check", lambda: _until_raised(watch))
    attempt(here, "check", watch.check, "again")
    failure = watch.last_failure()
    here.say(
        "state",
        healthy=watch.healthy(),
        hints=[str(hint) for hint in watch.hints()],
        last=None if failure is None else described(failure),
    )
    here.ask()
    here.say("closed", ended=watch.end())


def _told(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("kind", "error")}


def _until_raised(watch: standfast.Watch) -> None:
    while True:
        watch.check()
        time.sleep(0.002)


def asleep(here: Here) -> None:
    """Wait for ever in a library that releases the GIL, and knows nothing of us."""
    watch = join(here)
    _hook(here, watch)
    here.say("ready")
    threading.Event().wait()


def stuck(here: Here) -> None:
    """Wait for ever in a library that keeps the GIL."""
    watch = join(here)
    _hook(here, watch)
    here.say("ready")
    ctypes.PyDLL(None).pause()


def _hook(here: Here, watch: standfast.Watch) -> None:
    hooks: dict[str, Callable[[], object]] = {
        "says": lambda: here.say("hook"),
        "blocks": lambda: _block(here),
        "raises": lambda: 1 / 0,
    }
    for name in here.args.get("hooks", ()):
        watch.add_abort_hook(hooks[name])


def _block(here: Here) -> None:
    here.say("hook")
    threading.Event().wait()


def freed(here: Here) -> None:
    """Wait in a library that an abort hook can free; then its own error ends the program."""
    watch = join(here)
    free = threading.Event()
    watch.add_abort_hook(free.set)
    here.say("ready")
    free.wait()
    here.say("freed")
    raise RuntimeError("the ring was aborted")


def handed(here: Here) -> None:
    """on_fault is a callable."""
    with join(here, on_fault=lambda error: here.say("handed", error=described(error))):
        here.say("ready")
        here.ask()


def beating(here: Here) -> None:
    """Beat every 10 ms; one rank stops to, or has nothing to do."""
    watch = join(here)
    quiet, idles = here.args["quiet"] == here.rank, here.args["idles"]
    watch.beat("decode", 1)
    here.say("ready")
    if quiet and idles:
        watch.idle()

    def beat_on() -> None:
        for step in range(2, 10**9):
            if not quiet:
                watch.beat("decode", step)
            watch.check()
            time.sleep(0.01)

    attempt(here, "check", beat_on)
    here.ask()
    watch.end()


def raising(here: Here) -> None:
    """One rank's program raises; one closes in good order; the others check."""
    watch = join(here)
    here.say("ready")
    word = here.ask()
    if word == "raise":
        raise LookupError("no such layer")
    if word == "end":
        here.say("closed", ended=watch.end("done"))
        here.ask()
        return
    attempt(here, "check", lambda: _until_raised(watch))
    here.ask()


def blamed(here: Here) -> None:
    """A library raises because its peer is gone, before anybody has told us."""
    if not here.args["within"]:
        join(here)
        _lose(here)
    with join(here):
        try:
            _lose(here)
        except OSError as error:
            raise RuntimeError("no more batches") from error


def _lose(here: Here) -> None:
    here.say("ready")
    here.ask()
    raise ConnectionResetError("connection to a peer was lost")
