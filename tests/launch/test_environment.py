"""What a rank finds in its environment."""

from __future__ import annotations

import dataclasses

from standfast.launch.environment import (
    Formation,
    Listeners,
    alone,
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
    formation = dataclasses.replace(FORMATION, ring_file="/tmp/r/mlx.json")
    place = alone(3, 4)
    found = rank_environment({}, formation, place=place, listeners=None)
    assert found["MLX_HOSTFILE"] == "/tmp/r/mlx.json"
    users = {"MLX_IBV_DEVICES": "/devices.json", "JACCL_RANK": "0"}
    found = rank_environment(users, formation, place=place, listeners=None)
    assert "MLX_HOSTFILE" not in found
    assert (found["MLX_RANK"], found["JACCL_RANK"]) == ("3", "3")
    own = rank_environment({"MLX_HOSTFILE": "/my"}, formation, place=place, listeners=None)
    assert own["MLX_HOSTFILE"] == "/my"


def test_jaccl_learns_where_its_devices_are() -> None:
    """Both sets of names that JACCL reads, ours, and no ring besides, which MLX would prefer."""
    formation = dataclasses.replace(
        FORMATION,
        host="10.0.0.1",
        ring_file="/tmp/r/mlx.json",
        devices_file="/tmp/r/devices.json",
        jaccl_port=7,
    )
    found = rank_environment({"JACCL_RANK": "0"}, formation, place=alone(3, 4), listeners=None)
    for first in ("MLX_IBV_DEVICES", "JACCL_IBV_DEVICES", "STANDFAST_DEVICES"):
        assert found[first] == "/tmp/r/devices.json"
    assert found["MLX_JACCL_COORDINATOR"] == found["JACCL_COORDINATOR"] == "10.0.0.1:7"
    assert found["JACCL_RANK"] == found["MLX_RANK"] == "3"
    assert not {"MLX_HOSTFILE", "MLX_JACCL_RING", "JACCL_RING"} & found.keys()

    ring = dataclasses.replace(formation, jaccl_ring=True)
    found = rank_environment({}, ring, place=alone(3, 4), listeners=None)
    assert found["MLX_JACCL_RING"] == found["JACCL_RING"] == "1"


def test_a_users_devices_win() -> None:
    """Who has described the devices has done so for these ranks; JACCL reads no IPv6."""
    formation = dataclasses.replace(FORMATION, host="10.0.0.1", devices_file="/d", jaccl_port=7)
    users = {"JACCL_IBV_DEVICES": "/my.json"}
    found = rank_environment(users, formation, place=alone(0, 4), listeners=None)
    assert found["JACCL_IBV_DEVICES"] == "/my.json"
    assert not {"MLX_IBV_DEVICES", "JACCL_COORDINATOR"} & found.keys()
    six = dataclasses.replace(formation, host="fd00::1", ring_file="/r")
    found = rank_environment({}, six, place=alone(0, 4), listeners=None)
    assert found["MLX_HOSTFILE"] == "/r"
    assert found["STANDFAST_DEVICES"] == "/d"


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
        "STANDFAST_LAUNCHER": "job",
        "STANDFAST_NODE_RANK": "1",
        "STANDFAST_NNODES": "2",
        "STANDFAST_RANK": "1",
        "STANDFAST_JOB_ID": "outer",
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "STANDFAST_KEY": "",
    }
    environment = rank_environment(outer, FORMATION, place=alone(3, 4), listeners=None)
    assert not {name for name in outer if name.startswith("TORCHELASTIC")} & set(environment)
    left_out = {"LISTEN_FD", "LAUNCHER", "NODE_RANK", "NNODES"}
    assert not {f"STANDFAST_{name}" for name in left_out} & set(environment)
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
