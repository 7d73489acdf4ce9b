"""A case of the death tests whose ranks live on hosts of their own: rank r on host r."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from tests.death.harness import Case, PerRank
from tests.death.processes import Nursery
from tests.network.hosts import CONTROL, DATA, Hosts, address_of

LIMITS = {"heartbeat_s": 0.3, "hint_s": 0.9, "silence_s": 2.0}
"""Short enough for tests, and far enough above a scheduler's hiccups."""
QUICK = {"heartbeat_s": 0.2, "hint_s": 0.5, "silence_s": 1.0}
"""The shortest silence limit there is: for what must not raise anything."""


class Cluster(Case):
    """One scenario on hosts that are joined by two networks.

    with Cluster(network, nursery, "working") as case:
        case.wait_all("ready")
        cut = network.cut(2)
        ...
    """

    def __init__(
        self,
        hosts: Hosts,
        nursery: Nursery,
        scenario: str,
        args: dict[str, Any] | PerRank | None = None,
        *,
        init: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Say what is to run: see Case.

        Args:
            hosts: where.
            nursery: from the fixture.
            scenario: a function of tests.network.scenarios, or "module:function".
            args: for Here.args.
            init: arguments of standfast.init(), instead of LIMITS.
            more: of Case.
        """
        self.hosts = hosts
        given = LIMITS if init is None else init
        name = scenario if ":" in scenario else f"tests.network.scenarios:{scenario}"

        def init_of(rank: int) -> dict[str, Any]:
            return {"data_address": address_of(rank, DATA), **given}

        more.setdefault("quick_end", True)
        super().__init__(nursery, hosts.count, name, args, init=init_of, **more)

    def open(self) -> tuple[socket.socket, str]:
        host = address_of(0, CONTROL)
        sock = self.hosts.members[0].call(lambda: socket.create_server((host, 0), backlog=128))
        return sock, f"{host}:{sock.getsockname()[1]}"

    def host_of(self, rank: int) -> dict[str, str] | None:
        return {"path": self.hosts.members[rank].path, "name": self.hosts.name(rank)}


@contextlib.contextmanager
def side_by_side(
    hosts: Hosts, nursery: Nursery, scenarios: Mapping[str, dict[str, Any]], **more: Any
) -> Iterator[dict[str, Cluster]]:
    """Run several scenarios at once, each with its arguments: one fault hits them all.

    Most of a test's time is a limit that has to pass. Yields the cases by scenario, all ready.
    """
    with contextlib.ExitStack() as stack:
        cases = {}
        for scenario, args in scenarios.items():
            case = Cluster(hosts, nursery, scenario, args, **more)
            cases[scenario] = stack.enter_context(case)
        for case in cases.values():
            case.wait_all("ready")
        yield cases
