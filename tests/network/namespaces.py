"""Network namespaces without names, held by a descriptor of this process alone.

The kernel removes a namespace, with its devices and rules, when nobody holds it any more: tests
that die at any moment leave nothing behind, and runs side by side can't meet.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
COMMAND_S = 10.0


class CommandFailed(RuntimeError):
    """A command of the system did not work; its text tells which, and what it said."""


def _call_c(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{args}: {os.strerror(number)}")


def enter(path: str) -> None:
    """Move the calling thread into the network namespace that this path stands for."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call_c("setns", fd, CLONE_NEWNET)
    finally:
        os.close(fd)


def settle(path: str, name: str) -> None:
    """Let this process live on the host that has this network and this name."""
    enter(path)
    _call_c("unshare", CLONE_NEWUTS)
    socket.sethostname(name)


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread that ends with it, and takes its namespace along."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def command(*words: str, text: str = "") -> str:
    """Run a command and return what it printed.

    Raises:
        CommandFailed: it is not there, its status is not 0, or it takes too long.
    """
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, check=False, text=True, timeout=COMMAND_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}{text}")
    return done.stdout


class Namespace:
    """A network namespace of its own; nothing but its loopback is in it at first."""

    def __init__(self) -> None:
        self._fd = in_thread(self._make)
        self.run("ip", "link", "set", "lo", "up")

    @staticmethod
    def _make() -> int:
        _call_c("unshare", CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        """Return what other processes can open as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def run(self, *words: str, text: str = "") -> str:
        """Run a command in this namespace and return what it printed."""
        return command("nsenter", f"--net={self.path}", *words, text=text)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in this namespace. Sockets that it makes stay in it wherever used."""

        def there() -> T:
            enter(self.path)
            return function()

        return in_thread(there)

    def close(self) -> None:
        os.close(self._fd)
