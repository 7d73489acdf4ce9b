"""What is asked of Ray."""

from __future__ import annotations

import pytest

from standfast.ray.plan import (
    RayPlan,
    actor_options,
    hosts_of,
    parse_resources,
    place_of,
    resource_words,
)


def test_resources() -> None:
    """Names and amounts, as Ray writes them."""
    assert parse_resources("CPU=2, GPU=0.5,tpu=1") == {"CPU": 2.0, "GPU": 0.5, "tpu": 1.0}


@pytest.mark.parametrize("text", ["", "CPU", "CPU=", "=1", "CPU=0", "CPU=-1", "CPU=nan", "CPU=inf"])
def test_no_resources(text: str) -> None:
    """The message shows the part that is none."""
    with pytest.raises(ValueError, match="is no NAME=AMOUNT above 0"):
        parse_resources(text)


def test_a_resource_twice() -> None:
    """One of the two would be ignored."""
    with pytest.raises(ValueError, match="CPU is there twice"):
        parse_resources("CPU=1,CPU=2")


def test_an_actor_takes_its_whole_bundle() -> None:
    """Ray has options of its own for some resources, and starts no actor again by itself."""
    never = {"max_restarts": 0, "max_task_retries": 0}
    assert actor_options({"CPU": 2.0}) == {"num_cpus": 2.0, **never}
    assert actor_options({"GPU": 1.0, "tpu": 1.0}) == {
        "num_cpus": 0,
        "num_gpus": 1.0,
        "resources": {"tpu": 1.0},
        **never,
    }


def test_places_are_hosts() -> None:
    """Each has room for one rank, and its name leads back to its bundle."""
    hosts = hosts_of(12)
    assert [place_of(host.name) for host in hosts] == list(range(12))
    assert {host.slots for host in hosts} == {1}


def test_the_steward_gets_the_same_plan() -> None:
    """Through its argument."""
    plan = RayPlan(3, "SPREAD", {"CPU": 1.0, "GPU": 2.0}, "10.0.0.1:6379", 5.0)
    assert RayPlan.from_json(plan.to_json()) == plan
    assert plan.bundles() == [{"CPU": 1.0, "GPU": 2.0}] * 3


def test_words() -> None:
    """For messages."""
    assert RayPlan(1).words() == "1 place of {CPU: 1} (PACK)"
    assert resource_words({"CPU": 0.5, "x": 3}) == "{CPU: 0.5, x: 3}"
