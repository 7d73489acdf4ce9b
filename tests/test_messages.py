"""messages.py: from the core's Failure to an exception whose words and fields say the same."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from standfast import errors
from standfast.messages import Place, error_of


@dataclasses.dataclass
class Failure:
    """A core's Failure that knows nothing yet."""

    kind: str
    rank: int = -1
    reporter: int = -1
    cause: str = ""
    evidence: list[str] = dataclasses.field(default_factory=list)
    remote_type: str = ""
    remote_message: str = ""
    remote_traceback: str = ""
    op: str = ""
    seq: int = 0
    waiting_for: int = -1
    waited_s: float = 0.0
    bytes_done: int = 0
    bytes_total: int = 0
    detected_ns: int = 0


PLACE = Place(
    here=1,
    hosts=["host-a", "host-a", "host-b", "host-b"],
    pids=[10, 11, 12, 13],
    links={0: "shm", 2: "tcp 10.0.0.2:4000", 3: "tcp 10.0.0.2:4001"},
    generation=2,
)


def waiting(failure: Failure, rank: int = 3) -> Failure:
    """Put a failure into the middle of an operation."""
    return dataclasses.replace(
        failure,
        op="all_sum float32[1024] #812",
        seq=812,
        waiting_for=rank,
        waited_s=0.0034,
        bytes_done=2048,
        bytes_total=4096,
    )


MET = (
    "here rank 1 waited 0.003 s for rank 3 over tcp 10.0.0.2:4001 in all_sum #812"
    " (float32[1024]), 2048 bytes received"
)

TABLE = [
    (
        Failure("died", 3, 0, "control link closed without goodbye"),
        errors.PeerDied,
        "rank 3 on host-b died: control link closed without goodbye; seen first by rank 0; ",
        "why it ended shows in the output and exit status of rank 3; form the group again",
    ),
    (
        Failure("died", 3, 1, "its process 13 is gone"),
        errors.PeerDied,
        "rank 3 on host-b died: its process 13 is gone; seen first here; ",
        "why it ended shows in the output and exit status of rank 3; form the group again",
    ),
    (
        Failure("left", 3, 0, "closed its group"),
        errors.PeerLeft,
        "rank 3 on host-b left: closed its group; seen first by rank 0; ",
        "do all ranks make the same calls? rank 3 was done before this one",
    ),
    (
        Failure("left", 3, 3, "interrupted"),
        errors.PeerLeft,
        "rank 3 on host-b left: interrupted; seen first by rank 3; ",
        None,
    ),
    (
        Failure("left", 1, 1, "interrupted"),
        errors.GroupClosed,
        "the group is over: an operation of this rank was interrupted by a signal; ",
        "form a new group with standfast.init()",
    ),
    (
        Failure("failed", 3, 3, "", [], "ValueError", "no such layer", "Traceback ..."),
        errors.RemoteFailure,
        "rank 3 on host-b raised ValueError: no such layer; seen first by rank 3; ",
        "the cause is in rank 3; its traceback is in its output and in remote_traceback",
    ),
    (
        Failure("failed", 3, 3, "", [], "MemoryError"),
        errors.RemoteFailure,
        "rank 3 on host-b raised MemoryError; seen first by rank 3; ",
        "the cause is in rank 3; its traceback is in its output and in remote_traceback",
    ),
    (
        Failure("unreachable", 3, 0, "nothing came for 20.0 s"),
        errors.PeerUnreachable,
        "rank 3 on host-b is unreachable: nothing came for 20.0 s; seen first by rank 0; ",
        "check power, cable and network of host-b",
    ),
    (
        Failure("stalled", 3, 0, "no heartbeat for 20.0 s, its host answers"),
        errors.PeerStalled,
        "rank 3 on host-b stalled: no heartbeat for 20.0 s, its host answers; seen first by",
        "on host-b, look at what rank 3 does: py-spy dump --pid 13",
    ),
    (
        Failure("link_lost", 3, 0, "recv: ECONNRESET"),
        errors.LinkLost,
        "a link of rank 3 on host-b was lost: recv: ECONNRESET; seen",
        "rank 3 itself lives; check cable and network between here and host-b",
    ),
    (
        Failure("no_progress", 3, 0, "rank 0 waited 5 s"),
        errors.NoProgress,
        "no progress: rank 0 waited 5 s; ",
        "where more time is needed, pass timeout_s=, or progress_s= to init()",
    ),
    (
        Failure("mismatch", 3, 0, "rank 0 is in all_sum float32[8] #9, rank 3 in barrier #9"),
        errors.CollectiveMismatch,
        "ranks disagree: rank 0 is in all_sum float32[8] #9, rank 3 in barrier #9; seen first",
        "all ranks must call the same operations in the same order, sizes and dtypes",
    ),
    (
        Failure("message_mismatch", 3, 0, "rank 0 is in recv(tag=1), rank 3 in send(tag=2)"),
        errors.MessageMismatch,
        "send and recv disagree: rank 0 is in recv(tag=1), rank 3 in send(tag=2); seen first",
        "compare shape, dtype and tag of this recv with those of its send",
    ),
    (
        Failure(
            "digest_mismatch", 3, 0, "rank 3 sent data of digest 1, and rank 0 has data of digest 2"
        ),
        errors.DigestMismatch,
        "damaged data: rank 3 sent data of digest 1, and rank 0 has data of digest 2; seen first",
        "memory or a device of host-b may be faulty: do not use the last results",
    ),
    (
        Failure("aborted", 3, 3, "out of patience"),
        errors.GroupAborted,
        "rank 3 on host-b aborted the group: out of patience; ",
        None,
    ),
    (
        Failure("aborted", 1, 1, "out of patience"),
        errors.GroupAborted,
        "rank 1 on host-a (this rank) aborted the group: out of patience; ",
        None,
    ),
    (
        Failure("closed", 1, -1, "this process is a forked child"),
        errors.GroupClosed,
        "the group is closed: this process is a forked child; ",
        "call standfast.init() in the child, or start it by spawn instead of fork",
    ),
    (
        Failure("closed", 1, -1, "the group was closed"),
        errors.GroupClosed,
        "the group is closed: the group was closed; ",
        "form a new group with standfast.init()",
    ),
    (
        Failure("internal", 1, 1, "the watch did not answer"),
        errors.InternalError,
        "internal error: the watch did not answer; seen first here; ",
        "this is a bug in standfast; please report it",
    ),
    (
        Failure("nonsense", 1, 0, "?"),
        errors.InternalError,
        "internal error (nonsense): ?; seen first by rank 0; ",
        None,
    ),
]


@pytest.mark.parametrize(("failure", "cls", "text", "hint"), TABLE)
def test_words(
    failure: Failure, cls: type[errors.StandfastError], text: str, hint: str | None
) -> None:
    """Each kind has its exception, its headline, who saw it first, where it met us, and a hint."""
    error = error_of(waiting(failure), PLACE, "all_sum", "float32[1024]")
    assert type(error) is cls
    assert error.message.startswith(text)
    assert error.message.endswith(MET)
    assert error.hint == hint
    assert str(error) == error.message + (f"\nhint: {hint}" if hint else "")


def test_every_kind_has_words() -> None:
    """The table above forgets no kind."""
    assert {failure.kind for failure, *_ in TABLE} - {"nonsense"} == set(errors.BY_KIND)


def test_the_whole_message() -> None:
    """The example of the style guide, word for word."""
    failure = waiting(Failure("died", 3, 0, "control link closed without goodbye"))
    failure.bytes_done = 0
    assert str(error_of(failure, PLACE, "all_sum", "float32[1024]")) == (
        "rank 3 on host-b died: control link closed without goodbye; seen first by rank 0;"
        " here rank 1 waited 0.003 s for rank 3 over tcp 10.0.0.2:4001 in all_sum #812"
        " (float32[1024])\nhint: why it ended shows in the output and exit status of rank 3; form"
        " the group again"
    )


def test_fields_equal_the_words() -> None:
    """Every number in the message is a field; the error survives JSON and pickle whole."""
    failure = waiting(Failure("died", 3, 0, "gone", ["rank 0: it said nothing"], detected_ns=77))
    error = error_of(failure, PLACE, "all_sum", "float32[1024]")
    fields = {
        "rank": 3,
        "host": "host-b",
        "cause": "gone",
        "reporter": 0,
        "here": 1,
        "op": "all_sum",
        "seq": 812,
        "waiting_for": 3,
        "link": "tcp 10.0.0.2:4001",
        "waited_s": 0.0034,
        "bytes_done": 2048,
        "bytes_total": 4096,
        "generation": 2,
        "detected_ns": 77,
    }
    for name, value in fields.items():
        assert getattr(error, name) == value, name
    told = json.loads(json.dumps(error.to_dict()))
    assert told["evidence"] == ["rank 0: it said nothing"]
    assert told.items() >= fields.items()
    assert pickle.loads(pickle.dumps(error)).to_dict() == error.to_dict()


def test_a_remote_failure_carries_the_remote_exception() -> None:
    """Type, message and traceback tail of the peer's exception are fields."""
    failure = Failure("failed", 3, 3, "", [], "ValueError", "bad", "Traceback\n  x")
    error = error_of(failure, PLACE)
    assert isinstance(error, errors.RemoteFailure)
    assert (error.remote_type, error.remote_message) == ("ValueError", "bad")
    assert error.remote_traceback == "Traceback\n  x"


@pytest.mark.parametrize(
    ("failure", "op", "text"),
    [
        (Failure("died", 3, 0), None, "here is rank 1"),
        (Failure("died", 3, 0), "barrier", "here rank 1 called barrier"),
        (
            Failure("died", 3, 0, op="barrier #4", seq=4, waited_s=1.5),
            "barrier",
            "here rank 1 was 1.500 s into barrier #4",
        ),
        (
            Failure("died", 3, 0, op="none", seq=0, waited_s=0.0),
            "barrier",
            "here rank 1 was 0.000 s into barrier",
        ),
        (
            Failure("died", 3, 0, op="barrier #4", seq=4, waiting_for=0),
            None,
            "here rank 1 waited 0.000 s for rank 0 over shm in barrier #4 #4",
        ),
    ],
)
def test_where_it_met_this_rank(failure: Failure, op: str | None, text: str) -> None:
    """In a wait, in an operation, at its start, or in none."""
    assert error_of(failure, PLACE, op).message.split("; ")[-1] == text


def test_an_unknown_rank_gets_no_name() -> None:
    """No guess is dressed as a fact: without a rank there is no rank, host or hint about it."""
    error = error_of(Failure("died", -1, -1, "lost"), PLACE)
    assert error.message == "a rank died: lost; here is rank 1"
    assert (error.rank, error.host, error.reporter, error.hint) == (None, None, None, None)
    assert "rank" not in error.to_dict()


def test_ranks_of_other_groups_say_so() -> None:
    """In a group made by split, numbers are not those of the launcher: the group is named."""
    place = dataclasses.replace(PLACE, group="world/1.0")
    error = error_of(Failure("died", 3, 0), place)
    assert error.message.startswith("rank 3 of group 'world/1.0' on host-b died")


def test_no_progress_says_it_once() -> None:
    """The rank whose time ran out says what it waited for in the cause, and not again."""
    failure = waiting(Failure("no_progress", 3, PLACE.here, "rank 1 waited 5 s in all_sum #8"))
    error = error_of(failure, PLACE, "all_sum", "float32[1024]")
    assert error.message == "no progress: rank 1 waited 5 s in all_sum #8"
