"""A Slurm on this machine, for as long as a test: its daemons, without munge.

Several nodes are several slurmd, each with a port of its own. None of them can be called localhost:
Slurm takes that for each of them, and ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.started.job import SIZE, free_port, wait_for

CONFIGURATION = """\
ClusterName=standfast
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
MpiDefault=none
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
RequeueExit=75
KillWait=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={size}\n"


def missing() -> str | None:
    """Say why there can be no Slurm here, or None."""
    if "FOREIGN_PYTHON" not in os.environ:
        return "takes long, for Slurm's own pauses: see `make test-foreign`"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    for program in ("slurmctld", "slurmd", "srun"):
        if shutil.which(program) is None:
            return f"there is no {program}: apt-get install slurmctld slurmd slurm-client"
    return None


@contextmanager
def running(folder: Path, nodes: Sequence[str] = ("localhost",)) -> Iterator[dict[str, str]]:
    """Start the daemons; give the environment in which Slurm's commands find them."""
    folder.mkdir()
    for name in ("state", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir()
    configuration = folder / "slurm.conf"
    text = CONFIGURATION.format(folder=folder, controller_port=free_port())
    lines = [NODE.format(name=node, port=free_port(), size=SIZE) for node in nodes]
    configuration.write_text("".join([text, *lines]))
    environment = {"SLURM_CONF": str(configuration)}
    with ExitStack() as stack:
        daemons = {"slurmctld": ["slurmctld"]}
        daemons |= {f"slurmd-{node}": ["slurmd", "-N", node] for node in nodes}
        for name, command in daemons.items():
            words = [*command, "-D", "-f", str(configuration)]
            stack.enter_context(_daemon(name, words, folder))
        wait_for(lambda: _idle(environment), 30.0, lambda: _said(folder))
        yield environment


def start_at_once(environment: dict[str, str]) -> None:
    """Let requeued jobs run now: Slurm holds them back for 121 s, whatever is configured."""
    listed = _run(["squeue", "-h", "-t", "PENDING", "-o", "%i %r"], environment)
    for job, _, reason in (line.partition(" ") for line in listed.splitlines()):
        if reason == "BeginTime":
            _run(["scontrol", "update", f"JobId={job}", "StartTime=now"], environment)


def _run(command: list[str], environment: dict[str, str]) -> str:
    answer = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return answer.stdout


@contextmanager
def _daemon(name: str, command: list[str], folder: Path) -> Iterator[None]:
    with (folder / f"{name}.text").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _idle(environment: dict[str, str]) -> bool | None:
    """Tell whether the nodes take jobs."""
    states = _run(["sinfo", "-h", "-N", "-o", "%T"], environment)
    return True if set(states.split()) == {"idle"} else None


def _said(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.text")))
