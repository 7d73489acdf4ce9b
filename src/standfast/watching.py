"""watch() and Watch: the watch alone, for ranks that communicate by other means.

A core without wires: control links, the native watch thread, and the verdict. Any thread may call.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from standfast import hooks, identity, joining
from standfast.errors import ConfigError, RendezvousError, StandfastError
from standfast.joining import Seat
from standfast.membership import Membership, printable
from standfast.notices import Beats

OnFault = Literal["raise", "exit"] | Callable[[StandfastError], object]

WAYS = {"done": "orderly", "orderly": "orderly", "interrupted": "interrupted", "failed": "failed"}
# An exception of the program is often the consequence of a death that is told a moment later.
REASON_S = 0.3
# Output that is still buffered gets this long when the process is ended.
FLUSH_S = 0.2
STEP_MAX = 2**64 - 1


def watch(
    rank: int | None = None,
    size: int | None = None,
    coordinator: str | None = None,
    key: str | bytes | None = None,
    on_fault: OnFault = "raise",
    *,
    generation: int | None = None,
    **settings: Any,
) -> Watch:
    """Watch over ranks that communicate by other means: MLX's ring, Gloo, NCCL, MPI, a program.

    All ranks must call it, and get what they give no argument for as in ``init()``. It carries no
    data: a peer that dies, leaves by an exception, freezes or cannot be reached is told to all, and
    this rank gets a bounded end although it waits in a library that knows no limit.

    Args:
        rank: this process's number, from 0.
        size: number of ranks.
        coordinator: ``host:port`` at which rank 0 listens; other than that of the library that
            carries the data, and than that of ``init()`` if both are used at the same time.
        key: pre-shared key of at least 16 bytes.
        on_fault: what happens besides abort hooks and listeners.
            "raise": ``check()`` raises it. If it is not called, or the process is stuck, the
            process is ended with status 75, exit_grace_s + 2 s after the fault.
            "exit": the process is ended with status 75, whatever ``check()`` has raised: at once if
            there is no abort hook, else after exit_grace_s, which are the program's to end by
            itself; by the native thread 2 s later if the interpreter is stuck.
            A callable: called with the error in a thread of this object's; the program decides
            then, as if ``check()`` had raised it.
        generation: number of this attempt; it grows each time the ranks are started again.
        settings: any further field of ``standfast.settings.Settings``. exit_on_fault is True here
            unless it is given or set.

    Raises:
        ConfigError: arguments or environment are wrong or contradict each other.
        RendezvousError: not all ranks came before the deadline; the watch could not start.
    """
    if not callable(on_fault) and on_fault not in ("raise", "exit"):
        raise ConfigError(f"on_fault={on_fault!r} is not 'raise', 'exit' or a callable")
    if on_fault == "exit":
        if settings.get("exit_on_fault") is False:
            raise ConfigError("on_fault='exit' and exit_on_fault=False contradict each other")
        settings["exit_on_fault"] = True
    chosen = joining.settings_of({"key": key, **settings}, {"exit_on_fault": True})
    who = identity.resolve(rank=rank, size=size, coordinator=coordinator, generation=generation)
    with joining.reported(who, chosen):
        seat = joining.join(who, chosen, name="", world_rank=who.rank, wires=False)
        return _watch_from(seat, on_fault)


def _watch_from(seat: Seat, on_fault: OnFault) -> Watch:
    made = Watch(seat, on_fault)
    hooks.opened(made)
    try:
        made.begin()
    except RuntimeError as error:
        made.end("failed")
        raise RendezvousError(
            f"rank {made.rank} met all ranks, but could not start its watch: {error}",
            here=made.rank,
            generation=made.generation,
        ) from error
    return made


class Watch(Membership):
    """The watch over ranks that communicate by other means. Made by ``standfast.watch()``.

    A context manager: leaving it well is ``end("done")``, an exception is told to the peers.
    """

    _again = "call standfast.watch() again"

    def __init__(self, seat: Seat, on_fault: OnFault) -> None:
        """Not for users: ``standfast.watch()`` makes it."""
        super().__init__(seat, "watch")
        self._on_fault = on_fault
        self._beats = Beats(seat.settings.report_dir, self.rank, self.generation)

    def begin(self) -> None:
        """Start what on_fault needs. RuntimeError if no thread can be had."""
        if self._on_fault == "exit":
            self._herald.when_over(self._end_process)
        elif callable(self._on_fault):
            self._herald.when_over(self._hand_over)

    # --- what the program says and asks -------------------------------------------------------

    def beat(self, label: str, step: int) -> None:
        """Tell of progress, so that a rank which is alive but stuck is seen, too.

        Once a rank has done so, it is expected to: a rank that beats no more is told as a hint
        within hint_s, and ends the watch as PeerStalled after progress_s; see ``idle()``. Costs
        about as much as a function call.

        Args:
            label: what is done, e.g. "decode"; shown in messages.
            step: a number that grows.
        """
        if not isinstance(label, str):
            raise TypeError(f"label is a {type(label).__name__}; it must be a text")
        if not 0 <= step <= STEP_MAX:
            raise ValueError(f"step is {step}; it must be from 0 to 2**64 - 1")
        if not self._closed:
            self._core.beat(printable(label), step)
            self._beats.beat(step)

    def idle(self) -> None:
        """Tell that there is nothing to do: no progress is expected until the next ``beat()``."""
        if not self._closed:
            self._core.idle()

    def check(self) -> None:
        """Raise the verdict if there is one; cheap enough for every step.

        Raises:
            PeerError, GroupAborted, ...: what ended the watch; the same each time.
            GroupClosed: after ``end()``, and in a child made by fork.
        """
        usable = not self._closed and not self._is_a_child()
        if usable and self._core.healthy():
            return
        failure = self._core.failure() if usable else None
        if failure is None and self._cause is None:
            raise self._closed_error()
        error = self.first_cause(failure) if failure is not None else self.last_failure()
        assert error is not None
        if self._on_fault != "exit":
            self.told()
        raise error

    def end(self, how: str = "done") -> str:
        """Stop watching, and say goodbye if all is well. A second call changes nothing.

        Args:
            how: "done"; "interrupted", which ends the watch of all; or "failed", without a goodbye.

        Returns:
            "orderly"; "failed" (an error with every peer up); or "peer_fault" (a peer is gone).
        """
        if how not in WAYS:
            raise ValueError(f"how is {how!r}; it must be one of {', '.join(WAYS)}")
        return super().end(WAYS[how])

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self.healthy() else "failed"
        return f"<standfast.Watch: rank {self.rank} of {self.size}, {state}>"

    def reform(self, **wish: object) -> None:
        """Say that a watch cannot do what ``Group.reform()`` does.

        Its ranks have no data ports, at which they would find each other again; and whatever
        carries the data in place of standfast has lost its connections, too.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"rank {self.rank}: a watch cannot form again in process: its ranks have no port at "
            "which they would find each other, and the library that carries the data would have "
            "to form again as well",
            hint="end with status 75 and let the launcher start all ranks again (standfast run "
            "--restarts), or use standfast.init() and Group.reform()",
        )

    # --- how the program ends -----------------------------------------------------------------

    def report_failure(self, error: BaseException) -> None:
        """Tell the peers that this rank's program raised, unless a fault of a peer came first.

        What a library raises because its peer is gone comes a moment before the watch knows why.
        """
        if not isinstance(error, StandfastError):
            self._await_verdict(REASON_S)
        cause = self.explanation()
        if cause is not None:
            hooks.explain(error, cause)
        super().report_failure(error)

    def explanation(self) -> StandfastError | None:
        """Return the fault that has most likely made the program raise, if it has not seen it."""
        return None if self._was_told else self._cause

    def _await_verdict(self, limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        seen = 0
        while not self._closed and self._cause is None:
            failure = self._core.failure()
            if failure is not None:
                self.first_cause(failure)
                return
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            seen = self._core.await_news(seen, left_s)

    def _registered(self, error: StandfastError) -> StandfastError:
        failure = self._core.failure()
        return error if failure is None else self.first_cause(failure)

    def _hand_over(self, error: StandfastError) -> None:
        assert callable(self._on_fault)
        error = self._registered(error)
        self.told()
        self._on_fault(error)

    def _end_process(self, error: StandfastError) -> None:
        """End the process; the native thread does it where this one does not get to run."""
        fault_s = time.monotonic()
        error = self._registered(error)
        text = f"standfast: rank {self.rank} ends with status {error.exit_code}: {error}\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
        grace_s = self._settings.exit_grace_s
        if self._herald.wait_for_hooks(grace_s):
            time.sleep(max(0.0, fault_s + grace_s - time.monotonic()))
        if self._closed:
            return  # the program has ended the watch in time, and so decides
        flusher = threading.Thread(target=_flush, daemon=True)
        flusher.start()
        flusher.join(FLUSH_S)
        os._exit(error.exit_code)


def _flush() -> None:
    """Write out what the program has printed; whoever reads it may stand still."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
