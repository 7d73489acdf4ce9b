"""`standfast run` on a node other than 0: comes to node 0's launcher, and serves it as an agent.

It starts only what it was told itself to start: node 0 says when, under which rank, and how it is
to end. When node 0's launcher is lost, so are this node's ranks, and the status is 75.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from typing import NoReturn

import click

from standfast import exits
from standfast.endpoint import is_wildcard
from standfast.launch.agent import Agent, Charge
from standfast.launch.hosts import key_of
from standfast.launch.inbox import SIGNALS
from standfast.launch.nodes import Comer, NodeSpec
from standfast.launch.orders import LEASE_NS
from standfast.launch.parts import adopt_orphans
from standfast.launch.process import Program
from standfast.launch.program import find_program
from standfast.launch.spec import JobSpec, LaunchError
from standfast.launch.switchboard import comer_of
from standfast.launch.workspace import report_directory
from standfast.rendezvous.call import Call, Caller
from standfast.rendezvous.channel import FOREIGN, OTHER_VERSION, Channel, End
from standfast.rendezvous.listen import text_of
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.protocol import (
    AGAIN,
    LAUNCHER,
    Challenge,
    Joined,
    Reader,
    Refused,
    encode,
)

ANSWER: Reader[Joined | Refused] = Reader(Joined | Refused)
NOT_NOW = f"not stopped: after {LEASE_NS / 1e9:g} s node 0 would take it for lost; Ctrl-C ends it"
PATIENCE_S = 5.0
"""How long nothing is said of waiting."""
STATUSES = {"config": exits.CONFIG, "stale": exits.UNAVAILABLE}


def run_node(spec: JobSpec, node: NodeSpec) -> int:
    """Serve node 0's launcher to the job's end; return the exit status.

    Raises:
        LaunchError: there is no such program; node 0's launcher cannot be reached, or refuses us.
    """
    if is_wildcard(node.coordinator.host):
        raise LaunchError(
            f"node {node.rank} of {node.count} cannot call {node.coordinator}, where only node 0"
            " can listen",
            status=exits.CONFIG,
            hint="give this node the address of node 0: --coordinator HOST:PORT",
        )
    path = find_program(spec.command[0], spec.environ.get("PATH", os.defpath))
    key = key_of(spec)
    adopt_orphans()
    with Loop(node.wait_s) as loop:
        fd, addresses = Visit(loop, node, comer_of(node, spec), key).run()
    charge = Charge(
        program=Program(path, spec.command),
        environ=spec.environ,
        cwd=spec.cwd,
        grace_s=spec.grace_s,
        kill_after_s=spec.kill_after_s,
        addresses=addresses,
    )
    _say(node, f"joined node 0's launcher at {node.coordinator} ({spec.command[0]})")
    with selectors.DefaultSelector() as selector, report_directory(spec.environ) as directory:
        with socket.socket(fileno=fd) as sock:
            agent = Agent(selector, sock.fileno(), sock.dup().detach(), directory, charge)
            sock.detach()  # the agent closes it
        signal.signal(signal.SIGTSTP, lambda *_: _say(node, NOT_NOW))
        agent.run(SIGNALS)
    return _conclude(node, agent)


class Visit:
    """The way to node 0's launcher: dials until it answers, or the time is over."""

    def __init__(self, loop: Loop, node: NodeSpec, comer: Comer, key: bytes | None) -> None:
        self._loop = loop
        self._node = node
        self._comer = comer
        self._refused_for = ""
        self._arrived: tuple[int, tuple[str, str]] | None = None
        self._call: Call[Joined] = Call(
            loop,
            [node.coordinator],
            Caller(
                purpose=LAUNCHER,
                rank=node.rank,
                target=0,
                secret=key,
                reader=ANSWER,
                body=lambda challenge, channel: self._introduction(challenge),
                answered=self._joined,
                refused=self._refused,
                ended=self._ended,
            ),
        )

    def run(self) -> tuple[int, tuple[str, str]]:
        """Return the connection, our address in it, and the other side's.

        Raises:
            LaunchError: nobody was there in time, or we are not wanted.
        """
        self._loop.later(PATIENCE_S, self._say_waiting)
        self._call.start()
        while self._arrived is None:
            if self._loop.expired():
                self._give_up()
            self._turn()
        return self._arrived

    def _turn(self) -> None:
        try:
            self._loop.turn()
        except OSError as error:  # this system refuses all addresses for good
            raise self._error(str(error.strerror or error), exits.UNAVAILABLE) from error

    def _introduction(self, challenge: Challenge) -> bytes:
        return encode(self._comer)

    def _joined(self, channel: Channel, joined: Joined) -> None:
        ours, theirs = (text_of(end) for end in _ends(channel.sock))
        self._arrived = self._call.take(), (ours, theirs)

    def _refused(self, refusal: Refused, address: str) -> None:
        if refusal.kind == AGAIN:
            self._refused_for = refusal.text
            return
        status = STATUSES.get(refusal.kind, exits.UNAVAILABLE)
        raise self._error(f"refused: {refusal.text}", status, refusal.hint)

    def _ended(self, end: End, address: str) -> None:
        if end.kind == OTHER_VERSION:
            hint = "install the same standfast on all nodes"
            raise self._error(f"{address}: {end.cause}", exits.CONFIG, hint)
        if end.kind == FOREIGN:
            hint = f"is {self._node.coordinator} where node 0's launcher listens?"
            raise self._error(f"{address}: {end.cause}", exits.UNAVAILABLE, hint)

    def _say_waiting(self) -> None:
        _say(self._node, f"waiting for node 0's launcher at {self._node.coordinator}")

    def _give_up(self) -> NoReturn:
        seen = self._refused_for or self._call.dial.attempts.text()
        raise self._error(
            f"it did not let us in within {self._node.wait_s:g} s: {seen}",
            exits.UNAVAILABLE,
            "is `standfast run` running on node 0? more time: --wait-nodes-s",
        )

    def _error(self, why: str, status: int, hint: str | None = None) -> LaunchError:
        node, host = self._node, self._comer.host
        text = f"node {node.rank} on {host} cannot join node 0's launcher at {node.coordinator}"
        return LaunchError(f"{text}: {why}", status=status, hint=hint)


def _ends(sock: socket.socket) -> tuple[tuple[object, ...], tuple[object, ...]]:
    return sock.getsockname(), sock.getpeername()


def _conclude(node: NodeSpec, agent: Agent) -> int:
    """Say how it ended, and return the status for that."""
    if agent.over == "":
        if agent.job_status:
            _say(node, f"the job ended with {agent.job_status}; node 0's launcher has said why")
        return agent.job_status
    if agent.told:
        _say(node, f"{exits.signal_name(agent.told[0])}: this node's ranks are gone")
        return exits.SIGNAL_BASE + agent.told[0]
    _say(
        node,
        f"node 0's launcher at {node.coordinator} is lost: {agent.over}; this node's ranks were"
        " killed\nhint: start the job again on all nodes",
    )
    return exits.RETRY


def _say(node: NodeSpec, text: str) -> None:
    where = f"node {node.rank} of {node.count} on {socket.gethostname()}"
    click.echo(f"standfast: {where}: {text}", err=True)
