"""What the ranks of these tests do: work, and form the group again whenever it ends."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any

import numpy as np

import standfast
from standfast import rendezvous
from standfast.identity import Identity
from tests.death.nursery import Here, now_ns
from tests.death.scenarios import attempt, described, descriptors


def work(here: Here) -> None:
    """Add up until the group ends, form it again, and so on, until the test says "end".

    At the word "grow" the ranks leave the group, which is well, to take newcomers in.

    args: reform (arguments of reform()), slow (wait for a word before reform()), die (once it knows
    who it is in the next generation), fork (have a child that lives on).
    """
    if here.args.get("die"):
        die_in_forming()
    group = here.init(state=here.args.get("state", "fresh").encode())
    if here.args.get("fork") and os.fork() == 0:
        signal.pause()  # with all that this process has open
    words = Words(here)
    begun_ns = now_ns()
    while True:
        tell(here, group, begun_ns)
        again = False
        error = None
        try:
            again = add_up(group, words)
        except standfast.StandfastError as fault:
            error = fault
            here.say(f"raised {group.generation}", error=described(fault))
        if not again and error is None:
            group.close()
            return
        if here.args.get("slow"):
            words.await_one()
        begun_ns = now_ns()
        wish = {**here.args.get("reform", {}), **({"wait_s": 30.0} if again else {})}
        answer = attempt(here, "reform", functools.partial(form_again, group, wish), "again")
        if isinstance(answer, BaseException):
            here.say("out", error=described(answer), took_s=(now_ns() - begun_ns) / 1e9)
            words.await_one()
            return
        old, group = group, answer
        attempt(here, "barrier", old.barrier, f"stale {old.generation}")
        attempt(here, "reform", old.reform, f"twice {old.generation}")


def form_again(old: standfast.Group, wish: dict[str, Any]) -> standfast.Group:
    return old.reform(**wish, state=f"after {old.generation}".encode())


def often(here: Here) -> None:
    """Form a group that is well again ten times, and tell how long each took."""
    group = here.init()
    seconds = []
    open_before = len(descriptors())
    for _ in range(10):
        group.barrier()
        begun_ns = now_ns()
        group = group.reform()
        seconds.append((now_ns() - begun_ns) / 1e9)
    here.say("took", seconds=seconds, opened=len(descriptors()) - open_before)
    here.ask()
    group.close()


class Words:
    """What the test says, heard by a thread, so that work need not wait for it."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._heard: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            word = self._here.ask()
            with self._news:
                self._heard.append(word)
                self._news.notify_all()

    def await_one(self) -> str:
        with self._news:
            self._news.wait_for(lambda: self._heard)
            return self._heard.pop(0)

    def take(self) -> str:
        with self._news:
            return self._heard.pop(0) if self._heard else ""


def add_up(group: standfast.Group, words: Words) -> bool:
    """Work until a rank is told to stop; tell whether to form again."""
    ranks = np.arange(group.size)
    while True:
        word = words.take()
        told = np.array([word == "end", word == "grow"], np.int32)
        told = group.all_max(told)
        mine = np.zeros(group.size, np.int64)
        mine[group.rank] = group.rank
        assert (group.all_sum(mine) == ranks).all()
        if told.any():
            return bool(told[1])


def tell(here: Here, group: standfast.Group, begun_ns: int) -> None:
    """Say who this rank is in this generation, with a result that all ranks must have."""
    said: dict[str, Any] = {
        "id": group.id,
        "generation": group.generation,
        "rank": group.rank,
        "size": group.size,
        "old_rank": group.old_rank,
        "old_ranks": group.old_ranks,
        "states": [state.decode() for state in group.states],
        "addresses": group.addresses(),
        "took_s": (now_ns() - begun_ns) / 1e9,
        "sum": group.all_sum(np.array([10**group.rank])).tolist(),
        "links": {str(rank): text for rank, text in group.links().items()},
    }
    here.say(f"formed {group.generation}", **said)


def die_in_forming() -> None:
    """Let this process be killed once it knows who it is in a later generation."""
    form = rendezvous.form

    def killed(who: Identity, *args: Any, **more: Any) -> rendezvous.Formation:
        if who.generation > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return form(who, *args, **more)

    rendezvous.form = killed  # type: ignore[assignment] # it takes whatever form() does
