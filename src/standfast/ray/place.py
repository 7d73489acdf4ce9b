"""The actor: a place of Ray's for one rank. Runs the launcher's agent, and carries its bytes.

Made and watched by steward.py. The agent starts, watches and ends the rank; its stdin comes through
this process, so whoever kills the actor, its worker or its raylet ends that stdin, and the agent
then kills its rank at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import deque

AGENT = ("-P", "-m", "standfast.launch.agent")
DIAL_S = 10.0
LEAVE_S = 6.0
"""How long an agent without its launcher may take to end its rank: KILL_S of agent.py, and more."""
READ_BYTES = 1 << 16
LAST_LINES = 3


class Place:
    """What the actor does; steward.py makes an actor's class of it."""

    def where(self) -> tuple[str, str]:
        """Return this node's address, and its id at Ray."""
        import ray

        return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()

    def serve(self, host: str, port: int, token: str) -> str:
        """Run an agent for the launcher whose line waits at host:port; return how the agent ended.

        Raises:
            OSError: there is nobody at that address, or no agent could be started.
        """
        with socket.create_connection((host, port), DIAL_S) as line:
            line.settimeout(None)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(f"{token}\n".encode())
            return _run_agent(line)


def _run_agent(line: socket.socket) -> str:
    agent = subprocess.Popen(
        [sys.executable, *AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(line),
        start_new_session=True,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    assert agent.stderr is not None
    said: deque[str] = deque(maxlen=LAST_LINES)
    orders = threading.Thread(target=_carry_orders, args=(line, agent.stdin.fileno()), daemon=True)
    words = threading.Thread(target=_keep_words, args=(agent.stderr.fileno(), said), daemon=True)
    orders.start()
    words.start()
    _carry_news(agent.stdout.fileno(), line)
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for orders
    orders.join()
    agent.stdin.close()
    try:
        status = agent.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        status = agent.wait()
    words.join(1.0)
    return "; ".join([f"the agent ended with status {status}", *said])


def _environment(line: socket.socket) -> dict[str, str]:
    """Return the agent's environment: who called whom, as ssh says it, and this Python first."""
    (theirs, their_port), (ours, our_port) = line.getpeername()[:2], line.getsockname()[:2]
    folder = os.path.dirname(sys.executable)
    return {
        **os.environ,
        "SSH_CONNECTION": f"{theirs} {their_port} {ours} {our_port}",
        "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)]),
    }


def _carry_orders(line: socket.socket, fd: int) -> None:
    """From the launcher to the agent; at the end the agent's stdin ends."""
    with contextlib.suppress(OSError):
        while data := line.recv(READ_BYTES):
            _write_all(fd, data)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd, inheritable=False)  # the pipe ends, and the number stays its owner's
    os.close(null)


def _carry_news(fd: int, line: socket.socket) -> None:
    """From the agent to the launcher, until the agent has ended."""
    with contextlib.suppress(OSError):
        while data := os.read(fd, READ_BYTES):
            line.sendall(data)


def _keep_words(fd: int, said: deque[str]) -> None:
    """Hand the agent's complaints on to Ray's log, and keep the last ones."""
    with open(fd, errors="replace", closefd=False) as stream:
        for text in stream:
            said.append(text.strip())
            sys.stderr.write(text)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
