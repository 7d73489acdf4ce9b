"""What a job's generations add up to: the next step, the words for the user, the exit status.

Pure. Imported once the first generation is over, so that it costs the start of the ranks nothing.
"""

from __future__ import annotations

import itertools

from standfast import exits
from standfast.launch.block import block, ending
from standfast.launch.classify import classify
from standfast.launch.policy import STUCK_GENERATIONS, is_stuck, pause_s
from standfast.launch.records import StopReason
from standfast.launch.spec import JobSpec
from standfast.launch.status import exit_status, may_retry
from standfast.launch.summary import summary
from standfast.launch.verdicts import GenerationRecord, Verdict


class Story:
    """The generations of a job that are over."""

    def __init__(self, spec: JobSpec, job_id: str, began_ns: int) -> None:
        self._spec = spec
        self._job_id = job_id
        self._began_ns = began_ns
        self._chapters: list[tuple[GenerationRecord, Verdict]] = []

    def add(self, record: GenerationRecord) -> list[str]:
        """Judge a generation that is over; return the block about it, empty if all went well."""
        verdict = classify(record.ends, record.reports, record.stops[0] if record.stops else None)
        self._chapters.append((record, verdict))
        return [] if verdict.reason is None else block(record, verdict)

    @property
    def restarts(self) -> int:
        """How often the group was formed again."""
        return len(self._chapters) - 1

    @property
    def again(self) -> bool:
        """Whether the group is to be formed again: nobody wanted the end, and nothing is left."""
        record, verdict = self._chapters[-1]
        return (
            may_retry(verdict)
            and self.restarts < self._spec.restarts
            and {stop.reason for stop in record.stops} <= {StopReason.FAILURE}
            and self._others_can_go_on(record)
            and not self.stuck
        )

    def _others_can_go_on(self, record: GenerationRecord) -> bool:
        """Whether there is nothing that could not be killed, or a host to do without."""
        return not record.leftovers or (len(self._spec.hosts) > 1)

    @property
    def stuck(self) -> bool:
        """Whether forming again leads nowhere: the program gets no further."""
        return is_stuck([record.mark for record, _ in self._chapters])

    @property
    def pause_s(self) -> float:
        """How long to wait before the next generation."""
        failed = itertools.takewhile(
            lambda record: not record.formed, (record for record, _ in reversed(self._chapters))
        )
        return pause_s(len(list(failed)))

    @property
    def hurried(self) -> bool:
        """Whether somebody wanted the end of the last generation."""
        return any(stop.reason is not StopReason.FAILURE for stop in self._chapters[-1][0].stops)

    @property
    def status(self) -> int:
        """The exit status, if this is the end."""
        return exit_status(self._chapters[-1][1], used_up=self._used_up)

    @property
    def _used_up(self) -> bool:
        return 0 < self._spec.restarts <= self.restarts

    @property
    def last(self) -> tuple[GenerationRecord, Verdict]:
        """The last generation, and what was made of it."""
        return self._chapters[-1]

    def next_words(self, generation: int) -> list[str]:
        """Return the line that goes with forming the group again."""
        number = f"restart {self.restarts + 1} of {self._spec.restarts}"
        pause = f", in {self.pause_s:g} s" if self.pause_s else ""
        forming = f"forming generation {generation}{pause} ({number})"
        return [f"standfast: all processes are gone; {forming}"]

    def last_words(self) -> list[str]:
        """Return the line that goes with the exit status; none for 0."""
        if self.status == exits.OK:
            return []
        if self.stuck and self.restarts < self._spec.restarts:
            return [
                f"standfast: not formed again: the last {STUCK_GENERATIONS} generations made no"
                " progress (neither beats nor checkpoint changed)",
                ending(self.status, self._chapters[-1][1], used_up=False),
            ]
        return [ending(self.status, self._chapters[-1][1], used_up=self._used_up)]

    def json(self) -> str:
        """Return the final report of --json."""
        return summary(self._job_id, self.status, self._began_ns, self._chapters)
