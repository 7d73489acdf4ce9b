"""What is in examples/deploy is well-formed, agrees with exits.py, and tells who each pod is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from standfast import exits
from standfast.command import run
from standfast.identity import resolve
from standfast.launch.options import settle_nodes
from standfast.settings import rows

DEPLOY = Path(__file__).resolve().parents[1] / "examples/deploy"
FINAL = {exits.USAGE, exits.MISMATCH, exits.CONFIG}
# What the cluster itself puts in place of a field, for pod 1 of the manifest's job.
FIELDS = {
    "metadata.annotations['jobset.sigs.k8s.io/coordinator']": "digits-ranks-0-0.digits",
    "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": "2",
    "metadata.annotations['jobset.sigs.k8s.io/jobset-name']": "digits",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "0b7c",
}
SETS = {
    "jobset.yaml": {"JOB_COMPLETION_INDEX": "1"},
    "indexed-job.yaml": {"JOB_COMPLETION_INDEX": "1"},
    "leaderworkerset.yaml": {
        "LWS_WORKER_INDEX": "1",
        "LWS_GROUP_SIZE": "2",
        "LWS_LEADER_ADDRESS": "model-0.model.default",
    },
}
# Pods that are a rank each: ranks, meeting point, generation.
EXPECTED = {"indexed-job.yaml": (4, "digits-0.digits:29400", 1)}
# Pods that run a launcher each: nodes, meeting point, start of the job, ranks of all nodes.
NODES = {
    "jobset.yaml": (2, "digits-ranks-0-0.digits:29400", 2, 4),
    "leaderworkerset.yaml": (2, "model-0.model.default:29400", 1, 4),
}
MANIFESTS = sorted(SETS)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def found(value: object, key: str) -> list[Any]:
    """Collect what stands under a key, at any depth."""
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [each for part in value.values() for each in found(part, key)]
    if isinstance(value, list):
        return [each for part in value for each in found(part, key)]
    return []


def environment_of(name: str) -> dict[str, str]:
    """Return what pod 1 gets: the cluster's own variables, and the manifest's with $(X) put in."""
    environ = dict(SETS[name])
    (container,) = [each for group in found(documents(name), "containers") for each in group]
    for variable in container["env"]:
        text = variable.get("value")
        if text is None:
            source = variable["valueFrom"]
            field = source.get("fieldRef", {}).get("fieldPath")
            text = "0123456789abcdef" if field is None else FIELDS[field]
        assert isinstance(text, str), f"{variable['name']} must be quoted: Kubernetes takes texts"
        environ[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: environ[m[1]], text)
    return environ


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_pod_knows_who_it_is(name: str) -> None:
    """The manifest's variables and the cluster's make a rank with a meeting point."""
    who = resolve(environ=environment_of(name))
    assert (who.rank, who.size, who.coordinator, who.generation) == (1, *EXPECTED[name])


def options_of(name: str) -> dict[str, Any]:
    """Return what `standfast run` makes of the container's command and variables."""
    (container,) = [each for group in found(documents(name), "containers") for each in group]
    words: list[str] = [*container["command"], *container["args"]]
    assert words[:2] == ["standfast", "run"]
    options = dict(run.make_context("run", words[2:]).params)
    settle_nodes(options, environment_of(name))
    return options


@pytest.mark.parametrize("name", sorted(NODES))
def test_a_pods_launcher_knows_its_node(name: str) -> None:
    """The command line is one that `standfast run` takes; variables make a node with a leader."""
    options = options_of(name)
    node = options["node"]
    assert node.rank == 1
    seen = (node.count, str(node.coordinator), node.attempt, options["ranks"])
    assert seen == NODES[name]
    assert options["command"][0] == "python"


@pytest.mark.parametrize("name", MANIFESTS)
def test_variables_are_ours(name: str) -> None:
    """Each STANDFAST_ variable is one that something reads."""
    settings = {variable for row in rows() for variable in row.variables}
    identity = {"LAUNCHER", "WORLD_SIZE", "COORDINATOR", "PORT", "GENERATION", "JOB_ID", "NNODES"}
    known = settings | {f"STANDFAST_{word}" for word in identity}
    for variable in environment_of(name):
        assert not variable.startswith("STANDFAST_") or variable in known


@pytest.mark.parametrize("name", MANIFESTS)
def test_numbers_agree(name: str) -> None:
    """Port and number of pods are the same wherever they are written."""
    pods, coordinator = EXPECTED[name][:2] if name in EXPECTED else NODES[name][:2]
    (port,) = found(documents(name), "containerPort")
    assert coordinator.endswith(f":{port}")
    if name == "leaderworkerset.yaml":
        assert found(documents(name), "size") == [pods]
    else:
        assert found(documents(name), "parallelism") == [pods]
        assert found(documents(name), "completions") == [pods]


@pytest.mark.parametrize("name", ["jobset.yaml", "indexed-job.yaml"])
def test_what_is_not_tried_again(name: str) -> None:
    """podFailurePolicy fails the job for the statuses that exits.py calls final, and no others."""
    (policy,) = found(documents(name), "podFailurePolicy")
    (rule,) = policy["rules"]
    (container,) = [each for group in found(documents(name), "containers") for each in group]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["operator"] == "In"
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert set(rule["onExitCodes"]["values"]) == FINAL
    assert found(documents(name), "restartPolicy") == ["Never"]  # podFailurePolicy demands it
    assert found(documents(name), "backoffLimit") == [0]


def test_jobset_fails_with_its_job() -> None:
    """The rule of JobSet takes up the reason that Kubernetes gives for such a Job."""
    (jobset,) = documents("jobset.yaml")
    (rule,) = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    coordinator = jobset["spec"]["coordinator"]["replicatedJob"]
    assert [job["name"] for job in jobset["spec"]["replicatedJobs"]] == [coordinator]


def test_the_unit_tries_again_what_may_pass() -> None:
    """RestartPreventExitStatus is what exits.py calls final; 75 is tried again."""
    unit = (DEPLOY / "standfast-train.service").read_text()
    statuses = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert set(map(int, statuses[0].split())) == FINAL
    assert "Restart=on-failure" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the program is one that exists here."""
    unit = tmp_path / "standfast-train.service"
    text = (DEPLOY / unit.name).read_text()
    unit.write_text(text.replace("/opt/train/bin/standfast", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in answer.stderr.splitlines() if unit.name in line]
    assert complaints == []


def test_the_slurm_script_is_a_script() -> None:
    """`sh -n` reads it, and Slurm is told to start it again."""
    script = DEPLOY / "train.sbatch"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    text = script.read_text()
    assert "#SBATCH --requeue" in text
    assert text.index("#SBATCH --output") < text.index("srun --kill"), "Slurm stops at a command"


@pytest.mark.parametrize(
    ("program", "status", "starts"),
    [
        ("exit 0", 0, 1),
        ("exit 75", 75, 3),
        ("exit 137", 137, 3),
        ("exit 9", 9, 3),  # as MPICH's mpirun has it
        ("[ $STANDFAST_GENERATION = 2 ] || exit 75", 0, 2),
        ("exit 1", 1, 1),
        ("exit 76", 76, 1),
        ("exit 78", 78, 1),
    ],
)
def test_again(tmp_path: Path, program: str, status: int, starts: int) -> None:
    """again.sh starts a launcher again where that helps, each time as the next generation."""
    command = f"echo $STANDFAST_GENERATION >> {tmp_path}/starts; {program}"
    words = ["env", "AGAIN_ALSO=9 11", str(DEPLOY / "again.sh"), "2", "sh", "-c", command]
    answer = subprocess.run(words, check=False)
    assert answer.returncode == status
    assert (tmp_path / "starts").read_text().split() == [str(n + 1) for n in range(starts)]


@pytest.mark.parametrize(
    ("program", "status"), [("exit 3", 3), ("exit 0", 0), ("exit 75", 75), ("kill -9 $PPID", 75)]
)
def test_mlx_launch_gets_a_status(tmp_path: Path, program: str, status: int) -> None:
    """mlx-launch.sh ends as rank 0 did, and with 75 if that was killed; words stay as they are."""
    launcher = tmp_path / "mlx.launch"
    launcher.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do shift; done; shift\n'
        'MLX_RANK=0 "$@" & MLX_RANK=1 "$@" & wait; exit 0\n'
    )
    launcher.chmod(0o755)
    command = f'echo "$1,$2,$MLX_RANK"; [ $MLX_RANK = 1 ] || {program}'
    words = [str(launcher), "-n", "2", "--", "sh", "-c", command, "sh", "a b", "--"]
    answer = subprocess.run(
        [str(DEPLOY / "mlx-launch.sh"), *words], capture_output=True, text=True, check=False
    )
    assert answer.returncode == status
    assert sorted(answer.stdout.split("\n")) == ["", "a b,--,0", "a b,--,1"]
