"""What a job's generations add up to: the next step, the words for the user, the exit status.

Pure. Imported once the first generation is over, so that it costs the start of the ranks nothing.
"""

from __future__ import annotations

from standfast import exits
from standfast.launch.block import block, ending
from standfast.launch.classify import classify
from standfast.launch.policy import STUCK_GENERATIONS, Budget
from standfast.launch.records import StopReason
from standfast.launch.spec import JobSpec
from standfast.launch.status import exit_status, may_retry
from standfast.launch.summary import summary
from standfast.launch.verdicts import GenerationRecord, Verdict


class Story:
    """The generations of a job that are over."""

    def __init__(self, spec: JobSpec, job_id: str, began_ns: int, budget: Budget) -> None:
        self._spec = spec
        self._budget = budget
        self._job_id = job_id
        self._began_ns = began_ns
        self._chapters: list[tuple[GenerationRecord, Verdict]] = []

    def add(self, record: GenerationRecord) -> list[str]:
        """Judge a generation that is over; return the block about it, empty if all went well."""
        verdict = classify(record.ends, record.reports, record.stops[0] if record.stops else None)
        self._chapters.append((record, verdict))
        self._budget.lost(record.mark, formed=record.formed)
        return [] if verdict.reason is None else block(record, verdict)

    @property
    def restarts(self) -> int:
        """How many restarts were used."""
        return self._budget.used

    @property
    def again(self) -> bool:
        """Whether the group is to be formed again: nobody wanted the end, and nothing is left."""
        record, verdict = self._chapters[-1]
        return (
            may_retry(verdict)
            and self._budget.left
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
        return self._budget.stuck

    @property
    def pause_s(self) -> float:
        """How long to wait before the next generation."""
        return self._budget.pause_s

    @property
    def hurried(self) -> bool:
        """Whether somebody wanted the end of the last generation."""
        return any(stop.reason is not StopReason.FAILURE for stop in self._chapters[-1][0].stops)

    @property
    def status(self) -> int:
        """The exit status, if this is the end."""
        return exit_status(self._chapters[-1][1], used_up=self._budget.used_up)

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
        if self.stuck and self._budget.left:
            return [
                f"standfast: not formed again: the last {STUCK_GENERATIONS} generations made no"
                " progress (neither beats nor checkpoint changed)",
                ending(self.status, self._chapters[-1][1], used_up=False),
            ]
        return [ending(self.status, self._chapters[-1][1], used_up=self._budget.used_up)]

    def json(self) -> str:
        """Return the final report of --json."""
        return summary(self._job_id, self.status, self._began_ns, self._chapters, self.restarts)
