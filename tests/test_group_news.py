"""What a Group tells while its program is elsewhere: hooks, listeners, hints."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import standfast
from standfast import Group
from tests.ranks import be_killed, run_ranks


def lose_one(group: Group, in_an_operation: bool) -> Any:
    hooked = threading.Event()
    events: list[dict[str, Any]] = []
    group.add_abort_hook(hooked.set)
    group.add_listener(events.append)
    group.barrier()
    if group.rank == 1:
        time.sleep(0.5)  # until the others have left the barrier, too
        be_killed()
    if not in_an_operation:
        assert hooked.wait(10)
    error: standfast.StandfastError | None = None
    try:
        group.barrier()
    except standfast.StandfastError as found:
        error = found
    assert error is not None
    assert hooked.wait(10)
    end_s = time.monotonic() + 10
    while not events and time.monotonic() < end_s:
        time.sleep(0.001)
    return error.to_dict(), [(event["kind"], event["rank"]) for event in events]


@pytest.mark.parametrize("in_an_operation", [True, False])
def test_a_death_reaches_hooks_and_listeners(in_an_operation: bool) -> None:
    """Both hear of it, in an operation or not; the operation's own error stays complete."""
    ended = run_ranks(3, lose_one, in_an_operation, check=False)
    for rank in (0, 2):
        assert ended[rank].returned, str(ended[rank])
        error, events = ended[rank].value
        assert (error["type"], error["rank"], error["op"]) == ("PeerDied", 1, "barrier")
        assert events == [("verdict", 1)]


def see_a_late_one(group: Group) -> list[dict[str, Any]]:
    if group.rank == 1:
        time.sleep(2.5)
        group.barrier()
        return []
    found: list[dict[str, Any]] = []

    def look() -> None:
        end_s = time.monotonic() + 2.0
        while not found and time.monotonic() < end_s:
            found.extend(
                {"kind": hint.kind, "rank": hint.rank, "host": hint.host, "text": str(hint)}
                for hint in group.hints()
            )
            time.sleep(0.01)

    looking = threading.Thread(target=look)
    looking.start()
    group.barrier()
    looking.join()
    return found


def test_hints_name_who_is_late() -> None:
    """Those who wait see whom they wait for; the operation then ends well, nobody was ended."""
    limits = {"hint_s": 0.5, "heartbeat_s": 0.1}
    ended = run_ranks(3, see_a_late_one, init=limits)
    for rank in (0, 2):
        (hint, *_) = ended[rank].value
        assert (hint["kind"], hint["rank"]) == ("late", 1)
        assert hint["host"]
        assert hint["text"].startswith(f"rank 1 on {hint['host']} is late")


def closed_and_forked(group: Group) -> list[str]:
    found = [type(group.hints()).__name__, group.end("orderly"), group.end("orderly")]
    try:
        group.add_listener(print)
    except standfast.GroupClosed as error:
        found.append(error.message)
    return found


def test_after_the_end() -> None:
    """end() says how it ended, each time; nobody can listen to a closed group."""
    for rank in run_ranks(2, closed_and_forked):
        assert rank.value == ["list", "orderly", "orderly", "the group world was closed"]
