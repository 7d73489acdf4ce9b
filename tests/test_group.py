"""group.py: a group's life - forming, splitting, closing, failing - on real ranks."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Group, errors, splitting
from standfast.settings import Settings
from tests.ranks import Ended, Job, Pool, be_killed, run_ranks

PROMPT_S = 5.0
"""What is promised is 1 s, which tests/death measures; here it is only no waiting for a limit."""


def caught(group: Group, call: Any, *args: Any, **kwargs: Any) -> errors.StandfastError:
    """Return the error that a call raises."""
    try:
        call(*args, **kwargs)
    except errors.StandfastError as error:
        return error
    raise AssertionError(f"rank {group.rank}: {call.__name__} raised nothing")


# --- forming --------------------------------------------------------------------------------------


def who(group: Group) -> tuple[int, int, int, str, bool, dict[int, str], str]:
    failure = group.last_failure()
    assert failure is None
    return (
        group.rank,
        group.size,
        group.generation,
        group.name,
        group.healthy(),
        dict(group.links()),
        repr(group),
    )


@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
def test_a_group_knows_itself(pool: Pool, fabric: str) -> None:
    """Rank, size, generation, name, health and links are as they were formed."""
    for rank, ended in enumerate(pool.run(3, who, init={"fabric": fabric, "generation": 4})):
        number, size, generation, name, healthy, links, text = ended.value
        assert (number, size, generation, name, healthy) == (rank, 3, 4, "world", True)
        assert sorted(links) == [other for other in range(3) if other != rank]
        begin = "rdma" if fabric == "verbs" else fabric
        assert all(link.startswith(begin) for link in links.values())
        assert text == f"<standfast.Group world: rank {rank} of 3, open>"


def alone(group: Group) -> None:
    x = np.arange(6.0).reshape(3, 2)
    for op in ("sum", "max", "min", "prod"):
        assert (group.all_reduce(x, op) == x).all()
    same = (group.all_gather, group.reduce_scatter, group.broadcast, group.all_to_all, group.gather)
    for call in (*same, group.scatter):
        out = np.zeros_like(x)
        assert (call(x) == x).all()
        assert call(x) is not x
        assert call(x, out=out) is out
        assert (out == x).all()
    assert group.gather(b"abc") == [b"abc"]
    assert group.all_sum(x, out=x) is x
    assert group.agree(True)
    assert not group.agree(False)
    assert group.all_sum_async(2).result() == 2
    group.barrier()
    inner = group.split(0)
    assert inner is not None
    with inner:
        assert (inner.size, inner.name) == (1, "world/1.0")
        assert inner.all_sum(5) == 5
    assert group.split(None) is None
    with pytest.raises(
        ValueError, match="dst is 0, this rank itself; a rank cannot send to itself"
    ):
        group.send(x, 0)


@pytest.mark.parametrize("topology", ["mesh", "ring", "auto"])
def test_a_group_of_one(pool: Pool, topology: str) -> None:
    """All operations work at once; results are copies."""
    pool.run(1, alone, init={"topology": topology})


def test_a_group_of_one_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rank and size in arguments or environment, init() is a ConfigError."""
    for name in list(os.environ):
        if name.startswith(("STANDFAST_", "MLX_", "SLURM_", "OMPI_", "PMI")) or name == "RANK":
            monkeypatch.delenv(name)
    with pytest.raises(standfast.ConfigError):
        standfast.init()


def test_unknown_settings() -> None:
    """A setting that does not exist is a ConfigError that names it."""
    with pytest.raises(standfast.ConfigError, match="there is no setting 'colour'"):
        standfast.init(rank=0, size=1, colour="red")


# --- splitting ------------------------------------------------------------------------------------


def split_by_parity(group: Group) -> tuple[str, int, int, list[int]]:
    inner = group.split(group.rank % 2, key=-group.rank)
    assert inner is not None
    with inner:
        assert inner.generation == group.generation
        found = inner.all_gather(group.rank)
        assert group.all_sum(1) == group.size, "the parent goes on meanwhile"
        again = inner.split(0)
        assert again is not None
        with again:
            assert again.name == f"{inner.name}/1.0"
            assert again.all_gather(group.rank) == found
    assert group.all_sum(1) == group.size, "the parent outlives its parts"
    return inner.name, inner.rank, inner.size, found


@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
def test_split(pool: Pool, fabric: str) -> None:
    """Ranks of a color form a group, ordered by key; parents and parts live side by side."""
    ended = pool.run(5, split_by_parity, init={"fabric": fabric})
    values = [rank.value for rank in ended]
    assert values[0] == ("world/1.0", 2, 3, [4, 2, 0])
    assert values[1] == ("world/1.1", 1, 2, [3, 1])
    assert values[4] == ("world/1.0", 0, 3, [4, 2, 0])


def split_some(group: Group) -> list[Any]:
    found: list[Any] = []
    for color in (None, -3, 0 if group.rank else None, group.rank, 7):
        inner = group.split(color)
        found.append(None if inner is None else (inner.name, inner.rank, inner.size))
        if inner is not None:
            inner.barrier()
            inner.close()
    return found


def test_split_without_a_color_and_one_each(pool: Pool) -> None:
    """None or a negative color is no group; a color of one's own is a group of one."""
    ended = pool.run(3, split_some)
    assert ended[0].value == [None, None, None, ("world/4.0", 0, 1), ("world/5.7", 0, 3)]
    assert ended[2].value == [
        None,
        None,
        ("world/3.0", 1, 2),
        ("world/4.2", 0, 1),
        ("world/5.7", 2, 3),
    ]


def split_keys(group: Group) -> tuple[list[int], list[int]]:
    orders = []
    for key in (-1, [5, 5, 2, -9][group.rank]):
        inner = group.split(1, key)
        assert inner is not None
        orders.append(inner.all_gather(group.rank))
        inner.close()
    return orders[0], orders[1]


def test_split_is_ordered_by_key_then_rank(pool: Pool) -> None:
    """key=-1 everywhere keeps the order; equal keys keep it among themselves."""
    for ended in pool.run(4, split_keys):
        assert ended.value == ([0, 1, 2, 3], [3, 2, 0, 1])


def die_in_a_part(group: Group) -> Any:
    inner = group.split(group.rank % 2)
    assert inner is not None
    if group.rank == 3:
        be_killed()
    told = caught(group, inner.barrier).to_dict() if group.rank == 1 else None
    return told, caught(group, group.barrier).to_dict()


def test_a_death_in_a_part_names_the_part() -> None:
    """The error of a part counts ranks within the part, and says of which group."""
    ended = run_ranks(4, die_in_a_part, check=False)
    told, _ = ended[1].value
    assert told["rank"] == 1
    assert told["message"].startswith("rank 1 of group 'world/1.1' on ")
    assert [rank.value[1]["rank"] for rank in ended[:3]] == [3, 3, 3]


def die(self: Any) -> None:
    be_killed()


def die_while_splitting(group: Group) -> tuple[dict[str, Any], float]:
    if group.rank == 1:  # dies where the others already wait for it in the new group's rendezvous
        vars(splitting)["Team"] = type("Team", (splitting.Team,), {"__enter__": die})
    began = time.monotonic()
    error = caught(group, group.split, 0, timeout_s=5)
    return error.to_dict(), time.monotonic() - began


def test_a_death_while_splitting_is_told_by_the_parent() -> None:
    """The others learn at the latest at the limit, and of the death, not of a missing rank."""
    ended = run_ranks(3, die_while_splitting, check=False)
    for rank in (0, 2):
        told, _ = ended[rank].value
        assert (told["type"], told["rank"]) == ("PeerDied", 1), told


# --- closing --------------------------------------------------------------------------------------


def close_twice(group: Group) -> list[str]:
    group.barrier()
    group.close()
    group.close()
    assert not group.healthy()
    assert group.last_failure() is None
    assert "closed" in repr(group)
    found = []
    for call in (group.barrier, group.barrier_async, lambda: group.split(0)):
        try:
            call()
        except standfast.GroupClosed as error:
            found.append(str(error))
    return found


def test_close(pool: Pool) -> None:
    """Closing twice is fine; every use afterwards is GroupClosed."""
    for ended in pool.run(2, close_twice):
        assert (
            ended.value
            == ["the group world was closed\nhint: form a new group with standfast.init()"] * 3
        )


def leave_early(group: Group) -> Any:
    if group.rank == 1:
        return None
    return caught(group, group.all_sum, np.ones(4)).to_dict()


def test_leaving_while_others_wait(pool: Pool) -> None:
    """Who closes first is named by those who still wait for it: PeerLeft."""
    ended = pool.run(3, leave_early)
    for rank in (0, 2):
        assert (ended[rank].value["type"], ended[rank].value["rank"]) == ("PeerLeft", 1)


def close_with_work(group: Group) -> Any:
    x = np.full(200_000, 1.0)
    handles = [group.all_sum_async(x) for _ in range(5)]
    group.close()
    return [float(handle.result()[0]) for handle in handles]


def test_close_waits_for_what_was_submitted(pool: Pool) -> None:
    """Operations under way end well, and their results are there afterwards."""
    for ended in pool.run(3, close_with_work):
        assert ended.value == [3.0] * 5


# --- failing --------------------------------------------------------------------------------------


class Recorder(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def fail_again(group: Group) -> dict[str, Any]:
    if group.rank == 2:
        be_killed()
    records: list[logging.LogRecord] = []
    logging.getLogger("standfast").addHandler(Recorder(records))
    first = caught(group, group.all_sum, np.ones(1024, np.float32))
    last = group.last_failure()
    assert last is not None
    found = [first.to_dict(), last.to_dict()]
    depths, times = [], []
    for _ in range(3):
        began = time.monotonic()
        error = caught(group, group.barrier)
        times.append(time.monotonic() - began)
        found.append(error.to_dict())
        depths.append(len(traceback.extract_tb(error.__traceback__)))
        assert error is not first
    found.append(caught(group, group.all_sum_async, 1).to_dict())
    assert not group.healthy()
    assert "failed" in repr(group)
    return {
        "found": found,
        "depths": depths,
        "times": times,
        "logged": [record.getMessage() for record in records],
        "levels": [record.levelname for record in records],
    }


def test_a_failed_group_stays_failed(tmp_path: Path) -> None:
    """Each later call raises the first cause at once, in a fresh exception; it is logged once."""
    init = {"report_dir": str(tmp_path), "generation": 7, "log_level": "info"}
    ended = run_ranks(3, fail_again, init=init, check=False)
    assert ended[2].status == -signal.SIGKILL
    for rank in (0, 1):
        value = ended[rank].value
        assert value is not None, str(ended[rank])
        told = value["found"][0]
        assert (told["type"], told["rank"], told["here"], told["generation"]) == (
            ("PeerDied", 2, rank, 7)
        )
        assert value["found"] == [told] * len(value["found"])
        assert len(set(value["depths"])) == 1, "tracebacks must not grow"
        assert max(value["times"]) < PROMPT_S
        assert value["logged"] == [f"{told['message']}\nhint: {told['hint']}"]
        assert value["levels"] == ["INFO"]
        report = json.loads((tmp_path / f"rank-{rank}-gen7.json").read_text())
        assert report["error"] == told
        assert 0 < report["raised_ns"] - told["detected_ns"] < 5e9
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank-0-gen7.json",
        "rank-1-gen7.json",
    ]


def abort(group: Group) -> tuple[dict[str, Any], float]:
    if group.rank == 1:
        with pytest.raises(TypeError, match="reason is a int; it must be a text"):
            group.abort(3)  # type: ignore[arg-type]  # that is the point
        time.sleep(0.2)
        group.abort("out of patience")
    began = time.monotonic()
    error = caught(group, group.all_sum, np.ones(3))
    return error.to_dict(), time.monotonic() - began


def test_abort(pool: Pool) -> None:
    """abort() ends the operation of every rank, who and why included."""
    for rank, ended in enumerate(pool.run(3, abort)):
        told, took_s = ended.value
        assert (told["type"], told["rank"], told["cause"]) == ("GroupAborted", 1, "out of patience")
        assert told["here"] == rank
        assert took_s < 0.2 + PROMPT_S


def time_out(group: Group) -> dict[str, Any]:
    if group.rank == 1:
        time.sleep(2)
    return caught(group, group.all_sum, np.ones(3), timeout_s=0.2).to_dict()


def test_timeout(pool: Pool) -> None:
    """timeout_s bounds an operation: NoProgress on all ranks, telling for whom one waited."""
    ended = pool.run(3, time_out)
    assert {rank.value["type"] for rank in ended} == {"NoProgress"}
    assert 0.1 < ended[0].value["waited_s"] < 1.9, "whoever came first has told the others"


def mismatch(group: Group) -> dict[str, Any]:
    x = np.ones(3 + (group.rank == 1), np.float32)
    return caught(group, group.all_sum, x).to_dict()


def test_mismatch(pool: Pool) -> None:
    """Ranks with different sizes all raise CollectiveMismatch, which names both operations."""
    for ended in pool.run(3, mismatch):
        assert ended.value["type"] == "CollectiveMismatch"
        assert "all_sum float32[3]" in ended.value["message"]
        assert "all_sum float32[4]" in ended.value["message"]


def wrong_tag(group: Group) -> dict[str, Any]:
    if group.rank == 0:
        group.send(np.ones(3), 1, tag=5)
        return caught(group, group.barrier).to_dict()
    return caught(group, group.recv, 3, float, 0, tag=6).to_dict()


def test_message_mismatch(pool: Pool) -> None:
    """A recv with another tag than the send's raises MessageMismatch on both ranks."""
    for ended in pool.run(2, wrong_tag):
        assert ended.value["type"] == "MessageMismatch"
        assert "tag=5" in ended.value["message"]
        assert "tag=6" in ended.value["message"]


# --- leaving a with block by an exception ---------------------------------------------------------


def leave_by(group: Group, how: str) -> Any:
    def meet_twice() -> None:
        # An interrupted rank ends whatever the others are in, also the end of the first barrier.
        group.barrier()
        group.barrier()

    if group.rank == 1:
        group.barrier()
        if how == "error":
            raise LookupError("no such layer")
        if how == "interrupt":
            raise KeyboardInterrupt
        sys.exit({"exit 0": 0, "exit 3": 3}[how])
    return caught(group, meet_twice).to_dict()


@pytest.mark.parametrize(
    ("how", "kind", "status", "text"),
    [
        ("error", "RemoteFailure", 1, "raised LookupError: no such layer"),
        ("exit 3", "RemoteFailure", 3, "raised SystemExit: 3"),
        ("exit 0", "PeerLeft", 0, "left: closed its group"),
        ("interrupt", "PeerLeft", -signal.SIGINT, "left: interrupted"),
    ],
)
def test_leaving_by_an_exception(how: str, kind: str, status: int, text: str) -> None:
    """What leaves the with block is told to the peers, and goes on as it was."""
    ended = run_ranks(3, leave_by, how, check=False)
    assert ended[1].status == status, str(ended[1])
    for rank in (0, 2):
        told = ended[rank].value
        assert (told["type"], told["rank"]) == (kind, 1), told
        assert text in told["message"]
    if how == "error":
        assert "raise LookupError" in told["remote_traceback"]
        assert told["remote_type"] == "LookupError"


# --- signals and forks ----------------------------------------------------------------------------


def interrupted(group: Group) -> Any:
    if group.rank == 2:
        time.sleep(1)
    if group.rank != 1:
        return caught(group, group.all_sum, np.ones(8)).to_dict()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    try:
        group.all_sum(np.ones(8))
    except KeyboardInterrupt:
        took_s = time.monotonic() - began
    again = caught(group, group.barrier)
    return took_s, type(again).__name__, again.message


def test_a_signal_ends_a_wait_at_once() -> None:
    """KeyboardInterrupt within 0.2 s here, PeerLeft there; afterwards the group is over."""
    ended = run_ranks(3, interrupted, check=False)
    took_s, kind, text = ended[1].value
    assert 0.25 < took_s < 0.5 + PROMPT_S
    assert kind == "GroupClosed"
    assert text == "the group world is over: all_sum was interrupted by a signal"
    for rank in (0, 2):
        told = ended[rank].value
        assert (told["type"], told["rank"], told["cause"]) == ("PeerLeft", 1, "interrupted")


def wait_for_signal(group: Group) -> Any:
    if group.rank == 1:
        print("waiting", flush=True)
        group.barrier()
    group.recv(1, float, 1)


def test_sigterm_ends_a_wait() -> None:
    """A rank ended by SIGTERM says goodbye first: PeerLeft, not PeerDied."""
    with Job(3, wait_for_signal) as job:
        job.wait_for(1, "waiting")
        job.kill(1, signal.SIGTERM)
        ended = job.wait()
    assert ended[1].status == -signal.SIGTERM
    for rank in (0, 2):
        assert isinstance(ended[rank].error, standfast.PeerLeft), str(ended[rank])
        assert ended[rank].status == 75


def fork(group: Group) -> list[str]:
    group.barrier()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for call in (group.barrier, lambda: group.all_sum_async(1).result(), group.close):
            try:
                call()
                texts.append("nothing")
            except standfast.GroupClosed as error:
                texts.append(error.message)
        os.write(writing, json.dumps([group.healthy(), *texts]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told: list[str] = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert group.all_sum(1) == group.size, "the parent's group goes on"
    return told


def test_a_forked_child_has_no_group() -> None:
    """In a child made by fork every call is GroupClosed that says so; the parent is unharmed."""
    for ended in run_ranks(2, fork):
        healthy, barrier, handle, close = ended.value
        assert healthy is False
        assert "forked child" in barrier
        assert "forked child" in handle
        assert close == "nothing"


def fork_and_die(group: Group) -> Any:
    group.barrier()
    if group.rank == 1:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        print(os.getpid(), flush=True)
        be_killed()
    began = time.monotonic()
    error = caught(group, group.barrier)
    return error.to_dict(), time.monotonic() - began


def test_a_forked_child_does_not_hide_its_parents_death() -> None:
    """A child that holds copies of the descriptors does not keep the dead alive."""
    ended = run_ranks(3, fork_and_die, check=False)
    for rank in (0, 2):
        told, took_s = ended[rank].value
        assert (told["type"], told["rank"]) == ("PeerDied", 1)
        assert took_s < PROMPT_S


# --- threads --------------------------------------------------------------------------------------


def both_ways(group: Group) -> int:
    other = 1 - group.rank
    x = np.arange(100_000, dtype=np.int64)

    def talk() -> None:
        for turn in range(30):
            group.send(x + turn, other)

    talker = threading.Thread(target=talk)
    talker.start()
    for turn in range(30):
        assert (group.recv_like(x, other) == x + turn).all()
    talker.join()
    return int(group.all_sum(1))


@pytest.mark.parametrize("fabric", ["shm", "tcp", "verbs"])
def test_one_thread_sends_while_another_receives(pool: Pool, fabric: str) -> None:
    """Both directions at once, from two threads, do not get in each other's way."""
    ended = pool.run(2, both_ways, init={"fabric": fabric})
    assert [rank.value for rank in ended] == [2, 2]


def wait_in_a_thread(group: Group) -> tuple[Any, int]:
    if group.rank == 1:
        time.sleep(0.5)
        be_killed()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(caught(group, group.barrier).to_dict()))
    thread.start()
    turns = 0
    while thread.is_alive():  # the GIL is free while the other thread waits
        turns += 1
        time.sleep(0.001)
    return found[0], turns


def test_waiting_leaves_the_interpreter_free() -> None:
    """While one thread waits in an operation, others run; the error comes to the one that waits."""
    ended = run_ranks(2, wait_in_a_thread, check=False)
    told, turns = ended[0].value
    assert (told["type"], told["rank"]) == ("PeerDied", 1)
    assert turns > 20


# --- the core in the wrong hands ------------------------------------------------------------------


def test_settings_reach_the_core_by_name() -> None:
    """Every setting that Group hands to the core exists."""
    for name in (
        "topology",
        "progress_s",
        "close_linger_s",
        "exit_on_fault",
        "exit_grace_s",
        "handle_sigterm",
        "excepthook",
        "report_dir",
    ):
        assert hasattr(Settings(), name)


def test_ended_ranks_are_readable() -> None:
    """A failed rank's report names rank, status and traceback; that is what assertions print."""
    assert "rank 3: status 1" in str(Ended(3, status=1, traceback="Traceback"))
