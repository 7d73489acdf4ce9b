"""The launcher's side of the steward: starts it, waits until it has all places, lets it go."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from standfast import exits
from standfast.launch.job import run_job
from standfast.launch.spec import JobSpec, LaunchError
from standfast.launch.workspace import report_directory
from standfast.ray import line
from standfast.ray.plan import RayPlan
from standfast.ray.steward import SOCKET

STEWARD = (sys.executable, "-P", "-m", "standfast.ray.steward")
SHORT = {"TMPDIR": "/tmp"}
"""A socket's name has no more than about 100 bytes: TMPDIR may be too long for that."""
CONNECT_S = 90.0
"""For importing Ray and finding its cluster, besides the plan's own room_s."""
REMEDY = "see `ray status` for nodes and room; or give --min-ranks, --spares, --wait-refill-s"
LEAVE_S = 8.0
"""More than the steward's own."""
LIFELINE = "STANDFAST_RUN_RAY_LIFELINE"
"""The descriptor of a pipe that ends with the process that called run(); set by api.py."""


def run_on_ray(spec: JobSpec, plan: RayPlan) -> int:
    """Run the job in the places of a plan; return the launcher's exit status, as run_job()."""
    with stewardship(plan, spec.environ) as command:
        return run_job(dataclasses.replace(spec, ssh=command, remedy=REMEDY))


@contextlib.contextmanager
def stewardship(plan: RayPlan, environ: Mapping[str, str]) -> Iterator[str]:
    """Have the places of a plan for as long as the block runs.

    Gives the command by which agents are reached there, in place of ssh.

    Raises:
        LaunchError: status 69: no Ray, no cluster, or no room; with what Ray said.
    """
    with report_directory(SHORT) as directory:
        lifeline = environ.get(LIFELINE)
        steward = subprocess.Popen(
            [*STEWARD, plan.to_json(), directory, *([lifeline] if lifeline else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(environ),
            pass_fds=(int(lifeline),) if lifeline else (),
            start_new_session=True,  # Ctrl-C is the launcher's
        )
        try:
            _await(steward, CONNECT_S + plan.room_s)
            path = os.path.join(directory, SOCKET)
            yield shlex.join([sys.executable, "-I", "-S", line.__file__, path])
        finally:
            _dismiss(steward)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the steward's environment, and by way of that of PYTHONPATH that of the actors."""
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [os.path.abspath(folder) for folder in folders if folder]
    return {**environ, "PYTHONPATH": os.pathsep.join(absolute)}


def _await(steward: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for its answer, whatever Ray prints before it; LaunchError if it is a refusal."""
    assert steward.stdout is not None
    end_s = time.monotonic() + limit_s
    text = b""
    while b"\n" not in text:
        left_s = end_s - time.monotonic()
        if left_s <= 0 or not select.select([steward.stdout], [], [], left_s)[0]:
            raise LaunchError(
                f"Ray did not answer within {limit_s:g} s",
                status=exits.UNAVAILABLE,
                hint="see `ray status`",
            )
        data = os.read(steward.stdout.fileno(), 65536)
        if not data:
            raise LaunchError(
                f"the process that talks to Ray ended with status {steward.wait(LEAVE_S)}",
                status=exits.UNAVAILABLE,
                hint="its own output above says why",
            )
        text = _from_answer(text + data)
    answer = json.loads(text)
    if not answer["ready"]:
        raise LaunchError(answer["text"], status=exits.UNAVAILABLE, hint=answer["hint"])


def _from_answer(text: bytes) -> bytes:
    """Drop whole lines that are not the steward's."""
    while b"\n" in text and not text.startswith(b"{"):
        text = text.partition(b"\n")[2]
    return text


def _dismiss(steward: subprocess.Popen[bytes]) -> None:
    """End its stdin, and see to it that it goes; Ray ends the actors of a driver that is gone."""
    assert steward.stdin is not None
    assert steward.stdout is not None
    steward.stdin.close()
    try:
        steward.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        steward.kill()
        steward.wait()
    steward.stdout.close()
