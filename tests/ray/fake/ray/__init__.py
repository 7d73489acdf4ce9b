"""Stands in for Ray where there is none: one node, and each actor a process of its own.

Only what standfast asks of Ray, with Ray's names and errors; put in front of PYTHONPATH. What the
real one does is tested by tests/started/test_ray_run.py.

FAKE_RAY says how it behaves: "no cluster", "no room", "actors die" (each one as it starts).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

from . import cloudpickle as cloudpickle
from . import util as util
from .exceptions import ActorDiedError

HERE = os.path.dirname(os.path.dirname(__file__))


def behaviour() -> str:
    return os.environ.get("FAKE_RAY", "")


def init(address: str, **options: Any) -> None:
    if behaviour() == "no cluster":
        raise ConnectionError(f"Could not find any running Ray instance at {address}")


def is_initialized() -> bool:
    return True


def shutdown() -> None:
    pass


def nodes() -> list[dict[str, Any]]:
    return [{"Alive": True, "NodeManagerAddress": "127.0.0.1", "Resources": {"CPU": 2.0}}]


def get_runtime_context() -> SimpleNamespace:
    return SimpleNamespace(get_node_id=lambda: "0123456789abcdef", gcs_address="127.0.0.1:1")


class Reference:
    """A result that is to come."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: Exception | None = None


class Actor:
    """A process that makes one call at a time."""

    def __init__(self, kind: type) -> None:
        command = [sys.executable, "-P", "-m", "ray.worker", kind.__module__, kind.__qualname__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._lock = threading.Lock()

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *args: self._call(method, args))

    def _call(self, method: str, args: tuple[Any, ...]) -> Reference:
        reference = Reference()
        threading.Thread(target=self._make, args=(reference, method, args), daemon=True).start()
        return reference

    def _make(self, reference: Reference, method: str, args: tuple[Any, ...]) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with self._lock:
                pickle.dump((method, args), stdin)
                stdin.flush()
                reference.value = pickle.load(stdout)
        except (OSError, EOFError, ValueError):
            reference.error = ActorDiedError(
                "The actor died unexpectedly before finishing this task.\n"
                f"\tclass_name: Place\n\tpid: {self._process.pid}\n"
                "Its worker process has died. Some common causes include: (1) the weather"
            )
        reference.done.set()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Class:
    """What remote() makes of a class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def options(self, **options: Any) -> Class:
        return self

    def remote(self) -> Actor:
        return Actor(self._kind)


def remote(kind: type) -> Class:
    return Class(kind)


def wait(references: list[Reference], timeout: float) -> tuple[list[Reference], list[Reference]]:
    (reference,) = references
    return (references, []) if reference.done.wait(timeout) else ([], references)


def get(reference: Reference) -> Any:
    reference.done.wait()
    if reference.error is not None:
        raise reference.error
    return reference.value


def kill(actor: Actor, no_restart: bool) -> None:
    actor.end()
