"""The process that talks to Ray for a job: placement group and actors. One per job.

    python -P -m standfast.ray.steward PLAN DIRECTORY [DESCRIPTOR]

Started by stewardship.py, whose pipe is our stdin: when that ends, so do we, and Ray then ends the
actors of its lost driver. So it is with DESCRIPTOR, a pipe of the process that called run().
A line of JSON on stdout says that all places are there, or why not. Afterwards each line.py that
calls at the socket gets an actor in its place: a thread per place.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from standfast.ray.place import Place
from standfast.ray.plan import RayPlan, actor_options, place_of, resource_words

SOCKET = "steward"
POLL_S = 0.2
LEAVE_S = 4.0
LONG_S = 5.0
"""Starting an actor takes a second or two; longer means that Ray has no room."""


class Steward:
    """Holds the placement group, and gives actors in it to whoever calls."""

    def __init__(self, ray: Any, plan: RayPlan) -> None:
        self._ray = ray
        self._plan = plan
        self._group: Any = None
        self._leaving = False
        self._serving: list[threading.Thread] = []
        self.address: str = str(ray.util.get_node_ip_address())
        """By which the actors reach this machine."""

    def reserve(self) -> str:
        """Have all places reserved; return why that did not succeed, or nothing."""
        from ray.util.placement_group import placement_group

        self._group = placement_group(self._plan.bundles(), strategy=self._plan.strategy)
        if self._group.wait(self._plan.room_s):
            return ""
        return no_room(self._plan, self._ray.nodes())

    def take(self, connection: socket.socket) -> None:
        """Serve a line in a thread of its own."""
        self._serving = [thread for thread in self._serving if thread.is_alive()]
        self._serving.append(threading.Thread(target=self.serve, args=(connection,), daemon=True))
        self._serving[-1].start()

    def leave(self) -> None:
        """Let all lines go, and give their agents a moment to tidy up: Ray kills what is left."""
        self._leaving = True
        end_s = time.monotonic() + LEAVE_S
        for thread in self._serving:
            thread.join(max(0.0, end_s - time.monotonic()))

    def serve(self, connection: socket.socket) -> None:
        """Serve one line from its request to its end."""
        with connection, connection.makefile("rb") as lines:
            _tell(connection, host=self.address)
            try:
                request = json.loads(lines.readline() or "{}")
                if request:
                    self._give(connection, request)
            except (_Left, OSError):
                pass  # it may leave whenever it likes
            except Exception as error:  # noqa: BLE001 - the edge of a thread: all is told
                text = f"{type(error).__name__}: {reason_of(error)}"
                _tell(connection, over=True, text=f"asking Ray for a place failed: {text}")

    def _give(self, connection: socket.socket, request: dict[str, Any]) -> None:
        actor = self._actor(place_of(request["host"]))
        where = ""
        try:
            address, node = self._placed(actor, connection)
            where = f"Ray node {address} ({node[:8]})"
            say(f"{request['host']} is on {where}")
            call = (request["address"], request["port"], request["token"])
            served = actor.serve.remote(*call)
            try:
                text = self._result(served, connection)
            except _Left:
                _tell(connection, over=True, text="the process that talks to Ray has ended")
                self._ray.wait([served], timeout=LEAVE_S)  # the agent tidies up, and then is gone
                raise
            _tell(connection, over=True, text=f"{where}: {text}")
        except self._ray.exceptions.RayError as error:
            _tell(connection, over=True, text=f"{where}: {reason_of(error)}".lstrip(": "))
        finally:
            self._ray.kill(actor, no_restart=True)

    def _actor(self, place: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(
            self._group,
            placement_group_bundle_index=place,
            placement_group_capture_child_tasks=True,
        )
        options = actor_options(self._plan.resources)
        return self._ray.remote(Place).options(scheduling_strategy=where, **options).remote()

    def _placed(self, actor: Any, connection: socket.socket) -> Any:
        """Wait until Ray has started an actor; say so if that takes long."""
        reference = actor.where.remote()
        if not self._ray.wait([reference], timeout=LONG_S)[0]:
            resources = resource_words(self._plan.resources)
            _tell(connection, text=f"Ray has no node yet that has {resources} for it")
        return self._result(reference, connection)

    def _result(self, reference: Any, connection: socket.socket) -> Any:
        """Return what an actor's call returns, unless the line leaves before."""
        while not self._ray.wait([reference], timeout=POLL_S)[0]:
            # It has nothing more to say, so that is its end.
            if self._leaving or select.select([connection], [], [], 0)[0]:
                raise _Left
        return self._ray.get(reference)


class _Left(Exception):
    """Whoever wanted the place is gone."""


def no_room(plan: RayPlan, nodes: list[dict[str, Any]]) -> str:
    """Say that there is no room for the places, and what there is. Pure."""
    alive = [node for node in nodes if node.get("Alive")]
    names = sorted(plan.resources)
    have = "; ".join(
        f"{node['NodeManagerAddress']} has "
        + resource_words({name: node["Resources"].get(name, 0) for name in names})
        for node in alive
    )
    return f"Ray found no room for {plan.words()} within {plan.room_s:g} s; its nodes: {have}"


def reason_of(error: BaseException) -> str:
    """Return what Ray says about a lost actor as one line, without its guesses. Pure."""
    lines = [line.strip() for line in str(error).partition(GUESSES)[0].splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(NOT_TOLD))


GUESSES = "Some common causes include"
NOT_TOLD = ("class_name:", "actor_id:", "namespace:", "name:")
"""Parts of Ray's text that say nothing to our user."""


def _tell(connection: socket.socket, **words: Any) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(words).encode() + b"\n")


def say(text: str) -> None:
    """Tell the user something, in one write."""
    sys.stderr.write(f"standfast: {text}\n")
    sys.stderr.flush()


def answer(**words: Any) -> None:
    """Tell stewardship.py, once, how it went."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def accept_all(listener: socket.socket, steward: Steward, lifelines: Sequence[int]) -> None:
    """Serve each line in a thread of its own, until one of the pipes ends that keep us here."""
    while True:
        ready, _, _ = select.select([listener.fileno(), *lifelines], [], [])
        if any(fd in ready and not os.read(fd, 1) for fd in lifelines):
            return
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            steward.take(connection)


def connect(plan: RayPlan, python_path: str) -> Any:
    """Become a driver of the cluster; return the ray module.

    Raises:
        ImportError: there is no Ray here.
        Exception: as ray.init() does; ConnectionError if no cluster runs.
    """
    import ray

    runtime = {"env_vars": {"PYTHONPATH": python_path}} if python_path else None
    ray.init(
        address=plan.address or os.environ.get("RAY_ADDRESS") or "auto",
        runtime_env=runtime,
        log_to_driver=False,
        logging_level="error",
    )
    return ray


def main(arguments: list[str]) -> int:
    """Be the steward of a job: its plan, a directory that ends with us, perhaps a descriptor."""
    plan, directory = RayPlan.from_json(arguments[0]), arguments[1]
    lifelines = [0, *map(int, arguments[2:])]
    path = os.path.join(directory, SOCKET)
    try:
        ray = connect(plan, os.environ.get("PYTHONPATH", ""))
        steward = Steward(ray, plan)
        trouble = steward.reserve()
        if trouble:
            answer(ready=False, text=trouble, hint=ROOM_HINT)
            return 1
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(128)
            answer(ready=True)
            accept_all(listener, steward, lifelines)
            steward.leave()
    except ImportError as error:
        answer(ready=False, text=f"there is no Ray in {sys.executable}: {error}", hint=IMPORT_HINT)
        return 1
    except Exception as error:  # noqa: BLE001 - the edge of a process: all is told
        answer(ready=False, text=f"no Ray cluster: {reason_of(error)}", hint=CLUSTER_HINT)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(Exception):
        ray.shutdown()
    return 0


IMPORT_HINT = "pip install 'ray>=2.40' for the Python that runs standfast, and on all nodes"
CLUSTER_HINT = "start one with `ray start --head`, or name it by --ray-address or RAY_ADDRESS"
ROOM_HINT = "ask for fewer ranks, other --ray-resources or another --ray-strategy; `ray status`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
