"""Ranks on other hosts: one agent each. callers.py brings them, agent.py is the other end."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from standfast import exits
from standfast.launch.callers import Callers
from standfast.launch.clock import now_ns
from standfast.launch.crew import Member
from standfast.launch.descriptions import (
    JACCL_RING_BACKEND,
    RING_BACKEND,
    devices_text,
    ring_text,
)
from standfast.launch.environment import HOST, Formation, Newcomers, Place, own_formation
from standfast.launch.link import CONNECT_NS, Link
from standfast.launch.orders import (
    FENCE_NS,
    Check,
    Checked,
    Describe,
    Ended,
    Fed,
    Gone,
    Hello,
    Home,
    Leaving,
    Listening,
    Notice,
    Obituary,
    Order,
    Prepare,
    Printed,
    Refused,
    Seat,
    Start,
    Started,
)
from standfast.launch.placement import (
    Host,
    entries_of,
    place_newcomer,
    place_ranks,
    slots_of,
)
from standfast.launch.records import RankEnd
from standfast.launch.remote import RemoteRank, RemoteStdin
from standfast.launch.spares import SPARE_RANK, Upkeep
from standfast.launch.spec import HostLost, JobSpec, LaunchError
from standfast.launch.terminal import size_variables

if TYPE_CHECKING:
    import selectors

    from standfast.launch.output import Output
    from standfast.launch.process import Program
    from standfast.launch.stdin import Stdin
    from standfast.launch.verdicts import Report

AGAIN_NS = 1_000_000_000
"""How long after a failed attempt a host is asked again."""
AGAIN_LIMIT_NS = 10_000_000_000
LISTEN_NS = 10_000_000_000
SPARE_LOOK_NS = 500_000_000
"""How soon to look again whether there is room for a spare."""


class Station:
    """A host, its agent, and what is known of what a lost agent left there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link: Link | None = None
        self.banned = False
        self.trouble = ""
        self.next_try_ns = 0
        self.failed_ns = 0
        self.leaving = False
        self.home: Home = Home()
        self.left: tuple[int, ...] = ()
        """Groups that a lost agent had started. 0 stands for one of which only that is known."""
        self.asked = False
        """Whether an agent is there that will tell when nothing of `left` lives."""
        self.fence_ns = 0

    @property
    def up(self) -> bool:
        """Whether ranks can be started there: an agent is there, and nothing else."""
        there = self.link is not None and self.link.up
        return there and not (self.left or self.banned or self.leaving)


class AgentCrew:
    """The ranks of a job of several hosts. One agent per host serves all generations."""

    def __init__(
        self,
        spec: JobSpec,
        selector: selectors.BaseSelector,
        output: Output,
        program: Program,
        stdin: Stdin,
        noticed: Callable[[bytes], None],
        callers: Callers,
        spare_ended: Callable[[RankEnd, str], None],
    ) -> None:
        self._job_status = exits.SOFTWARE
        self._spec = spec
        self._selector = selector
        self._output = output
        self._callers = callers
        self._program = program
        self._noticed = noticed
        self._stdin = stdin
        self._stdins: dict[int, RemoteStdin] = {}
        names = dict.fromkeys(host.name for host in spec.hosts)
        self._stations = {name: Station(name) for name in names}
        self._ranks: dict[int, tuple[Station, RemoteRank, Place]] = {}
        self._next_key = 0
        self._asked_ns: dict[int, int] = {}
        self._spares: dict[int, tuple[Station, RemoteRank]] = {}
        self._upkeep = Upkeep()
        self._spare_ended = spare_ended
        self._formation: Formation | None = None
        self._ended: Callable[[Member], None] = _nobody
        self._listening: dict[str, Listening] = {}
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
        """Whether every host that can be asked was asked since then."""
        return all(
            each.up
            or each.banned
            or each.leaving
            or each.failed_ns >= since_ns
            or self._callers.comes_by_itself(each.name)
            for each in self._stations.values()
        )

    def call(self) -> None:
        """Ask those hosts for an agent that have none, but none too often."""
        now = now_ns()
        for station in self._stations.values():
            if station.link is None and not station.banned and now >= station.next_try_ns:
                station.next_try_ns = now + AGAIN_NS
                self._connect(station)
        self._tried = True

    def troubles(self) -> list[str]:
        """Return why hosts have no agent."""
        found = [
            each.trouble or self._callers.trouble(each.name)
            for each in self._stations.values()
            if not each.up
        ]
        return [text for text in found if text]

    def _connect(self, station: Station) -> None:
        carrier = self._callers.call(station.name)
        if carrier is None:
            return
        station.leaving = False
        station.link = Link(
            station.name,
            carrier,
            self._selector,
            lambda news: self._heard(station, news),
            lambda: self._lost(station),
            AGAIN_LIMIT_NS if self._tried else CONNECT_NS,
        )

    def ban(self, name: str) -> None:
        """Use a host no more: something there cannot be killed."""
        self._stations[name].banned = True
        self._stations[name].trouble = f"{name} has a process that could not be killed"

    # --- a generation

    @property
    def kept(self) -> Sequence[int]:
        """Links reap their ssh by themselves."""
        return ()

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
        self._asked_ns.clear()
        usable = self._usable()
        placed = place_ranks(formation.size, usable)
        formation = self._completed(formation, placed, entries_of(formation.size, usable))
        self._formation = formation
        links = {name: _living_link(self._stations[name]) for name, _ in placed}
        for name, place in placed:
            station, link = self._stations[name], links[name]
            seated = self._seat(station, link, formation, place)
            members[place.rank] = seated or self._start(station, link, formation, place)
        if self._spec.spares and not self._spec.watch:
            self._upkeep.begin()

    def _seat(
        self, station: Station, link: Link, formation: Formation, place: Place
    ) -> RemoteRank | None:
        """Give a place to a spare of this host; None if there is none, or it has to have stdin."""
        waiting = [key for key, (where, _) in self._spares.items() if where is station]
        if not waiting or self._stdin.goes_to(place.rank):
            return None
        member = self._spares.pop(waiting[0])[1]
        member.become(place.rank, self._output)
        self._ranks[member.key] = (station, member, place)
        self._upkeep.used()
        environment = self._handed_on(station.name, place.rank)
        link.say(Seat(member.key, formation, place, environment, size_variables()))
        return member

    def _start(
        self, station: Station, link: Link, formation: Formation, place: Place
    ) -> RemoteRank:
        """Have a process started."""
        rank, key = place.rank, self._new_key()
        member = RemoteRank(rank, key, link, self._output)
        self._ranks[key] = (station, member, place)
        wants_stdin = self._stdin.goes_to(rank)
        order = self._order(station, formation, place, key)
        link.say(msgspec.structs.replace(order, stdin=wants_stdin))
        if wants_stdin:
            self._stdins[key] = RemoteStdin(key, link)
            self._stdin.add(self._stdins[key])
        return member

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def _order(self, station: Station, formation: Formation, place: Place, key: int) -> Start:
        return Start(
            formation=formation,
            place=place,
            path=self._program.path,
            command=tuple(self._program.command),
            environment=self._handed_on(station.name, max(0, place.rank)),
            cwd=self._spec.cwd,
            watch=self._spec.watch,
            kill_after_s=self._spec.kill_after_s,
            terminal=size_variables(),
            key=key,
        )

    # --- spares

    def _keep_spares(self) -> None:
        """Start those that are due, where there is room."""
        due_ns = self._upkeep.due_ns
        if self._formation is None or due_ns is None or now_ns() < due_ns:
            return
        while len(self._spares) < self._spec.spares:
            found = place_newcomer(SPARE_RANK, self._usable(), self._used(), nodes=[], rather="")
            if found is None:
                return
            name, place = found
            station = self._stations[name]
            assert station.link is not None
            key = self._new_key()
            member = RemoteRank(SPARE_RANK, key, station.link, self._output)
            self._spares[key] = (station, member)
            order = self._order(station, self._formation, place, key)
            station.link.say(msgspec.structs.replace(order, spare=True))

    def _used(self) -> dict[str, list[int]]:
        """Return the local ranks on each host; a spare counts as one, whichever it will be."""
        used: dict[str, list[int]] = {}
        for station, member, place in self._ranks.values():
            if not member.gone:
                used.setdefault(station.name, []).append(place.local_rank)
        for station, member in self._spares.values():
            if not member.gone:
                used.setdefault(station.name, []).append(SPARE_RANK)
        return used

    def _spare_is_over(self, key: int) -> None:
        """One has ended without a place."""
        member = self._spares.pop(key)[1]
        member.kill_rest()
        end = member.end(now_ns())
        what = self._upkeep.ended(end.words())
        self._output.say([f"standfast: spare on {member.host} (pid {member.pid}): {what}"])
        self._spare_ended(end, what)

    def may_follow(self, rank: int) -> bool:
        """Whether nothing of the rank's last process is left, and every host was asked for room."""
        asked_ns = self._asked_ns.setdefault(rank, now_ns())
        self.call()
        last = [station for station, member, _ in self._ranks.values() if member.rank == rank]
        return not last[-1].left and self.settled(asked_ns)

    def newcomer(self, newcomers: Newcomers, rank: int, ended: Member) -> RemoteRank | None:
        """Start a rank again: on its own host if there is room, else on another."""
        assert self._formation is not None
        own = own_formation(self._formation, newcomers)
        waiting = [station for station, _ in self._spares.values() if station.up]
        here = next((each for each in waiting if each.name == ended.host), None)
        station = here or next(iter(waiting), None)
        used, nodes = self._used(), list(self._stations)
        if station is not None and not self._stdin.goes_to(rank):
            used[station.name].remove(SPARE_RANK)  # the place that it has kept
            hosts = [host for host in self._usable() if host.name == station.name]
        else:
            hosts = self._usable()
        found = place_newcomer(rank, hosts, used, nodes=nodes, rather=ended.host)
        if found is None:
            return None
        name, place = found
        station = self._stations[name]
        assert station.link is not None
        self._asked_ns.pop(rank, None)
        seated = self._seat(station, station.link, own, place)
        return seated or self._start(station, station.link, own, place)

    def _handed_on(self, name: str, rank: int) -> Mapping[str, str]:
        """Return variables for a rank; nothing to a node, whose launcher has its own.

        The user's key is among them, and the connection of a node can be read by others.
        """
        return {} if self._callers.comes_by_itself(name) else self._spec.handed_on_to(rank)

    def _completed(
        self, formation: Formation, placed: Sequence[tuple[str, Place]], entries: Sequence[Host]
    ) -> Formation:
        """Have ports found on all hosts; return the formation with those, and what they are for."""
        names = list(dict.fromkeys(name for name, _ in placed))
        hellos = [_hello(self._stations[name]) for name in names]
        own = dict(zip(names, addresses_of(hellos), strict=True))
        counts = Counter(name for name, _ in placed)
        self._prepare(names, own, counts)
        first = self._listening[names[0]]
        spare = {name: iter(answer.ring) for name, answer in self._listening.items()}
        ring = [(place.data_address or own[name], next(spare[name])) for name, place in placed]
        devices = "" if self._spec.backend == RING_BACKEND else devices_text(entries)
        for name in names:
            self._say(name, Describe(formation.generation, ring_text(ring), devices))
        return dataclasses.replace(
            formation,
            host=own[names[0]],
            port=first.port,
            master_port=first.master_port,
            watch_port=first.watch_port,
            jaccl_port=first.jaccl_port,
            jaccl_ring=self._spec.backend == JACCL_RING_BACKEND,
        )

    def _prepare(
        self, names: Sequence[str], own: Mapping[str, str], counts: Mapping[str, int]
    ) -> None:
        """Ask all hosts for ports, and wait for them; HostLost if one goes meanwhile."""
        self._listening.clear()
        links = {name: _living_link(self._stations[name]) for name in names}
        for name in names:
            first = name == names[0]
            self._say(name, Prepare(own[name], self._spec.watch, first, counts[name]))
        until_ns = now_ns() + LISTEN_NS
        while len(self._listening) < len(names):
            late = [name for name in names if name not in self._listening]
            lost = [name for name in late if links[name].down]
            if lost or now_ns() > until_ns:
                name = (lost or late)[0]
                if lost:
                    raise HostLost(self._stations[name].trouble, status=exits.UNAVAILABLE)
                raise LaunchError(f"{name} finds no free ports", status=exits.UNAVAILABLE)
            for key, _ in self._selector.select(0.1):
                key.data()
            self.attend()

    def _say(self, name: str, order: Order) -> None:
        link = self._stations[name].link
        if link is not None:
            link.say(order)

    def due_ns(self) -> int | None:
        """Return when the next sign of life is to be sent."""
        dues = [each.link.due_ns() for each in self._stations.values() if each.link is not None]
        dues += [each.fence_ns for each in self._stations.values() if each.left]
        if len(self._spares) < self._spec.spares and self._upkeep.due_ns is not None:
            dues.append(max(self._upkeep.due_ns, now_ns() + SPARE_LOOK_NS))
        return min(dues, default=None)

    def attend(self) -> None:
        """Keep the links alive, notice those that are not; LaunchError if a rank was refused."""
        self._callers.attend()
        for name in self._callers.arrived():
            self._connect(self._stations[name])
        for station in self._stations.values():
            if station.link is not None:
                station.link.attend()
            if station.left and now_ns() > station.fence_ns and not station.asked:
                station.left = ()
        self._bury()
        self._keep_spares()
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise LaunchError(refused.text, status=refused.status)

    def _bury(self) -> None:
        """Take the loss of an agent for the end of its ranks."""
        cut_off = [member for _, member, _ in self._ranks.values() if member.cut_off]
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
                member.rank: (member.report, station.link.offset_ns if station.link else 0)
                for station, member, _ in self._ranks.values()
            }
        )

    def over(self) -> None:
        """Nothing is to be forgotten: the next start does."""

    def dismiss(self, status: int) -> None:
        """Let the agents know, when they go, how the job has ended."""
        self._job_status = status

    def close(self) -> None:
        """Let all agents go: all are told before the first is waited for."""
        links = [each.link for each in self._stations.values() if each.link is not None]
        links = [link for link in links if not link.down]
        for station in self._stations.values():
            station.link = None
        for link in links:
            link.take_leave(self._job_status)
        for link in links:
            link.close()
        self._callers.close()

    # --- news

    def _heard(self, station: Station, news: Any) -> None:
        match news:
            case Hello():
                self._came(station, news)
            case Listening():
                self._listening[station.name] = news
            case Refused():
                self._is_refused(news)
            case Notice(line):
                self._noticed(line)
            case Leaving(number):
                station.leaving = True
                station.trouble = f"{station.name} was told to end: {exits.signal_name(number)}"
            case Fed(key, count):
                if key in self._stdins:
                    self._stdins[key].fed(count)
            case Checked(living):
                station.left, station.asked = (), False
                if living:
                    self.ban(station.name)
            case _:
                self._heard_of_rank(news)

    def _is_refused(self, news: Refused) -> None:
        """No generation can do without one of its ranks, but ranks that go on can."""
        if news.key in self._spares:
            self._spares[news.key][1].refused(news)
            self._spare_is_over(news.key)
            return
        refused = self._ranks.get(news.key)
        before = [each.rank for key, (_, each, _) in self._ranks.items() if key < news.key]
        if refused is not None and refused[1].rank in before:
            refused[1].refused(news)
            self._ended(refused[1])
        else:
            self._refused = news

    def _heard_of_rank(self, news: Started | Ended | Gone | Printed) -> None:
        if news.key in self._spares:
            self._heard_of_spare(news, self._spares[news.key][1])
            return
        if news.key not in self._ranks:
            return
        member = self._ranks[news.key][1]
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

    def _heard_of_spare(self, news: Started | Ended | Gone | Printed, member: RemoteRank) -> None:
        match news:
            case Started():
                member.started(news)
            case Ended():
                member.ended(news)
                self._spare_is_over(news.key)
            case Printed():
                member.printed(news)

    def _came(self, station: Station, hello: Hello) -> None:
        """An agent is there; if another was lost, something of that one may be left."""
        left = what_is_left(station.home, hello)
        station.home = hello.home
        if left is Left.GONE and not self._callers.comes_by_itself(station.name):
            station.left = ()
        elif left is Left.ASK and station.left and 0 not in station.left:
            station.asked = True
            _living_link(station).say(Check(station.left))
        station.trouble = ""

    def _lost(self, station: Station) -> None:
        """Remember what may be left there; its ranks are told of in attend()."""
        link, station.link = station.link, None
        if link is None:
            return
        station.trouble = station.trouble if station.leaving else link.reason
        station.failed_ns = now_ns()
        station.asked = False
        for key in [key for key, (where, _) in self._spares.items() if where is station]:
            spare = self._spares.pop(key)[1]
            spare.lost()
            self._spare_ended(spare.end(now_ns()), spare.end(now_ns()).words())
        members = [member for where, member, _ in self._ranks.values() if where is station]
        left = tuple(each.pid for each in members if not each.gone)
        if left:
            station.left, station.fence_ns = left, now_ns() + FENCE_NS


class Left(enum.Enum):
    """What a new agent can know of what a lost one left; of 0, a rank without a number, nothing."""

    ASK = "it can look"
    GONE = "the machine was started anew since then"
    WAIT = "nothing: it is elsewhere, and the lost one's lease has to run out"


def what_is_left(before: Home, hello: Hello) -> Left:
    """Return what the agent behind `hello` can know of the one whose home was `before`. Pure.

    The same place may be given on another machine (by Ray, or as a node that comes by itself), and
    in another container of the same machine process ids count anew.
    """
    if before == hello.home:
        return Left.ASK
    is_restarted = before.host == hello.name and before.boot != hello.boot
    return Left.GONE if is_restarted else Left.WAIT


def addresses_of(hellos: Sequence[Hello]) -> list[str]:
    """Return the address at which others reach each of these hosts. Pure.

    It is that by which the launcher reached it; for the launcher's own machine, where an agent has
    no connection, that from which another host was reached.
    """
    here = next((hello.launcher for hello in hellos if hello.launcher), HOST)
    return [hello.address or here for hello in hellos]


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
