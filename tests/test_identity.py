"""Who a rank is: one answer from whatever launcher started it, or an error that says why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from standfast import launchers
from standfast.endpoint import derived_port
from standfast.errors import ConfigError
from standfast.identity import Identity, is_given, resolve

OURS = {
    "STANDFAST_RANK": "1",
    "STANDFAST_WORLD_SIZE": "4",
    "STANDFAST_LOCAL_RANK": "0",
    "STANDFAST_COORDINATOR": "10.0.0.1:29500",
    "STANDFAST_GENERATION": "3",
    "STANDFAST_JOB_ID": "job",
}
TORCH = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def file_of(tmp_path: Path, value: object) -> str:
    path = tmp_path / "hosts.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def refusal(environ: Mapping[str, str], **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(environ=environ, **arguments)
    return str(caught.value)


# --- sources --------------------------------------------------------------------------------------


def test_arguments() -> None:
    """Arguments alone are enough, and win over every environment."""
    expected = Identity(0, 2, coordinator="h:1", generation=7)
    for environ in ({}, TORCH):
        found = resolve(rank=0, size=2, coordinator="h:1", generation=7, environ=environ)
        assert (found.rank, found.size) == (expected.rank, expected.size)
        assert (found.coordinator, found.generation) == ("h:1", 7)


def test_our_own_variables() -> None:
    """All of ours, as they are."""
    found = resolve(environ=OURS)
    assert found == Identity(
        rank=1,
        size=4,
        local_rank=0,
        coordinator="10.0.0.1:29500",
        generation=3,
        job_id="job",
        source="STANDFAST_RANK='1', STANDFAST_WORLD_SIZE='4'",
    )


def test_torchrun() -> None:
    """Rank, size and job from its variables; the port is derived, MASTER_PORT is never ours."""
    found = resolve(environ=TORCH)
    assert (found.rank, found.size, found.local_rank) == (1, 4, 1)
    assert found.coordinator == f"10.0.0.1:{derived_port(29500)}"
    assert (found.generation, found.job_id) == (3, "run")


def test_torchrun_with_a_port_of_ours() -> None:
    """STANDFAST_PORT wins over the derived one, STANDFAST_COORDINATOR over both."""
    assert resolve(environ={**TORCH, "STANDFAST_PORT": "5"}).coordinator == "10.0.0.1:5"
    given = {**TORCH, "STANDFAST_PORT": "5", "STANDFAST_COORDINATOR": "h:6"}
    assert resolve(environ=given).coordinator == "h:6"
    assert resolve(environ=given, coordinator="h:7").coordinator == "h:7"


def test_torchrun_over_ipv6() -> None:
    """An IPv6 MASTER_ADDR gets its brackets."""
    environ = {**TORCH, "MASTER_ADDR": "fd00::1", "STANDFAST_PORT": "5"}
    assert resolve(environ=environ).coordinator == "[fd00::1]:5"


@pytest.mark.parametrize(
    "hosts",
    [
        [["10.0.0.1:5000", "10.0.1.1:5000"], ["10.0.0.2:5001"]],
        ["10.0.0.1:5000", "10.0.0.2:5001"],
    ],
)
def test_mlx_ring(tmp_path: Path, hosts: object) -> None:
    """Size and meeting point from the host file, nested or flat; MLX's own port is not taken."""
    environ = {"MLX_RANK": "1", "MLX_HOSTFILE": file_of(tmp_path, hosts)}
    found = resolve(environ=environ)
    assert (found.rank, found.size) == (1, 2)
    assert found.coordinator == f"10.0.0.1:{derived_port(5000)}"
    assert resolve(environ={**environ, "STANDFAST_PORT": "7"}).coordinator == "10.0.0.1:7"


def test_mlx_ring_on_one_host(tmp_path: Path) -> None:
    """mlx.launch writes an empty file for a single rank, which says size 1 explicitly."""
    environ = {"MLX_RANK": "0", "MLX_HOSTFILE": file_of(tmp_path, "")}
    found = resolve(environ=environ)
    assert (found.rank, found.size, found.coordinator) == (0, 1, None)


def test_exo_hides_rank_0_from_far_ranks(tmp_path: Path) -> None:
    """The placeholder that exo writes for ranks that are no neighbours is no meeting point."""
    hosts = ["198.51.100.1:0", "10.0.0.2:5001", "0.0.0.0:5002"]
    environ = {"MLX_RANK": "2", "MLX_HOSTFILE": file_of(tmp_path, hosts)}
    assert "STANDFAST_COORDINATOR" in refusal(environ)
    found = resolve(environ={**environ, "STANDFAST_COORDINATOR": "10.0.0.1:29500"})
    assert (found.rank, found.size) == (2, 3)


def test_mlx_jaccl(tmp_path: Path) -> None:
    """Size from the device matrix; JACCL_ wins over MLX_; JACCL's own port is not taken."""
    matrix = [[None, "rdma_en5"], [["rdma_en4", "rdma_en3"], None]]
    environ = {
        "MLX_RANK": "0",
        "JACCL_RANK": "1",
        "MLX_IBV_DEVICES": file_of(tmp_path, matrix),
        "MLX_JACCL_COORDINATOR": "10.0.0.9:1",
        "JACCL_COORDINATOR": "10.0.0.1:32323",
    }
    found = resolve(environ=environ)
    assert (found.rank, found.size) == (1, 2)
    assert found.coordinator == f"10.0.0.1:{derived_port(32323)}"


def test_mlx_nccl() -> None:
    """MLX_WORLD_SIZE, and NCCL's address with another port."""
    environ = {
        "MLX_RANK": "1",
        "MLX_WORLD_SIZE": "2",
        "NCCL_HOST_IP": "10.0.0.1",
        "NCCL_PORT": "12345",
    }
    found = resolve(environ=environ)
    assert (found.rank, found.size) == (1, 2)
    assert found.coordinator == f"10.0.0.1:{derived_port(12345)}"


def test_our_launcher_sets_them_all(tmp_path: Path) -> None:
    """Sets that agree are no contradiction; ours is asked first."""
    hosts = file_of(tmp_path, [["10.0.0.1:1"]] * 4)
    environ = {**TORCH, **OURS, "MLX_RANK": "1", "MLX_HOSTFILE": hosts}
    assert resolve(environ=environ).source.startswith("STANDFAST_RANK")


# --- size 1 ---------------------------------------------------------------------------------------


def test_a_group_of_one_is_said_explicitly() -> None:
    """By arguments or variables; it needs no coordinator."""
    assert resolve(rank=0, size=1, environ={}).coordinator is None
    environ = {"STANDFAST_RANK": "0", "STANDFAST_WORLD_SIZE": "1"}
    assert resolve(environ=environ).size == 1


def test_nothing_is_not_a_group_of_one() -> None:
    """Without any source the error names the three ways to say who you are."""
    text = refusal({})
    for way in ("standfast run", "STANDFAST_RANK", "init(rank="):
        assert way in text
    assert refusal({"STANDFAST_LAUNCHER": "none", **TORCH}) == text


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "1"}, "RANK='1' is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE='4' is set, but RANK is not"),
        ({"STANDFAST_RANK": "1"}, "STANDFAST_RANK='1' is set, but STANDFAST_WORLD_SIZE is not"),
        ({**TORCH, "STANDFAST_RANK": "1"}, "STANDFAST_WORLD_SIZE is not"),
        ({"MLX_RANK": "1"}, "MLX_IBV_DEVICES or MLX_HOSTFILE or MLX_WORLD_SIZE is not"),
        ({"MLX_RANK": "abc", "MLX_WORLD_SIZE": "2"}, "MLX_RANK='abc' is not a whole number"),
        ({**TORCH, "RANK": "-1"}, "RANK='-1' is not a whole number"),
        ({**TORCH, "RANK": ""}, "RANK='' is not a whole number"),
        ({**TORCH, "RANK": "1.0"}, "RANK='1.0' is not a whole number"),
        ({**TORCH, "RANK": "4"}, "rank 4 is not one of the 4 ranks 0..3"),
        ({**TORCH, "WORLD_SIZE": "0"}, "WORLD_SIZE=0: a group has at least 1 rank"),
        ({**TORCH, "MASTER_PORT": "x"}, "MASTER_PORT='x'"),
        ({**TORCH, "STANDFAST_PORT": "0"}, "STANDFAST_PORT='0'"),
        ({**OURS, "STANDFAST_COORDINATOR": "host"}, "STANDFAST_COORDINATOR='host'"),
        ({**OURS, "STANDFAST_GENERATION": "x"}, "STANDFAST_GENERATION='x'"),
        ({**OURS, "STANDFAST_LOCAL_RANK": "x"}, "STANDFAST_LOCAL_RANK='x'"),
        (
            {**TORCH, "STANDFAST_LAUNCHER": "pbs"},
            "STANDFAST_LAUNCHER='pbs' is not one of mlx, torch",
        ),
    ],
)
def test_a_wrong_environment_is_named(environ: dict[str, str], words: str) -> None:
    """The message has the variable and the value."""
    assert words in refusal(environ)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 1}, "rank=1 was given without size"),
        ({"size": 2}, "size=2 was given without rank"),
        ({"rank": 2, "size": 2, "coordinator": "h:1"}, "not one of the 2 ranks"),
        ({"rank": -1, "size": 2, "coordinator": "h:1"}, "not one of the 2 ranks"),
        ({"rank": 0, "size": 0}, "at least 1 rank"),
        ({"rank": True, "size": 2, "coordinator": "h:1"}, "rank=True is not a whole number"),
        ({"rank": 0.0, "size": 2, "coordinator": "h:1"}, "rank=0.0 is not a whole number"),
        ({"rank": 0, "size": 2, "coordinator": "h"}, "coordinator='h' is not of the form"),
        ({"rank": 0, "size": 2, "coordinator": ""}, "coordinator='' is not of the form"),
        ({"rank": 0, "size": 1, "generation": -1}, "generation=-1 is below 0"),
        ({"rank": 1, "size": 2}, "has no coordinator"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    """The message has the argument and its value."""
    assert words in refusal({}, **arguments)


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "cannot be read"), ('{"a": 1}', "does not hold a JSON list"), (None, "cannot be read")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    """The message has the variable and the file."""
    path = str(tmp_path / "none") if content is None else file_of(tmp_path, content)
    for name in ("MLX_HOSTFILE", "MLX_IBV_DEVICES"):
        text = refusal({"MLX_RANK": "0", name: path})
        assert words in text
        assert f"{name}={path!r}" in text


def test_a_matrix_that_is_not_square_is_named(tmp_path: Path) -> None:
    """The bad row is in the message."""
    path = file_of(tmp_path, [[None, "a"], ["a"]])
    assert "row 1 does not have 2 entries" in refusal({"MLX_RANK": "0", "MLX_IBV_DEVICES": path})


@pytest.mark.parametrize(
    "missing", [{"MASTER_ADDR"}, {"MASTER_PORT"}, {"MASTER_ADDR", "MASTER_PORT"}]
)
def test_a_set_without_a_meeting_point(missing: set[str]) -> None:
    """Rank and size alone do not let ranks meet; the hint says what does."""
    environ = {name: value for name, value in TORCH.items() if name not in missing}
    assert "STANDFAST_COORDINATOR=host:port" in refusal(environ)


def test_rank_0_with_a_listener_needs_no_meeting_point() -> None:
    """The launcher handed it the coordinator's socket."""
    environ = {"STANDFAST_RANK": "0", "STANDFAST_WORLD_SIZE": "2", "STANDFAST_LISTEN_FD": "3"}
    assert resolve(environ=environ).coordinator is None
    assert "no coordinator" in refusal({**environ, "STANDFAST_RANK": "1"})


# --- two sources ----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"RANK": "2"}, {"WORLD_SIZE": "5"}])
def test_two_sets_that_disagree_are_both_named(change: dict[str, str]) -> None:
    """A wrong rank is a hang later; an error now."""
    text = refusal({**OURS, **TORCH, **change})
    for words in ("STANDFAST_RANK='1'", "STANDFAST_WORLD_SIZE='4'", *(f"{k}=" for k in change)):
        assert words in text
    assert "STANDFAST_LAUNCHER=standfast|torch|none" in text


def test_the_override_chooses_one() -> None:
    """STANDFAST_LAUNCHER ends every contradiction."""
    environ = {**OURS, **TORCH, "RANK": "2"}
    assert resolve(environ={**environ, "STANDFAST_LAUNCHER": "torch"}).rank == 2
    assert resolve(environ={**environ, "STANDFAST_LAUNCHER": "none"}).rank == 1
    assert resolve(environ={**environ, "STANDFAST_LAUNCHER": "standfast"}).rank == 1


def test_half_of_another_set_does_not_matter() -> None:
    """A complete set is not spoiled by a stray variable of another launcher."""
    assert resolve(environ={**OURS, "WORLD_SIZE": "9"}).size == 4
    assert resolve(environ={**TORCH, "MLX_RANK": "9"}).rank == 1


def test_an_inner_launcher_wins_over_a_known_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun inside of Slurm: a new row, and its name in `inside`, is all that takes."""
    row = launchers.Launcher(
        "slurm", launchers.Rule(("SLURM_PROCID",)), launchers.Rule(("SLURM_NTASKS",))
    )
    monkeypatch.setattr("standfast.identity.LAUNCHERS", (*launchers.LAUNCHERS, row))
    outer = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert resolve(environ={**TORCH, **outer}).size == 4
    assert resolve(environ={**OURS, **outer}).size == 4
    alone = {**outer, "STANDFAST_COORDINATOR": "h:1"}
    assert resolve(environ=alone).size == 2


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({}, False),
        ({"PATH": "/bin", "STANDFAST_FABRIC": "tcp"}, False),
        ({"STANDFAST_RANK": "0", "STANDFAST_WORLD_SIZE": "2"}, True),
        ({"STANDFAST_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "STANDFAST_LAUNCHER": "none"}, False),
    ],
)
def test_whether_anybody_says_which_rank_this_is(environ: dict[str, str], given: bool) -> None:
    """A launcher counts, even one that says half of it; settings do not."""
    assert is_given(environ) is given
