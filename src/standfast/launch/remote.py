"""A rank on another host, as the launcher's loop sees it: orders go out, news come in."""

from __future__ import annotations

import signal

from standfast.launch.clock import now_ns
from standfast.launch.lines import Tail
from standfast.launch.link import Link
from standfast.launch.orders import (
    WINDOW_BYTES,
    Credit,
    Cut,
    Ended,
    Feed,
    Printed,
    Refused,
    Started,
    Tell,
)
from standfast.launch.output import FedStream, Output
from standfast.launch.rank import Rank


class RemoteRank(Rank):
    """A rank that an agent was told to start."""

    def __init__(self, rank: int, key: int, link: Link, output: Output) -> None:
        super().__init__(rank, pid=0, host=link.name, tail=Tail())
        self.key = key
        self.report: bytes = b""
        self._link = link
        self.streams: tuple[FedStream, ...] = tuple(
            self._stream(output, stderr=stderr) for stderr in (False, True)
        )

    def _stream(self, output: Output, *, stderr: bool) -> FedStream:
        link, key = self._link, self.key
        return output.attach_fed(
            rank=self.rank,
            host=self.host,
            stderr=stderr,
            tail=self._tail if stderr else None,
            grant=lambda count: link.say(Credit(key, stderr, count)),
            ask_cut=lambda: link.say(Cut(key, stderr)),
        )

    @property
    def label(self) -> str:
        """What a user calls its process group."""
        return f"{self.pid} on {self.host}"

    @property
    def cut_off(self) -> bool:
        """Whether its agent is gone, and this was not taken for its end yet."""
        return self._link.down and not self.gone

    @property
    def unsettled(self) -> bool:
        """Whether something is due soon of which no news will come."""
        return not self.running and not (self.gone and self.drained)

    def tell(self, number: signal.Signals) -> None:
        """Have a signal sent to the group; the first one is remembered while the leader runs."""
        self._note(number)
        self._link.say(Tell(self.key, number))

    def kill_rest(self) -> None:
        """Have killed what the leader left behind."""
        if self._note_kill():
            self._link.say(Tell(self.key, signal.SIGKILL))

    def check_gone(self) -> bool:
        """Whether the agent has told so."""
        return self.gone

    def destroyed(self) -> bool:
        """Leave the killing to the agent, which does it when its link ends."""
        return True

    def become(self, rank: int, output: Output) -> None:
        """A spare has a rank's place."""
        self._take_place(rank)
        output.rename(self.streams, rank, self.host)

    # --- news

    def started(self, news: Started) -> None:
        """Its process is there."""
        self._note_start(news.pid, self._link.ours_ns(news.started_ns))

    def ended(self, news: Ended) -> None:
        """Its leader was reaped."""
        self._note_end(news.status, self._link.ours_ns(news.ended_ns))
        self.report = news.report

    def refused(self, news: Refused) -> None:
        """There is no process: its host could not start it."""
        for stream in self.streams:
            stream.feed(b"")
        self._note_end(news.status, now_ns(), lost=news.text)
        self._note_gone()

    def printed(self, news: Printed) -> None:
        """A piece of its output came."""
        self.streams[news.stderr].feed(news.data)

    def lost(self) -> bool:
        """Its agent is gone, and so is the rank; whether that is what ended it."""
        for stream in self.streams:
            stream.feed(b"")
        was_running = self.running
        if was_running:
            self._note_end(-signal.SIGKILL, now_ns(), lost=self._link.reason)
        self._note_gone()
        return was_running


class RemoteStdin:
    """The stdin of a rank on another host."""

    def __init__(self, key: int, link: Link) -> None:
        self._key = key
        self._link = link
        self._under_way = 0

    @property
    def full(self) -> bool:
        """Whether enough is under way."""
        return self._link.up and self._under_way >= WINDOW_BYTES

    def feed(self, data: bytes) -> None:
        """Send it on its way; nothing is the end."""
        self._under_way += len(data)
        self._link.say(Feed(self._key, data))

    def fed(self, count: int) -> None:
        """So much has arrived."""
        self._under_way -= count

    def close(self) -> None:
        """Leave the rest to the agent."""
