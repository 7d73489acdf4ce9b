"""Node 0's side of a job with a launcher on each node: where the others' launchers come in.

They prove the key as ranks do (rendezvous/handshake.py), say who they are, and from then on are
agents: only the way in differs from ssh.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
from collections.abc import Callable, Sequence

from standfast import exits
from standfast.errors import RendezvousError
from standfast.launch.callers import SshCallers
from standfast.launch.carrier import Carrier, SocketCarrier
from standfast.launch.guardian import Guardian
from standfast.launch.nodes import Comer, NodeSpec, name_of, objection
from standfast.launch.spec import JobSpec, LaunchError
from standfast.rendezvous.channel import Channel
from standfast.rendezvous.door import Door, peer_text
from standfast.rendezvous.listen import open_coordinator
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.protocol import (
    AGAIN,
    LAUNCHER,
    Begin,
    Joined,
    Malformed,
    Reader,
    Refused,
    frame,
)
from standfast.version import version

FOREVER_S = 1e9
COMER: Reader[Comer] = Reader(Comer)


class Switchboard:
    """Brings the agents of all nodes: node 0's is a child, the others come over TCP."""

    def __init__(
        self,
        spec: JobSpec,
        node: NodeSpec,
        key: bytes | None,
        selector: selectors.BaseSelector,
        guardian: Guardian,
        say: Callable[[str], None],
    ) -> None:
        """Listen; `say` tells the user who came.

        Raises:
            LaunchError: the coordinator's address cannot be listened on.
        """
        self._selector = selector
        self._here = SshCallers(spec, selector, guardian)
        self._say = say
        self._arrivals: dict[str, SocketCarrier] = {}
        self._served: dict[str, SocketCarrier] = {}
        self._ours = comer_of(node, spec)
        logging.getLogger("standfast").addHandler(logging.NullHandler())  # `say` has all of it
        self._loop = Loop(FOREVER_S)
        self._door = Door(
            self._loop,
            self._listeners(node),
            purpose=LAUNCHER,
            rank=0,
            size=node.count,
            secret=key,
            local_only=False,
            came=self._came,
        )
        self._door.open()
        selector.register(self._loop, selectors.EVENT_READ, self.attend)

    def call(self, name: str) -> Carrier | None:
        """Start node 0's agent; take the connection over which another has come."""
        if name == name_of(0):
            return self._here.call("localhost")
        carrier = self._arrivals.pop(name, None)
        if carrier is not None:
            self._served[name] = carrier
        return carrier

    def comes_by_itself(self, name: str) -> bool:
        """All but node 0's do."""
        return name != name_of(0)

    def arrived(self) -> Sequence[str]:
        """Return the nodes whose launchers have come and were not called yet."""
        return list(self._arrivals)

    def trouble(self, name: str) -> str:
        """Return what is to be said of a node that has not come."""
        return f"no launcher of {name} has come" if self.comes_by_itself(name) else ""

    def attend(self) -> None:
        """Let in who has come."""
        self._loop.turn(0.0)

    def close(self) -> None:
        """Let nobody in any more."""
        self._selector.unregister(self._loop)
        self._door.close()
        self._loop.close()
        for carrier in self._arrivals.values():
            os.close(carrier.read_fd)
            os.close(carrier.write_fd)
            carrier.end(0.0)

    def _listeners(self, node: NodeSpec) -> Sequence[socket.socket]:
        try:
            return open_coordinator(self._loop, node.coordinator, node.count)
        except RendezvousError as error:
            self._loop.close()
            raise LaunchError(
                f"node 0's launcher on {self._ours.host} cannot listen on {node.coordinator}: "
                f"{error.cause}",
                status=exits.UNAVAILABLE,
                hint=error.hint,
            ) from error

    def _came(self, channel: Channel, begin: Begin, proof: bytes) -> None:
        """Take in a launcher that has the key, if it belongs here."""
        try:
            comer = COMER.read(begin.body)
        except Malformed as error:
            self._door.refuse(channel, Refused("rendezvous", f"it sent {error}"))
            return
        name = name_of(begin.rank)
        refusal = objection(comer, begin.rank, self._ours)
        if refusal is None and self._is_here(name):
            text = f"node {begin.rank} has a launcher already"
            refusal = Refused(AGAIN, text, "give each node its own --node-rank")
        if refusal is not None:
            if refusal.kind != AGAIN:
                self._say(f"refused a launcher: {refusal.text}")
            self._door.refuse(channel, refusal)
            return
        address = peer_text(channel.sock)
        channel.hold()  # what comes behind this frame is the agent's
        channel.send(frame(Joined(proof)), lambda: self._admit(name, comer, address, channel))

    def _is_here(self, name: str) -> bool:
        """Whether a node's launcher is here already, or has been lost without our noticing yet."""
        served = self._served.get(name)
        return name in self._arrivals or (served is not None and not served.ended)

    def _admit(self, name: str, comer: Comer, address: str, channel: Channel) -> None:
        self._say(f"{name} is {comer.host}, {address}, process {comer.pid}")
        self._arrivals[name] = SocketCarrier(channel.detach())


def comer_of(node: NodeSpec, spec: JobSpec) -> Comer:
    """Return what this node's launcher says about itself."""
    return Comer(
        version=version(),
        count=node.count,
        slots=spec.ranks // node.count,
        watch=spec.watch,
        job_id=node.job_id,
        attempt=node.attempt,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
