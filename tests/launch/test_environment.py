"""What a rank finds in its environment."""

from __future__ import annotations

import dataclasses
import json

from standfast.launch.environment import (
    Formation,
    Listeners,
    alone,
    mlx_ring,
    rank_environment,
    ward_environment,
)

FORMATION = Formation(
    job_id="standfast-1",
    generation=2,
    size=4,
    port=5001,
    master_port=5002,
    key="k" * 64,
    report_dir="/tmp/r",
)


def test_identity() -> None:
    """A rank learns who it is in standfast's words and in torch's."""
    environment = rank_environment({"HOME": "/h"}, FORMATION, place=alone(3, 4), listeners=None)
    assert environment == {
        "HOME": "/h",
        "STANDFAST_RANK": "3",
        "STANDFAST_WORLD_SIZE": "4",
        "STANDFAST_LOCAL_RANK": "3",
        "STANDFAST_COORDINATOR": "127.0.0.1:5001",
        "STANDFAST_GENERATION": "2",
        "STANDFAST_JOB_ID": "standfast-1",
        "STANDFAST_KEY": "k" * 64,
        "STANDFAST_EXIT_ON_FAULT": "1",
        "STANDFAST_REPORT_DIR": "/tmp/r",
        "PYTHONUNBUFFERED": "1",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "5002",
        "TORCHELASTIC_ERROR_FILE": "/tmp/r/torch-3-gen2.json",
        "MLX_RANK": "3",
        "MLX_WORLD_SIZE": "4",
    }


def test_mlx_learns_where_its_ring_is() -> None:
    """A ring that is described is named, unless the user has described one or JACCL's devices."""
    formation = dataclasses.replace(FORMATION, mlx_hostfile="/tmp/r/mlx.json")
    place = alone(3, 4)
    found = rank_environment({}, formation, place=place, listeners=None)
    assert found["MLX_HOSTFILE"] == "/tmp/r/mlx.json"
    users = {"MLX_IBV_DEVICES": "/devices.json", "JACCL_RANK": "0"}
    found = rank_environment(users, formation, place=place, listeners=None)
    assert "MLX_HOSTFILE" not in found
    assert (found["MLX_RANK"], found["JACCL_RANK"]) == ("3", "3")
    own = rank_environment({"MLX_HOSTFILE": "/my"}, formation, place=place, listeners=None)
    assert own["MLX_HOSTFILE"] == "/my"


def test_a_ring_as_mlx_reads_it() -> None:
    """A list of addresses for each rank."""
    assert json.loads(mlx_ring([7, 8])) == [["127.0.0.1:7"], ["127.0.0.1:8"]]


def test_the_users_own_values_win() -> None:
    """Key, exit behaviour and buffering are the user's if set; other settings pass through."""
    users = {
        "STANDFAST_KEY": "secret",
        "STANDFAST_EXIT_ON_FAULT": "0",
        "STANDFAST_FABRIC": "tcp",
        "PYTHONUNBUFFERED": "0",
    }
    environment = rank_environment(users, FORMATION, place=alone(0, 4), listeners=Listeners(9))
    assert {name: environment[name] for name in users} == users
    assert environment["STANDFAST_LISTEN_FD"] == "9"


def test_an_outer_launcher_does_not_shine_through() -> None:
    """Inside another launcher the ranks are ours alone."""
    outer = {
        "STANDFAST_LISTEN_FD": "5",
        "STANDFAST_RANK": "1",
        "STANDFAST_JOB_ID": "outer",
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "STANDFAST_KEY": "",
    }
    environment = rank_environment(outer, FORMATION, place=alone(3, 4), listeners=None)
    assert not {name for name in outer if name.startswith("TORCHELASTIC")} & set(environment)
    assert "STANDFAST_LISTEN_FD" not in environment
    assert environment["STANDFAST_RANK"] == "3"
    assert environment["STANDFAST_JOB_ID"] == "standfast-1"
    assert environment["STANDFAST_KEY"] == "k" * 64


def test_a_wardens_own_meeting_is_its_own() -> None:
    """Wardens meet elsewhere than their programs, which see nothing of that."""
    formation = dataclasses.replace(FORMATION, watch_port=5003)
    outer = {"STANDFAST_WATCH_COORDINATOR": "elsewhere:1", "STANDFAST_WATCH_LISTEN_FD": "4"}
    warden = rank_environment(outer, formation, place=alone(0, 4), listeners=Listeners(9, 10))
    assert warden["STANDFAST_WATCH_COORDINATOR"] == "127.0.0.1:5003"
    assert warden["STANDFAST_WATCH_LISTEN_FD"] == "10"
    assert Listeners(9, 10).all() == (9, 10)
    ward = ward_environment(warden)
    assert ward == rank_environment({}, FORMATION, place=alone(0, 4), listeners=Listeners(9))
    unwatched = rank_environment(outer, FORMATION, place=alone(1, 4), listeners=None)
    assert not [name for name in unwatched if "WATCH" in name]
