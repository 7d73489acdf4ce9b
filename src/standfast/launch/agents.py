"""Ranks on other hosts: one agent each, started by ssh. agent.py is the other end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from standfast import exits
from standfast.launch.clock import now_ns
from standfast.launch.crew import Member
from standfast.launch.environment import HOST, Formation
from standfast.launch.link import CONNECT_NS, Link
from standfast.launch.orders import (
    FENCE_NS,
    Check,
    Checked,
    Ended,
    Fed,
    Gone,
    Hello,
    Listening,
    Notice,
    Obituary,
    Prepare,
    Printed,
    Refused,
    Start,
    Started,
)
from standfast.launch.placement import Host, place_ranks, slots_of
from standfast.launch.remote import RemoteRank, RemoteStdin
from standfast.launch.spec import HostLost, JobSpec, LaunchError
from standfast.launch.ssh import agent_command

if TYPE_CHECKING:
    import selectors

    from standfast.launch.guardian import Guardian
    from standfast.launch.output import Output
    from standfast.launch.process import Program
    from standfast.launch.stdin import Stdin
    from standfast.launch.verdicts import Report

AGAIN_NS = 1_000_000_000
"""How long after a failed attempt a host is asked again."""
AGAIN_LIMIT_NS = 10_000_000_000
LISTEN_NS = 10_000_000_000


class Station:
    """A host, its agent, and what is known of what a lost agent left there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link: Link | None = None
        self.banned = False
        self.trouble = ""
        self.next_try_ns = 0
        self.failed_ns = 0
        self.boot = ""
        self.left: tuple[int, ...] = ()
        """Groups that a lost agent had started. 0 stands for one of which only that is known."""
        self.fence_ns = 0

    @property
    def up(self) -> bool:
        """Whether ranks can be started there: an agent is there, and nothing else."""
        return self.link is not None and self.link.up and not self.left and not self.banned

    @property
    def asked(self) -> bool:
        """Whether an agent is there that will tell when nothing is left."""
        return self.link is not None and self.link.up and 0 not in self.left


class AgentCrew:
    """The ranks of a job of several hosts. One agent per host serves all generations."""

    def __init__(
        self,
        spec: JobSpec,
        selector: selectors.BaseSelector,
        output: Output,
        guardian: Guardian,
        program: Program,
        stdin: Stdin,
        noticed: Callable[[bytes], None],
    ) -> None:
        self._spec = spec
        self._selector = selector
        self._output = output
        self._guardian = guardian
        self._program = program
        self._noticed = noticed
        self._stdin = stdin
        self._stdins: dict[int, RemoteStdin] = {}
        names = dict.fromkeys(host.name for host in spec.hosts)
        self._stations = {name: Station(name) for name in names}
        self._ranks: dict[int, tuple[Station, RemoteRank]] = {}
        self._ended: Callable[[Member], None] = _nobody
        self._listening: Listening | None = None
        self._refused: Refused | None = None
        self._tried = False

    # --- hosts

    @property
    def slots(self) -> int:
        """How many ranks could be started now."""
        return slots_of(self._usable())

    def _usable(self) -> list[Host]:
        return [host for host in self._spec.hosts if self._stations[host.name].up]

    @property
    def fenced(self) -> bool:
        """Whether nothing that a lost agent had started can still run."""
        return not any(each.left for each in self._stations.values())

    def settled(self, since_ns: int) -> bool:
        """Whether every host was asked since then."""
        return all(
            each.up or each.banned or each.failed_ns >= since_ns for each in self._stations.values()
        )

    def call(self) -> None:
        """Ask those hosts for an agent that have none, but none too often."""
        now = now_ns()
        for station in self._stations.values():
            if station.link is None and not station.banned and now >= station.next_try_ns:
                self._connect(station)
        self._tried = True

    def troubles(self) -> list[str]:
        """Return why hosts have no agent."""
        return [each.trouble for each in self._stations.values() if each.trouble and not each.up]

    def _connect(self, station: Station) -> None:
        name = station.name
        command = agent_command(
            name, self._spec.environ, ssh=self._spec.ssh, python=self._spec.python
        )
        station.next_try_ns = now_ns() + AGAIN_NS
        try:
            station.link = Link(
                name,
                command,
                self._selector,
                self._guardian,
                lambda news: self._heard(station, news),
                lambda: self._lost(station),
                AGAIN_LIMIT_NS if self._tried else CONNECT_NS,
            )
        except OSError as error:
            text = f"cannot run {command[0]}: {error.strerror}"
            raise LaunchError(
                text, status=exits.UNAVAILABLE, hint="install OpenSSH's client, or give --ssh"
            ) from error

    def ban(self, name: str) -> None:
        """Use a host no more: something there cannot be killed."""
        self._stations[name].banned = True
        self._stations[name].trouble = f"{name} has a process that could not be killed"

    # --- a generation

    def start(
        self, formation: Formation, members: dict[int, Member], ended: Callable[[Member], None]
    ) -> None:
        """Let rank 0's host listen, then start all ranks.

        Raises:
            HostLost: an agent was lost before any rank was started. One that is lost later is an
                end of its ranks, which attend() tells.
        """
        self._ended = ended
        self._ranks.clear()
        self._stdins.clear()
        placed = place_ranks(formation.size, self._usable())
        used = [self._stations[name] for name in dict.fromkeys(name for name, _ in placed)]
        formation = self._completed(formation, used)
        links = {station.name: _living_link(station) for station in used}
        for name, place in placed:
            link = links[name]
            member = RemoteRank(place.rank, link, self._output)
            members[place.rank] = member
            self._ranks[place.rank] = (self._stations[name], member)
            link.say(
                Start(
                    formation=formation,
                    place=place,
                    path=self._program.path,
                    command=tuple(self._program.command),
                    environment=self._spec.handed_on_to(place.rank),
                    cwd=self._spec.cwd,
                    watch=self._spec.watch,
                    kill_after_s=self._spec.kill_after_s,
                    stdin=self._stdin.goes_to(place.rank),
                )
            )
            if self._stdin.goes_to(place.rank):
                self._stdins[place.rank] = RemoteStdin(place.rank, link)
                self._stdin.add(self._stdins[place.rank])

    def _completed(self, formation: Formation, used: Sequence[Station]) -> Formation:
        link = _living_link(used[0])
        address = address_of([_hello(each) for each in used])
        self._listening = None
        link.say(Prepare(address, self._spec.watch))
        until_ns = now_ns() + LISTEN_NS
        while self._listening is None:
            if link.down or now_ns() > until_ns:
                reason = link.reason or f"no agent on {link.name} that listens"
                raise HostLost(reason, status=exits.UNAVAILABLE)
            for key, _ in self._selector.select(0.1):
                key.data()
            self.attend()
        return dataclasses.replace(
            formation,
            host=address,
            port=self._listening.port,
            master_port=self._listening.master_port,
            watch_port=self._listening.watch_port,
        )

    def due_ns(self) -> int | None:
        """Return when the next sign of life is to be sent."""
        dues = [each.link.due_ns() for each in self._stations.values() if each.link is not None]
        dues += [each.fence_ns for each in self._stations.values() if each.left]
        return min(dues, default=None)

    def attend(self) -> None:
        """Keep the links alive, notice those that are not; LaunchError if a rank was refused."""
        for station in self._stations.values():
            if station.link is not None:
                station.link.attend()
            if station.left and now_ns() > station.fence_ns and not station.asked:
                station.left = ()
        self._bury()
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise LaunchError(refused.text, status=refused.status)

    def _bury(self) -> None:
        """Take the loss of an agent for the end of its ranks."""
        cut_off = [member for _, member in self._ranks.values() if member.cut_off]
        for member in [each for each in cut_off if each.lost()]:
            self._ended(member)

    def cleared(self, member: Member) -> None:
        """The agent's guardian knows."""

    def tell_lost(self, generation: int, text: str) -> None:
        """Let every agent write it where the waiting ranks look."""
        for station in self._stations.values():
            if station.link is not None:
                station.link.say(Obituary(generation, text))

    def reports(self, generation: int, ranks: int) -> dict[int, Report]:
        """Read what came with the ends of ranks, by our clock."""
        from standfast.launch.reports import reports_of

        return reports_of(
            {
                rank: (member.report, station.link.offset_ns if station.link else 0)
                for rank, (station, member) in self._ranks.items()
            }
        )

    def over(self) -> None:
        """Nothing is to be forgotten: the next start does."""

    def close(self) -> None:
        """Let all agents go."""
        for station in self._stations.values():
            link, station.link = station.link, None
            if link is not None and not link.down:
                link.close()

    # --- news

    def _heard(self, station: Station, news: Any) -> None:
        match news:
            case Hello():
                self._came(station, news)
            case Listening():
                self._listening = news
            case Refused():
                self._refused = news
            case Notice(line):
                self._noticed(line)
            case Fed(rank, count):
                if rank in self._stdins:
                    self._stdins[rank].fed(count)
            case Checked(living):
                station.left = ()
                if living:
                    self.ban(station.name)
            case _:
                self._heard_of_rank(news)

    def _heard_of_rank(self, news: Started | Ended | Gone | Printed) -> None:
        if news.rank not in self._ranks:
            return
        member = self._ranks[news.rank][1]
        match news:
            case Started():
                member.started(news)
            case Ended():
                member.ended(news)
                self._ended(member)
            case Gone():
                member.gone = True
            case Printed():
                member.printed(news)

    def _came(self, station: Station, hello: Hello) -> None:
        """An agent is there; if another was lost, it tells when nothing of that one is left.

        It cannot tell of a rank whose number we never learned: for that one time has to pass.
        """
        if station.boot != hello.boot:
            station.left = ()
        elif station.asked and station.left and station.link is not None:
            station.link.say(Check(station.left))
        station.boot = hello.boot
        station.trouble = ""

    def _lost(self, station: Station) -> None:
        """Remember what may be left there; its ranks are told of in attend()."""
        link, station.link = station.link, None
        if link is None:
            return
        station.trouble = link.reason
        station.failed_ns = now_ns()
        members = [member for where, member in self._ranks.values() if where is station]
        left = tuple(each.pid for each in members if not each.gone)
        if left:
            station.left, station.fence_ns = left, now_ns() + FENCE_NS


def address_of(hellos: Sequence[Hello]) -> str:
    """Return the address at which the others reach the first of these hosts. Pure.

    That by which ssh reached it; for the launcher's own machine, from which ssh reached another.
    """
    seen = [hellos[0].address, *(hello.launcher for hello in hellos)]
    return next((address for address in seen if address), HOST)


def _living_link(station: Station) -> Link:
    if station.link is None:
        raise HostLost(station.trouble, status=exits.UNAVAILABLE)
    return station.link


def _hello(station: Station) -> Hello:
    hello = _living_link(station).hello
    assert hello is not None
    return hello


def _nobody(member: Member) -> None:
    """Stand in until a generation begins."""
