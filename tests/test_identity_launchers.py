"""Who a rank is under MPI, Slurm and what schedules nodes; and what runs inside of what."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import pytest

from standfast.endpoint import derived_port
from standfast.errors import ConfigError
from standfast.identity import resolve

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-8409@1",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[07,09]",
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_ID": "2",
}
LWS = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "lws-0.lws"}
JOB = {"JOB_COMPLETION_INDEX": "1", "STANDFAST_WORLD_SIZE": "4"}
PET = {"PET_NODE_RANK": "1", "PET_NNODES": "4", "PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "29400"}
SKY = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "4",
    "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
    "SKYPILOT_TASK_ID": "sky-1",
}
MEET = {"STANDFAST_COORDINATOR": "h:1"}


def refusal(environ: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(environ=environ)
    return str(caught.value)


def test_open_mpi() -> None:
    """With MASTER_ADDR passed on, the job's name gives all ranks the same port."""
    found = resolve(environ={**OMPI, "MASTER_ADDR": "10.0.0.1"})
    assert (found.rank, found.size, found.local_rank) == (1, 4, 0)
    port = derived_port(zlib.crc32(b"prterun-vm-8409@1"))
    assert found.coordinator == f"10.0.0.1:{port}"
    assert found.job_id == "prterun-vm-8409@1"
    given = {**OMPI, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert resolve(environ=given).coordinator == f"10.0.0.1:{derived_port(29500)}"


def test_mpich() -> None:
    """Hydra has no name for the job: it takes a port besides the host."""
    environ = {**MPICH, "MASTER_ADDR": "10.0.0.1", "STANDFAST_PORT": "29400"}
    found = resolve(environ=environ)
    assert (found.rank, found.size, found.local_rank) == (1, 4, 0)
    assert found.coordinator == "10.0.0.1:29400"
    assert "knows no port" in refusal({**MPICH, "MASTER_ADDR": "10.0.0.1"})


@pytest.mark.parametrize(
    ("environ", "way"), [(OMPI, "-x MASTER_ADDR="), (MPICH, "-genv MASTER_ADDR")]
)
def test_mpirun_without_a_meeting_point(environ: dict[str, str], way: str) -> None:
    """Nothing is guessed; the message says what to give mpirun."""
    text = refusal(environ)
    assert "rank 1 of 4 has no coordinator" in text
    assert way in text
    assert resolve(environ={**environ, **MEET}).coordinator == "h:1"


def test_slurm() -> None:
    """The step's size and first host, the port of its job, and a name for job and step."""
    found = resolve(environ=SLURM)
    assert (found.rank, found.size, found.local_rank) == (1, 4, 0)
    assert found.coordinator == f"gpu07:{5000 % 4096 + 61440}"
    assert (found.job_id, found.generation) == ("5000.2", 1)
    again = resolve(environ={**SLURM, "SLURM_RESTART_COUNT": "2", "STANDFAST_PORT": "29400"})
    assert (again.generation, again.coordinator) == (3, "gpu07:29400")


def test_slurm_without_a_step() -> None:
    """A batch script alone has no step: it starts its ranks with srun."""
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "n1"}
    assert "srun" in refusal(batch)
    assert "SLURM_NTASKS='4' is set, but SLURM_PROCID is not" in refusal({"SLURM_NTASKS": "4"})
    assert "SLURM_STEP_NODELIST='a['" in refusal({**SLURM, "SLURM_STEP_NODELIST": "a["})


def test_srun_with_pmi() -> None:
    """Slurm sets PMI's variables beside its own: who they agree on meets where Slurm says."""
    found = resolve(environ={**SLURM, "PMI_RANK": "1", "PMI_SIZE": "4"})
    assert found.coordinator == "gpu07:62344"


@pytest.mark.parametrize(
    ("inner", "rank"), [({**TORCH, "RANK": "3"}, 3), ({**OMPI, **MEET}, 1), ({**MPICH, **MEET}, 1)]
)
@pytest.mark.parametrize("outer", [SLURM, LWS, PET, SKY])
def test_known_nestings(inner: dict[str, str], rank: int, outer: dict[str, str]) -> None:
    """torchrun and mpirun inside of what schedules nodes know better who a rank is."""
    outside = {**outer, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    found = resolve(environ={**outside, **inner})
    assert (found.rank, found.size) == (rank, 4)


def test_an_inner_launcher_does_not_meet_where_the_outer_one_would() -> None:
    """Slurm's first host has its rank 0, not mpirun's, where the two differ."""
    assert "has no coordinator" in refusal({**SLURM, **OMPI, "SLURM_PROCID": "0"})


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (TORCH, {**OMPI, "OMPI_COMM_WORLD_RANK": "2"}, ("RANK='1'", "OMPI_COMM_WORLD_RANK='2'")),
        (TORCH, {**MPICH, "PMI_SIZE": "2"}, ("WORLD_SIZE='4'", "PMI_SIZE='2'")),
        (OMPI, {**MPICH, "PMI_RANK": "0"}, ("OMPI_COMM_WORLD_RANK='1'", "PMI_RANK='0'")),
    ],
)
def test_other_pairs_that_disagree(
    first: dict[str, str], second: dict[str, str], words: tuple[str, ...]
) -> None:
    """Both are named, and the variable that chooses one."""
    text = refusal({**first, **second, **MEET})
    for word in (*words, "STANDFAST_LAUNCHER="):
        assert word in text


@pytest.mark.parametrize("name", ["torch", "ompi", "mpich", "slurm"])
def test_the_override_names_each(name: str) -> None:
    """STANDFAST_LAUNCHER picks one of four that all disagree."""
    environ = {**TORCH, **OMPI, **MPICH, **SLURM, **MEET, "STANDFAST_LAUNCHER": name}
    ranks = {"torch": "RANK", "ompi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}
    for number, each in enumerate([*ranks.values(), "SLURM_PROCID"]):
        environ[each] = str(number)
    assert resolve(environ=environ).rank == ["torch", "ompi", "mpich", "slurm"].index(name)


@pytest.mark.parametrize(
    ("name", "environ"), [("lws", LWS), ("job", JOB), ("pet", PET), ("sky", SKY)]
)
def test_a_node_is_a_rank_only_if_it_is_said(name: str, environ: dict[str, str]) -> None:
    """A node is refused as a rank, with the ways out; one rank per node is said explicitly."""
    text = refusal(environ)
    assert f"STANDFAST_LAUNCHER={name}" in text
    assert "STANDFAST_RANK" in text
    found = resolve(environ={**environ, **MEET, "STANDFAST_LAUNCHER": name})
    assert (found.rank, found.size) == (1, 4)


@pytest.mark.parametrize(
    ("name", "environ", "expected"),
    [
        ("lws", {**LWS, "STANDFAST_PORT": "29400"}, "lws-0.lws:29400"),
        ("pet", PET, f"m:{derived_port(29400)}"),
        ("sky", {**SKY, "STANDFAST_PORT": "29400"}, "10.0.0.7:29400"),
    ],
)
def test_where_nodes_meet(name: str, environ: dict[str, str], expected: str) -> None:
    """The leader, the master, or the first address."""
    assert resolve(environ={**environ, "STANDFAST_LAUNCHER": name}).coordinator == expected
