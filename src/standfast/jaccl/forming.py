"""form(): from a Config to connected queue pairs, in stock's order.

Rank 0 listens before it opens a device; all queue pairs exist before the first is told; the last
two exchanges make sure that all are ready before the first operation.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from standfast import _core
from standfast.errors import FabricError
from standfast.jaccl import failures
from standfast.jaccl.config import Config
from standfast.jaccl.records import MARK, NOBODY, Record
from standfast.jaccl.sidechannel import SideChannel, open_channel
from standfast.jaccl.topology import MESH, RING, Berth, berths
from standfast.rendezvous.host import host_name
from standfast.rendezvous.loop import Loop
from standfast.settings import Settings

log: logging.Logger = logging.getLogger("standfast")

# What may mend itself while we wait: an address that DHCP has not given yet, a port that comes up
# when the other end does. Asked for again so often, until this share of the time is left.
PASSING = ("no_gid", "port_down")
RETRY_S = 0.1
GIVE_UP_SHARE = 0.5


@dataclass(frozen=True)
class Formed:
    """A formed group, as one rank sees it.

    engine: for the core. control: (rank, descriptor) of the side channel, the caller's to close.
    hosts: by rank, "" where unknown. links: what carries data, by rank. stock: which ranks are not
    ours, or can't be told from those that are not.
    """

    engine: _core.JacclEngine
    control: list[tuple[int, int]]
    hosts: list[str]
    links: dict[int, str]
    stock: list[int]


def form(config: Config, settings: Settings) -> Formed:
    """Meet the other ranks and connect to them.

    Raises:
        ConfigError: the ranks do not agree on topology or key.
        FabricError: this rank's devices do not do what is asked of them.
        PeerDied: another rank ended, by whatever failed there: JACCL can't tell more.
        RendezvousError: not all ranks came, or went on, before the deadline.
    """
    formed: Formed | None = None
    try:
        with Loop(settings.init_timeout_s) as loop:
            formed = Forming(loop, config, settings).run()
    except BaseException:
        if formed is not None:
            # A signal handler raised as the loop was left.
            close(formed)
        raise
    return formed


class Forming:
    """This rank's part."""

    def __init__(self, loop: Loop, config: Config, settings: Settings) -> None:
        self._loop = loop
        self._config = config
        self._settings = settings
        self._host = host_name()
        self._channel: SideChannel = open_channel(loop, config, settings.key)
        self._berths = berths(config.matrix, config.rank, config.topology)
        self._stock: set[int] = set()

    def run(self) -> Formed:
        """Form the group."""
        config, channel = self._config, self._channel
        channel.meet()
        channel.hosts[config.rank] = self._host
        station = self._open_station()
        records = self._own_records(station)
        theirs = self._mesh(records) if config.topology == MESH else self._ring(records)
        for number, (berth, record) in enumerate(zip(self._berths, theirs, strict=True)):
            self._connect(station, number, berth, record)
        channel.barrier("queue pairs that are ready")
        channel.barrier("the end of forming")
        texts: dict[int, dict[str, None]] = {}
        for number, berth in enumerate(self._berths):
            texts.setdefault(berth.peer, {})[station.text(number)] = None
        links = {peer: ", ".join(each) for peer, each in texts.items()}
        engine = station.release(
            rank=config.rank,
            size=config.size,
            is_ring=config.topology == RING,
            has_large_frames=self._settings.has_large_jaccl_frames(),
            stock=sorted(self._stock),
        )
        return Formed(engine, channel.control(), channel.hosts, links, sorted(self._stock))

    def _open_station(self) -> _core.JacclStation:
        library = self._settings.rdma_library or ""
        try:
            return _core.JacclStation(library=library, berths=self._berths)
        except _core.VerbsError as error:
            raise self._failure(error) from error

    def _own_records(self, station: _core.JacclStation) -> list[Record]:
        """Return what the others must know; waits for addresses that are not there yet."""
        warned = False
        while True:
            try:
                return [Record(*record) for record in station.records()]
            except _core.VerbsError as error:
                left = self._loop.timeout_s - self._loop.elapsed_s()
                passing = error.args[0] in PASSING
                if not passing or left < GIVE_UP_SHARE * self._loop.timeout_s:
                    raise self._failure(error) from error
                if not warned:
                    log.warning("rank %d waits: %s", self._config.rank, error.args[1])
                    warned = True
            self._loop.pause(RETRY_S)

    def _mesh(self, records: list[Record]) -> list[Record]:
        """Exchange the records of a mesh; record p of a rank is for rank p."""
        rank = self._config.rank
        ours = [*records[:rank], NOBODY, *records[rank:]]
        all_records = self._exchange(ours, "queue pairs")
        return [all_records[berth.peer][rank] for berth in self._berths]

    def _ring(self, records: list[Record]) -> list[Record]:
        """Exchange the records of a ring; a left end belongs to the left neighbour's right end."""
        wires = len(records) // 2
        lefts = self._exchange(records[:wires], "queue pairs to the left")
        rights = self._exchange(records[wires:], "queue pairs to the right")
        left, right = self._berths[0].peer, self._berths[-1].peer
        return [*rights[left], *lefts[right]]

    def _exchange(self, records: list[Record], what: str) -> list[list[Record]]:
        """Exchange a list, and note who is not one of ours."""
        lists = self._channel.exchange_list(records, what)
        for rank, theirs in enumerate(lists):
            if any(record.mark != MARK for record in theirs):
                self._stock.add(rank)
        return lists

    def _connect(
        self, station: _core.JacclStation, number: int, berth: Berth, record: Record
    ) -> None:
        host = self._channel.hosts[berth.peer]
        peer = f"rank {berth.peer}" + (f" on {host}" if host else "")
        try:
            station.connect(number, record[:4], peer_text=peer)
        except _core.VerbsError as error:
            raise self._failure(error, berth.peer) from error

    def _failure(self, error: Any, peer: int | None = None) -> FabricError:
        """Name the rank at the other end too: its cable is meant."""
        device = error.args[3]
        if peer is None:
            peers = {berth.peer for berth in self._berths if berth.device == device}
            peer = peers.pop() if len(peers) == 1 else None
        return failures.fabric(error.args, here=self._config.rank, host=self._host, peer=peer)


def close(formed: Formed) -> None:
    """Close what no core has taken."""
    for _, descriptor in formed.control:
        os.close(descriptor)
