"""Survivors of a verdict find each other again, agree on who serves, and on who is in.

The lowest number that lives serves. Every rank walks through those before it: whose port refuses a
connection is gone (a listener lives as long as its process), whose port accepts one is there and is
waited for, even if its program has not come back for the verdict yet. Who has nobody before it
serves: it asks those who have not come whether they are there, waits for them and for newcomers,
and tells all who came who they are in the next generation. docs/design/reform.md has the reasons.

Runs in the thread that calls reform(), in one Loop, before form().
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from standfast.endpoint import Endpoint, parse_endpoint
from standfast.errors import ConfigError, PeerError, RendezvousError, StaleGroup, StandfastError
from standfast.rendezvous import failures, lineage
from standfast.rendezvous.call import Call, Caller
from standfast.rendezvous.channel import FOREIGN, OTHER_VERSION, Channel, End, errno_name
from standfast.rendezvous.door import Door
from standfast.rendezvous.lineage import NEWCOMER, Lineage, Lost, Wish
from standfast.rendezvous.listen import ANY4, ANY6, open_listener, port_of, text_of
from standfast.rendezvous.loop import Loop
from standfast.rendezvous.parting import announce, part
from standfast.rendezvous.protocol import (
    AGAIN,
    EVERYBODY,
    LED,
    MEMBER_FRAME_BYTES_MAX,
    REFORM,
    Begin,
    Challenge,
    Comer,
    Failed,
    Hello,
    Joined,
    Malformed,
    Outcome,
    Reader,
    Refused,
    encode,
    frame,
)
from standfast.rendezvous.tether import Tether

log: logging.Logger = logging.getLogger("standfast")

OP = "reform"
COMER: Reader[Comer] = Reader(Comer)
JOINED: Reader[Joined | Refused] = Reader(Joined | Refused)
ANSWER: Reader[Outcome | Failed] = Reader(Outcome | Failed)

# For this share of the time, ranks that are there and do not come are waited for: first those who
# should serve, then, longer, by the one that serves, for it hears from those who gave up on others.
PATIENCE_SHARE = 0.5
PATIENCE_SERVING_SHARE = 0.75
# One that has answered, and then freezes, is given up later still.
PATIENCE_LED_SHARE = 0.82
# And the one that this rank turned to then, which may itself have waited for the first so long.
PATIENCE_NEXT_SHARE = 0.9
# Whoever's turn it is then, to serve or to be waited for, has at least this share.
TURN_SHARE_MIN = 0.08


@dataclass(frozen=True)
class Summons:
    """What came of it: the next generation, and where its rank 0 listens.

    listener: that socket, at rank 0. tether: what still joins the ranks. Both are the caller's to
    close.
    """

    outcome: Outcome
    coordinator: Endpoint
    listener: socket.socket | None
    tether: Tether


def caller_of(
    key: bytes | None,
    comer: Callable[[], Comer],
    *,
    answered: Callable[[Channel, Joined], None],
    refused: Callable[[Refused, str], None],
    foreign: Callable[[], None],
) -> Caller[Joined]:
    """Return what a call in a re-forming is about. foreign(): something else has that port now."""

    def body(challenge: Challenge, channel: Channel) -> bytes:
        return encode(comer())

    def ended(end: End, address: str) -> None:
        if end.kind == FOREIGN:
            foreign()
        if end.kind == OTHER_VERSION:
            raise ConfigError(
                f"this rank and the one at {address} differ: {end.cause}",
                hint="install the same standfast on all hosts",
            )

    return Caller(
        purpose=REFORM,
        rank=EVERYBODY,
        target=EVERYBODY,
        secret=key,
        reader=JOINED,
        body=body,
        answered=answered,
        refused=refused,
        ended=ended,
    )


def raise_refusal(refusal: Refused, address: str, generation: int) -> None:
    """Raise a refusal that asking again does not mend; return for one that it may."""
    if refusal.kind == StaleGroup.kind:
        raise StaleGroup(
            f"{refusal.text} (said by {address})",
            hint="this process cannot come back into it; start it again as a newcomer",
            cause=refusal.text,
            generation=generation,
            op=OP,
        )
    if refusal.kind == ConfigError.kind:
        raise ConfigError(f"refused by {address}: {refusal.text}", hint=refusal.hint, op=OP)


def summons_from(outcome: Outcome, call: Call[Joined]) -> Summons:
    """Return what the one that serves has said over this call, which is over then."""
    host = parse_endpoint(call.address, name="address").host
    tether = Tether({0: call.take()}, outcome.generation)
    return Summons(outcome, Endpoint(host, outcome.port), None, tether)


class Muster:
    """One rank's part in it."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        known: Lineage,
        *,
        lost: Lost,
        wish: Wish,
        hello: Hello,
        key: bytes | None,
        closed: Refused | None = None,
    ) -> None:
        """Take part.

        Args:
            loop: bounds it.
            listener: this rank's stand-by port; it stays the caller's.
            known: the generation that is over.
            lost: whom the verdict concerns.
            wish: how many it takes, and for how long more are waited for.
            hello: what comers are compared with.
            key: by which both ends prove themselves.
            closed: why newcomers cannot be taken in at all, if so.
        """
        self._loop = loop
        self._listener = listener
        self._known = known
        self._lost = lost
        self._wish = wish
        self._hello = hello
        self._key = key
        self._closed = closed
        self._gone: set[int] = set()
        self._given_up: set[int] = set()
        self._calls: dict[int, Call[Joined]] = {}
        self._leader: int | None = None
        self._turned_s = 0.0
        # Who wants to be led by this rank: survivors by number, newcomers as they came.
        self._come: dict[int, tuple[Channel, Comer]] = {}
        self._new: dict[Channel, Comer] = {}
        self._summons: Summons | None = None
        self._door = Door(
            loop,
            [listener],
            purpose=REFORM,
            rank=EVERYBODY,
            size=max(known.full_size, len(known.numbers)),
            secret=key,
            local_only=False,
            came=self._came,
        )

    def run(self) -> Summons:
        """Find the others.

        Raises:
            RendezvousError: not enough came in time, or the one that serves says so.
            StaleGroup: the others went on without this rank.
            ConfigError: another rank runs another version, or has another key.
        """
        self._door.open()
        self._loop.later(self._wish.wait_s, lambda: None)
        while self._summons is None:
            self._review()
            if self._summons is None:
                if self._loop.expired():
                    raise self._too_few()
                self._loop.turn()
        self._end()
        return self._summons

    def fail(self, error: BaseException) -> None:
        """Tell those who want to be led why nobody leads them."""
        self._loop.calm()
        told = failures.as_told(
            error,
            rank=self._known.rank_of(self._known.me),
            host=self._hello.host,
            generation=self._known.generation,
        )
        channels = [*(channel for channel, _ in self._come.values()), *self._new]
        announce(channels, told)
        part(self._loop, channels)

    # Who serves.

    def _is_serving(self) -> bool:
        return self._leader == self._known.me

    def _review(self) -> None:
        """Look again at who serves; if it is this rank, whether it is time."""
        known, elapsed_s = self._known, self._loop.elapsed_s()
        absent = self._gone | self._given_up
        ahead = [
            number
            for number in lineage.before(known.me, known.numbers, self._lost)
            if number not in absent
        ]
        if self._leader is None or self._leader not in (*ahead, known.me):
            self._follow(ahead[0] if ahead else known.me)
        if not self._is_serving():
            if elapsed_s > self._patient_until_s(self._patience_share()):
                self._give_up(self._leader)
            return
        missing = self._ask_missing()
        if missing and elapsed_s > self._patient_until_s(PATIENCE_SERVING_SHARE):
            for number in missing:
                self._give_up(number)
            missing = set()
        if self._is_hopeless(missing, elapsed_s):
            raise self._too_few()
        if lineage.is_time(
            self._wish,
            old_size=len(known.numbers),
            survivors=1 + len(self._come),
            newcomers=len(self._new),
            missing=len(missing),
            elapsed_s=elapsed_s,
        ):
            self._call_together()

    def _patience_share(self) -> float:
        """Return for which share of the time this rank waits for the one that should serve."""
        if not self._is_led():
            return PATIENCE_SHARE
        return PATIENCE_NEXT_SHARE if self._given_up else PATIENCE_LED_SHARE

    def _patient_until_s(self, share: float) -> float:
        """Return until when others are waited for, since the beginning."""
        timeout_s = self._loop.timeout_s
        return max(share * timeout_s, self._turned_s + TURN_SHARE_MIN * timeout_s)

    def _is_hopeless(self, missing: set[int], elapsed_s: float) -> bool:
        """Tell whether nobody who may still come could make enough of those who have."""
        hoped = 1 + len(self._come) + len(missing) + len(self._lost.doubtful - {self._known.me})
        newcomers_may_come = self._wish.min_size is not None and elapsed_s < self._wish.wait_s
        size = hoped + len(self._new)
        return not newcomers_may_come and not self._wish.suffices(
            len(self._known.numbers), hoped, size
        )

    def _is_led(self) -> bool:
        """Tell whether the one that should serve has answered."""
        call = self._calls.get(NEWCOMER if self._leader is None else self._leader)
        return call is not None and call.is_answered

    def _give_up(self, number: int | None) -> None:
        if number is None:
            return
        log.warning(
            "rank %d goes on without %s, which is there and does not come",
            self._known.rank_of(self._known.me),
            self._known.named([number]),
        )
        self._given_up.add(number)
        self._stop_calling(number)

    def _follow(self, number: int) -> None:
        for other in list(self._calls):
            self._stop_calling(other)
        self._leader = number
        self._turned_s = self._loop.elapsed_s()
        if number != self._known.me:
            self._call(number, follows=True)
            return
        log.info("rank %d serves the re-forming", self._known.rank_of(number))

    def _ask_missing(self) -> set[int]:
        """Return the survivors that are there, and have not come; ask those not asked yet."""
        known = self._known
        expected = set(known.numbers) - {known.me} - self._lost.dead - self._lost.doubtful
        missing = expected - self._gone - self._given_up - self._come.keys()
        for number in missing - self._calls.keys():
            self._call(number, follows=False)
        return missing & self._calls.keys()

    # Calling.

    def _call(self, number: int, *, follows: bool) -> None:
        call: Call[Joined] = Call(
            self._loop,
            self._known.routes[number],
            caller_of(
                self._key,
                lambda: self._comer(follows=follows),
                answered=lambda channel, joined: self._answered(number, channel),
                refused=lambda refusal, address: self._refused(number, refusal, address),
                foreign=lambda: self._is_gone(number),
            ),
            lambda: self._is_gone(number),
        )
        self._calls[number] = call
        call.start()

    def _comer(self, *, follows: bool) -> Comer:
        known = self._known
        return Comer(self._hello, known.group, known.me, follows, known.attempted, known.top)

    def _stop_calling(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.stop()

    def _is_gone(self, number: int) -> None:
        """Its port refuses: its process, or its part in this group, has ended."""
        self._gone.add(number)
        self._stop_calling(number)

    def _answered(self, number: int, channel: Channel) -> None:
        channel.frame_bytes_max = MEMBER_FRAME_BYTES_MAX
        channel.on_frame = lambda payload: self._heard(number, payload)
        channel.on_end = lambda end: self._calls[number].again(end.cause)

    def _refused(self, number: int, refusal: Refused, address: str) -> None:
        raise_refusal(refusal, address, self._known.generation)
        if refusal.kind == LED and number != self._leader and self._is_serving():
            # This rank is in doubt with the others, and did not know.
            self._lost = Lost(self._lost.dead, self._lost.doubtful | {self._known.me})
            self._follow(number)

    def _heard(self, number: int, payload: bytes) -> None:
        try:
            message = ANSWER.read(payload)
        except Malformed as error:
            self._calls[number].again(f"it sent {error}")
            return
        if isinstance(message, Failed):
            why = failures.from_told(message, here=self._known.rank_of(self._known.me))
            if not isinstance(why, PeerError):
                raise why
            self._is_gone(number)  # it alone leaves: somebody else serves
            return
        self._summons = summons_from(message, self._calls[number])

    # Those who call.

    def _came(self, channel: Channel, begin: Begin, proof: bytes) -> None:
        try:
            comer = COMER.read(begin.body)
        except Malformed as error:
            self._door.refuse(channel, Refused(RendezvousError.kind, f"it sent {error}"))
            return
        objection = lineage.objection(comer, self._known, self._hello) or self._not_now(comer)
        if objection:
            self._door.refuse(channel, objection)
            return
        channel.on_frame = lambda payload: None
        channel.on_end = lambda end: self._left(comer.number, channel)
        channel.send(frame(Joined(proof)))
        if comer.number == NEWCOMER:
            self._new[channel] = comer
        elif comer.follows:
            self._welcome(comer, channel)
        else:
            self._is_asked(comer.number)

    def _not_now(self, comer: Comer) -> Refused | None:
        if comer.number == self._known.me:
            text = f"two processes say that they are number {comer.number} of the group"
            return Refused(ConfigError.kind, text)
        if comer.number == NEWCOMER:
            if self._closed is not None:
                return self._closed
            if not self._is_serving():
                return Refused(AGAIN, "this rank does not serve the re-forming")
            if len(self._new) + len(self._come) + 1 >= self._wish.max_size:
                return Refused(AGAIN, f"there is no place beyond {self._wish.max_size} ranks")
            return None
        if not comer.follows and self._is_serving():
            return Refused(LED, "this rank serves already")
        return None

    def _is_asked(self, number: int) -> None:
        """Give up whom another one has given up: it would not serve, and ask, if it had not."""
        known = self._known
        ahead = lineage.before(known.me, known.numbers, self._lost)
        if number in ahead and number != self._leader:
            self._given_up.update(ahead[: ahead.index(number)])

    def _welcome(self, comer: Comer, channel: Channel) -> None:
        earlier = self._come.pop(comer.number, None)
        if earlier is not None:
            earlier[0].close()
        self._come[comer.number] = (channel, comer)
        self._given_up.discard(comer.number)
        self._gone.discard(comer.number)
        if self._is_serving():
            self._stop_calling(comer.number)

    def _left(self, number: int, channel: Channel) -> None:
        """Forget a comer whose connection ended; if it lives, it calls again."""
        channel.close()
        self._new.pop(channel, None)
        if number in self._come and self._come[number][0] is channel:
            del self._come[number]

    # The end.

    def _call_together(self) -> None:
        """Tell all who came who they are in the next generation."""
        comers = {number: comer for number, (_, comer) in self._come.items()}
        places = max(0, self._wish.max_size - 1 - len(comers))
        taken = list(self._new.items())[:places]
        host = text_of(self._listener.getsockname())
        try:
            listener = open_listener(host, 0, 2 * self._wish.max_size, dual=host == ANY6)
        except OSError as error:
            raise RendezvousError(
                f"{self._known.named([self._known.me])} cannot listen on {host} for the ranks that "
                f"form the group again: {errno_name(error.errno)}",
                cause=errno_name(error.errno),
                op=OP,
            ) from error
        outcome = lineage.outcome_of(
            self._known, comers, [comer for _, comer in taken], port_of(listener)
        )
        reached = {ANY4: "127.0.0.1", ANY6: "::1"}.get(host, host)
        channels: Mapping[int, Channel] = {n: channel for n, (channel, _) in self._come.items()}
        told = [channels[number] for number in outcome.numbers if number in channels]
        told += [channel for channel, _ in taken]
        try:
            tether = self._tell(outcome, dict(enumerate(told, start=1)))
        except BaseException:
            listener.close()
            raise
        self._summons = Summons(outcome, Endpoint(reached, outcome.port), listener, tether)

    def _tell(self, outcome: Outcome, channels: Mapping[int, Channel]) -> Tether:
        for rank, channel in channels.items():
            channel.hold()
            channel.send(frame(msgspec.structs.replace(outcome, rank=rank)))
        while not all(channel.flushed() for channel in channels.values()):
            if self._loop.expired():
                raise self._too_few()
            self._loop.turn()
        # Whose connection has ended meanwhile is missed when the others do not find it.
        fds = {rank: channel.detach() for rank, channel in channels.items() if not channel.closed}
        return Tether(fds, outcome.generation)

    def _end(self) -> None:
        """Part from all; what was sent still arrives."""
        self._door.close()
        for number in list(self._calls):
            self._stop_calling(number)

    def _accounts(self) -> list[str]:
        """Say what is known of those that did not come."""
        absent = set(self._known.numbers) - {self._known.me} - self._come.keys()
        dead = absent & (self._gone | self._lost.dead)
        silent = absent & self._given_up - dead
        doubtful = absent & self._lost.doubtful - dead - silent
        asked = set(self._calls) if self._is_serving() else set()
        others = (absent & asked) - dead - silent - doubtful
        said = (
            (dead, "gone: ended, or closed its group"),
            (silent, "there, but given up, since it did not go on: frozen, or busy"),
            (doubtful, "not heard of since the group has lost it"),
            (others, "there, but did not come: not in reform() yet, or frozen"),
        )
        return [
            f"{self._known.named([number])} is {what}"
            for who, what in said
            for number in sorted(who)
        ]

    def _too_few(self) -> StandfastError:
        known, wish = self._known, self._wish
        here = known.rank_of(known.me)
        absent = sorted(
            known.rank_of(n) for n in set(known.numbers) - {known.me} - self._come.keys()
        )
        size = 1 + len(self._come) + len(self._new)
        if not self._is_serving() and self._leader is not None:
            text = f"{known.named([self._leader])}, which has to serve, has not called together"
        else:
            text = f"{size} came, and {wish.text(len(known.numbers))}"
        text = "; ".join([text, *self._accounts()])
        when = f" within {self._loop.timeout_s:g} s" if self._loop.expired() else ""
        return RendezvousError(
            f"the group was not formed again{when}: {text}",
            hint="wait for newcomers with wait_s=, accept fewer with min_size=, or end with "
            "status 75 and let the launcher start all ranks again",
            missing=absent,
            here=here,
            generation=known.generation,
            op=OP,
        )
