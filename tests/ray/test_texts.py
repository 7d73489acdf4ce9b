"""What a user reads when Ray, or a job on it, fails."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from standfast.errors import ConfigError
from standfast.ray import RayJobFailed
from standfast.ray.api import command_line
from standfast.ray.failures import failure_of
from standfast.ray.plan import RayPlan
from standfast.ray.steward import no_room, reason_of

RANK = {"rank": 2, "host": "ray-2", "error": None, "last_lines": ["Traceback", "KeyError: 'x'"]}
REPORT: dict[str, Any] = {
    "headline": "the group failed: rank 2 on ray-2 failed with exit 1",
    "generations": [{"generation": 3, "first": 2, "ranks": [{"rank": 0}, RANK]}],
}


def test_the_first_cause() -> None:
    """Rank, host and last words are in the message and in fields; it survives pickling."""
    error = failure_of(75, REPORT)
    assert (error.rank, error.host, error.generation) == (2, "ray-2", 3)
    assert error.message.endswith("failed with exit 1 (generation 3): KeyError: 'x'")
    assert error.hint is not None
    assert error.hint.startswith("start the job again")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RayJobFailed)
    assert again.to_dict() == error.to_dict()
    assert again.to_dict()["status"] == 75


def test_the_first_cause_told_by_standfast() -> None:
    """What a rank reported is better than its last line."""
    told = {"type": "CollectiveMismatch", "message": "rank 2 is elsewhere", "hint": "compare"}
    rank = {**RANK, "error": told}
    report = {**REPORT, "generations": [{"generation": 1, "first": 2, "ranks": [rank]}]}
    error = failure_of(76, report)
    assert "CollectiveMismatch: rank 2 is elsewhere" in error.message
    assert error.hint == "compare"


def test_nothing_started() -> None:
    """The launcher's own words."""
    error = failure_of(69, {"status": 69, "error": {"message": "no Ray cluster"}})
    assert (error.message, error.rank) == ("no Ray cluster", None)


def test_no_room() -> None:
    """What was wanted, and what there is on nodes that live."""
    nodes = [
        {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0, "x": 1}},
        {"Alive": False, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4.0}},
    ]
    text = no_room(RayPlan(2, resources={"CPU": 1.0, "GPU": 1.0}), nodes)
    assert text == (
        "Ray found no room for 2 places of {CPU: 1, GPU: 1} (PACK) within 30 s;"
        " its nodes: 10.0.0.1 has {CPU: 4, GPU: 0}"
    )


def test_rays_words_are_cut_down() -> None:
    """To one line, without what says nothing here and without guesses."""
    text = "It died.\n\tclass_name: Place\n\tpid: 7\nNode gone. Some common causes include: rain"
    assert reason_of(Exception(text)) == "It died. pid: 7 Node gone."


def test_the_command_line() -> None:
    """run() is `standfast run`: the same options under the same names."""
    words = command_line(["train"], 3, "SPREAD", {"GPU": 1}, {"restarts": 2, "min_ranks": None})
    assert words[words.index("run") :] == [
        *("run", "--on", "ray", "--json", "-n", "3", "--ray-strategy", "SPREAD"),
        *("--ray-resources", "GPU=1", "--restarts", "2"),
    ]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"strategy": "LOOSE"}, "strategy='LOOSE' is none of PACK"),
        ({"resources": {"CPU": 0}}, "resources={'CPU': 0}"),
        ({"options": {"retries": 1}}, "no option retries; there are restarts"),
        ({"program": "python train.py"}, "neither a function nor a list of words"),
        ({"program": []}, "neither a function nor a list of words"),
    ],
)
def test_wrong_arguments(changed: dict[str, Any], words: str) -> None:
    """They are named before anything starts."""
    given: dict[str, Any] = {
        "program": ["x"],
        "ranks": 1,
        "strategy": "PACK",
        "resources": None,
        "options": {},
    }
    with pytest.raises(ConfigError) as caught:
        command_line(**(given | changed))
    assert words in caught.value.message
