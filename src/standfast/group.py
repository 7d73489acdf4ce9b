"""Group and init(): what users call. Operations are prepared in operations.py and run by the core.

Any thread may call; the core runs operations one at a time, in the order of the calls.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from standfast import (
    _core,
    dtypes,
    hooks,
    identity,
    joining,
    notices,
    operations,
    reforming,
    reports,
    splitting,
)
from standfast.async_forms import AsyncForms
from standfast.errors import GroupClosed, StaleGroup, StandfastError
from standfast.handles import Completions, Handle
from standfast.joining import Seat
from standfast.membership import Membership, printable
from standfast.operations import Member, Plan
from standfast.rendezvous.lineage import Lineage
from standfast.settings import Settings

TOP_NAME = "world"


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    coordinator: str | None = None,
    generation: int | None = None,
    fabric: str | None = None,
    topology: str | None = None,
    timeout_s: float | None = None,
    key: str | bytes | None = None,
    state: bytes = b"",
    **settings: Any,
) -> Group:
    """Form a group with the other ranks of this job, in any start order, and return it.

    What is not given comes from the environment: our own ``STANDFAST_...`` variables, or those of
    torchrun, MLX, MPI and Slurm. A group never silently has size 1. In a spare of ``standfast run
    --spares`` it waits first, until there is a lost rank's place, which becomes this process's.

    Args:
        rank: this process's number, from 0.
        size: number of ranks.
        coordinator: ``host:port`` at which rank 0 listens and the others knock.
        generation: number of this attempt; it grows each time a group is formed again.
        fabric: what carries data: "auto", "shm", "tcp" or "verbs" (RDMA, over the devices that the
            setting ``devices`` names: between all ranks, or in a ring).
        topology: how collectives run: "auto", "mesh" or "ring".
        timeout_s: the one deadline for forming the group, in seconds; 60 by default.
        key: pre-shared key of at least 16 bytes, by which both ends of each connection prove
            themselves.
        state: what this rank says of the state that it holds, e.g. a step number or a digest, at
            most 64 bytes; all ranks read it in ``Group.states``.
        settings: any further field of ``standfast.settings.Settings``. With ``join`` this process
            is a newcomer: it waits for the ranks at those addresses to call ``reform()``.

    Raises:
        ConfigError: arguments or environment are wrong or contradict each other.
        RendezvousError: the group could not be formed before the deadline. A FabricError if the
            reason is RDMA.
        SystemExit: with status 0, in a spare that was not needed until the end of the job.
    """
    chosen = joining.settings_of(
        {
            "fabric": fabric,
            "topology": topology,
            "init_timeout_s": timeout_s,
            "key": key,
            **settings,
        }
    )
    state = reforming.check_state(state)
    if chosen.join is not None:
        return _opened(joining.come_new(chosen, state))
    who = identity.resolve(rank=rank, size=size, coordinator=coordinator, generation=generation)
    with joining.reported(who, chosen):
        return _form(who, chosen, name="", world_rank=who.rank, state=state)


def _form(
    who: identity.Identity,
    chosen: Settings,
    *,
    name: str,
    world_rank: int,
    listener: socket.socket | None = None,
    check: Callable[[], None] | None = None,
    state: bytes = b"",
) -> Group:
    """Meet the other ranks, and become a group with them."""
    return _opened(
        joining.join(
            who,
            chosen,
            name=name,
            world_rank=world_rank,
            listener=listener,
            check=check,
            state=state,
        )
    )


def _opened(seat: Seat) -> Group:
    group = Group(seat)
    hooks.opened(group)
    return group


class Group(Membership, AsyncForms, _core.Anchor):
    """The ranks that communicate. Made by ``standfast.init()`` and ``split()``; a context manager.

    Arrays may be NumPy's (with ml_dtypes), torch's on the CPU, MLX's, JAX's, or anything with the
    buffer protocol or CPU DLPack; so may Python scalars, as 0-d arrays. Results are new arrays of
    the caller's sort, or ``out``, which must be writable, contiguous and of the result's dtype and
    shape, and is returned. Dtypes: bool, int8 to int64, uint8 to uint64, float16, bfloat16,
    float32, float64, complex64. All ranks must call the same operations in the same order, with
    the same sizes and dtypes.

    Every operation takes ``timeout_s``: after so many seconds it raises NoProgress on this rank;
    without it the group's progress limit holds. Every operation raises

    * ValueError or TypeError for mistakes in the arguments, before any byte is sent;
    * a PeerError (PeerDied, PeerLeft, RemoteFailure, ...) if a rank is lost, NoProgress,
      CollectiveMismatch, GroupAborted. The group is over then: each later call raises the same
      first cause at once;
    * GroupClosed after ``close()``, and in a child made by fork;
    * KeyboardInterrupt, or what a signal handler raises, within 0.2 s. The group is over then.

    A call that raises has no result: what ``out`` holds afterwards is undefined.

    Each has an ``_async`` form, which returns a ``Handle`` at once.
    """

    def __init__(self, seat: Seat) -> None:
        """Not for users: ``standfast.init()`` and ``split()`` make groups."""
        super().__init__(seat, f"group {seat.name or TOP_NAME}")
        self._name = seat.name
        self._me = Member(self.rank, self.size)
        if type(self)._run is Group._run:  # a class that looks at its plans needs to see them all
            self._anchor(self._core, self.rank, self.size)
        self._lineage = seat.lineage
        self._old_ranks = seat.old_ranks
        self._standby = seat.standby
        self._forms_again = False
        self._splits = 0
        self._completions: Completions | None = None
        self._handles_lock = threading.Lock()  # guards _handles; nothing else is locked under it
        self._handles: collections.deque[Handle[Any]] = collections.deque()

    # --- who and how --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``"world"``; groups made by ``split()`` have names such as ``"world/1.0"``."""
        return self._name or TOP_NAME

    @property
    def id(self) -> str:
        """12 hex digits, the same on all ranks and in all generations, and in no other group."""
        return "" if self._lineage is None else self._lineage.group

    @property
    def old_ranks(self) -> tuple[int | None, ...]:
        """The number that each had in the generation before, by rank; None for newcomers.

        All None where ``init()`` formed the group, but not for one that a newcomer joined.
        """
        return self._old_ranks

    @property
    def old_rank(self) -> int | None:
        """This process's number in the generation before, or None."""
        return self._old_ranks[self.rank] if self._old_ranks else None

    @property
    def states(self) -> tuple[bytes, ...]:
        """What each said of its state when this generation was formed, by rank."""
        return self._formation.states

    def addresses(self) -> list[str]:
        """Return ``host:port`` of each rank, where it is found when the group forms again.

        Joined by commas they are ``init(join=...)`` (STANDFAST_JOIN) of a newcomer.
        """
        if self._lineage is None:
            return []
        return [str(e) for e in reforming.addresses(self._lineage, self._who.coordinator)]

    def links(self) -> Mapping[int, str]:
        """Return what carries data to each other rank: ``{1: "shm", 2: "tcp 10.0.0.3:41234"}``.

        Over RDMA it names the devices and addresses of both ends. Ranks of a ring that no cable
        joins have tcp, and the text says why.
        """
        return dict(self._place.links)

    # --- collectives --------------------------------------------------------------------------

    @_core.shortcut
    def all_reduce(
        self, x: Any, op: str = "sum", *, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Combine x of all ranks element by element; all ranks get the same bits.

        Sums and products of float16 and bfloat16 accumulate in float32 and round once; the sum of
        bool is `or`, the product `and`; integers wrap.

        Args:
            x: array of the same shape and dtype on all ranks.
            op: "sum", "max", "min" or "prod"; complex64 has no max and min (TypeError).
            out: where to put the result; may be x itself.
            timeout_s: time limit in seconds.

        Returns:
            Array of x's shape and dtype.
        """
        return self._run(operations.all_reduce(self._me, x, op, out, timeout_s))

    @_core.shortcut
    def all_sum(self, x: Any, *, out: Any = None, timeout_s: float | None = None) -> Any:
        """Add up x of all ranks: ``all_reduce(x, "sum")``."""
        return self._run(operations.all_reduce(self._me, x, "sum", out, timeout_s))

    @_core.shortcut
    def all_max(self, x: Any, *, out: Any = None, timeout_s: float | None = None) -> Any:
        """Find the largest of all ranks, per element; NaN wins: ``all_reduce(x, "max")``."""
        return self._run(operations.all_reduce(self._me, x, "max", out, timeout_s))

    @_core.shortcut
    def all_min(self, x: Any, *, out: Any = None, timeout_s: float | None = None) -> Any:
        """Find the smallest of all ranks, per element; NaN wins: ``all_reduce(x, "min")``."""
        return self._run(operations.all_reduce(self._me, x, "min", out, timeout_s))

    @_core.shortcut
    def all_gather(self, x: Any, *, out: Any = None, timeout_s: float | None = None) -> Any:
        """Concatenate x of all ranks along axis 0, in the order of ranks, on all ranks.

        Args:
            x: array of shape (n, ...), the same on all ranks; a 0-d array counts as length 1.
            out: where to put the result; x may be this rank's own part of it.
            timeout_s: time limit in seconds.

        Returns:
            Array of shape (size * n, ...).
        """
        return self._run(operations.all_gather(self._me, x, out, timeout_s))

    @_core.shortcut
    def reduce_scatter(
        self, x: Any, op: str = "sum", *, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Combine x of all ranks as ``all_reduce``, and keep this rank's share of axis 0.

        Args:
            x: array of shape (size * n, ...); ValueError if axis 0 cannot be split evenly.
            op: "sum", "max", "min" or "prod".
            out: where to put the result; must not overlap x.
            timeout_s: time limit in seconds.

        Returns:
            Array of shape (n, ...).
        """
        return self._run(operations.reduce_scatter(self._me, x, op, out, timeout_s))

    @_core.shortcut
    def sum_scatter(self, x: Any, *, out: Any = None, timeout_s: float | None = None) -> Any:
        """Add up x of all ranks and keep this rank's share: ``reduce_scatter(x, "sum")``."""
        return self._run(operations.reduce_scatter(self._me, x, "sum", out, timeout_s))

    @_core.shortcut
    def broadcast(
        self, x: Any, root: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Give every rank the root's x.

        Args:
            x: array of the same shape and dtype on all ranks; only the root's contents count.
            root: the rank that sends.
            out: where to put the result; may be x itself.
            timeout_s: time limit in seconds.

        Returns:
            Array of x's shape and dtype; at the root a copy of x.
        """
        return self._run(operations.broadcast(self._me, x, root, out, timeout_s))

    @_core.shortcut
    def all_to_all(self, x: Any, *, out: Any = None, timeout_s: float | None = None) -> Any:
        """Send the i-th share of axis 0 to rank i; get one share from each rank, in their order.

        Args:
            x: array of shape (size * n, ...); ValueError if axis 0 cannot be split evenly.
            out: where to put the result; must not overlap x.
            timeout_s: time limit in seconds.

        Returns:
            Array of x's shape and dtype.
        """
        return self._run(operations.all_to_all(self._me, x, out, timeout_s))

    def gather(
        self, x: Any, root: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Concatenate x of all ranks along axis 0, at the root only.

        Args:
            x: array of shape (n, ...), the same on all ranks, a 0-d array counting as length 1;
                or bytes, bytearray or a memoryview of bytes, whose lengths may differ.
            root: the rank that receives.
            out: where the root puts the result; not for bytes.
            timeout_s: time limit in seconds.

        Returns:
            At the root an array of shape (size * n, ...), or a list of bytes, one per rank;
            elsewhere None.
        """
        return self._run(operations.gather(self._me, x, root, out, timeout_s))

    def scatter(
        self, x: Any = None, root: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Give rank i the i-th share of axis 0 of the root's x.

        Args:
            x: at the root an array of shape (size * n, ...); ignored elsewhere. What is wrong with
                it is a ValueError on all ranks.
            root: the rank that sends.
            out: where to put the result; must not overlap x.
            timeout_s: time limit in seconds.

        Returns:
            Array of shape (n, ...), of the root's dtype, and of its sort where this rank has
            loaded the same library.
        """
        return self._run(operations.scatter(self._me, x, root, out, timeout_s))

    # --- between two ranks --------------------------------------------------------------------

    @_core.shortcut
    def send(self, x: Any, dst: int, tag: int = 0, *, timeout_s: float | None = None) -> None:
        """Send an array, or bytes, to one rank, which must call ``recv``.

        Args:
            x: array of any shape; bytes count as uint8.
            dst: the rank to send to; ValueError if it is this rank itself.
            tag: must equal the recv's, from 0 to 2**31 - 1.
            timeout_s: time limit in seconds.

        Raises:
            MessageMismatch: the recv expects another tag, dtype or size.
        """
        self._run(operations.send(self._me, x, dst, tag, timeout_s))

    @_core.shortcut
    def recv(
        self,
        shape: int | Sequence[int] | None,
        dtype: Any,
        src: int,
        tag: int = 0,
        *,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Receive an array, or bytes, from one rank, in the order in which it sent them.

        Args:
            shape: extents of the array. For bytes: their number, or None for any number.
            dtype: a dtype of NumPy, torch or MLX, which also decides the sort of the result; a
                name such as "float32"; or ``bytes``.
            src: the rank that sends; ValueError if it is this rank itself.
            tag: must equal the send's.
            out: where to put the result.
            timeout_s: time limit in seconds.

        Raises:
            MessageMismatch: the send has another tag, dtype or size.
        """
        return self._run(operations.recv(self._me, shape, dtype, src, tag, out, timeout_s))

    @_core.shortcut
    def recv_like(
        self, x: Any, src: int, tag: int = 0, *, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Receive an array of x's sort, shape and dtype; x itself stays as it is."""
        return self._run(operations.recv_like(self._me, x, src, tag, out, timeout_s))

    # --- together -----------------------------------------------------------------------------

    @_core.shortcut
    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return once all ranks have called it."""
        self._run(operations.barrier(self._me, timeout_s))

    @_core.shortcut
    def agree(self, flag: bool, *, timeout_s: float | None = None) -> bool:
        """Return True on all ranks if all ranks passed True, or else False on all ranks."""
        return bool(self._run(operations.agree(self._me, flag, timeout_s)))

    def split(
        self, color: int | None, key: int = -1, *, timeout_s: float | None = None
    ) -> Group | None:
        """Form a group of those ranks that pass the same color. All ranks must call it.

        Args:
            color: ranks of one color form a group; None or a negative one: no group for this rank.
            key: ranks are ordered by it, then by their rank here.
            timeout_s: time limit in seconds for each of the two exchanges over this group, and
                for meeting in the new one; without it the limits of operations and of ``init()``.

        Returns:
            The new group, which has this one's settings and must be closed by itself; or None.

        Raises:
            RendezvousError: the new group could not be formed before the deadline.
        """
        color, key = splitting.check(color, key)
        with self._lock:
            self._splits += 1
            number = self._splits
        team = splitting.exchange(self, self._formation.peers, color, key, timeout_s)
        if team is None:
            return None
        settings = team.settings(self._settings)
        if timeout_s is not None:
            settings = dataclasses.replace(settings, init_timeout_s=timeout_s)
        with team:
            return _form(
                team.identity(self._who),
                settings,
                name=f"{self.name}/{number}.{color}",
                world_rank=self._world_rank,
                listener=team.listener,
                check=self._raise_failure,
            )

    # --- again --------------------------------------------------------------------------------

    def reform(
        self,
        *,
        min_size: int | None = None,
        max_size: int | None = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        state: bytes = b"",
    ) -> Group:
        """Form the group again with those who are left, in this process, and return the new one.

        To be called by every survivor after an error that ended the group. It is closed by that;
        calls on it raise StaleGroup from then on. Ranks are numbered anew in their old order
        (rank 0 is the lowest that came without delay), newcomers behind them. No rank returns
        before all are there, in the same generation.

        A rank whose process is gone is not waited for; one that is alive, until it calls this, but
        no longer than for three quarters of timeout_s. A rank that froze, or that the network has
        lost, is not waited for: if it comes too late, it gets StaleGroup.

        All ranks should pass the same sizes and times: those of the new rank 0 count.

        Args:
            min_size: how many ranks it takes, newcomers too. Without it more than half of the old
                ranks must come, so that a cut network can't leave two groups behind.
            max_size: how many it takes at most: as many as the group had at first. Survivors are
                always taken.
            wait_s: how long to wait for newcomers if there are fewer than max_size.
            timeout_s: the one deadline for all, in seconds; wait_s + the setting init_timeout_s.
            state: as in ``init()``: what this rank still holds; see ``states``.

        Raises:
            RendezvousError: not enough ranks came before the deadline; ``missing`` has the others.
            StaleGroup: the others went on without this rank.
            GroupClosed: it was closed, or formed again by another thread; in a forked child.
        """
        known = self._lineage
        if known is None:
            raise self._closed_error()
        wish = reforming.wish_of(min_size, max_size, wait_s, known)
        state = reforming.check_state(state)
        if timeout_s is None:
            timeout_s = wish.wait_s + self._settings.init_timeout_s
        past = self._give_up(known)
        try:
            seat = joining.rejoin(past, wish, timeout_s, state, self._world_rank)
        except BaseException:
            if past.standby is not None:
                past.standby.close()
            raise
        self._over = self._stale_error(seat.who.generation)
        joining.tell_ready(self._settings.report_dir, self._world_rank, seat.who)
        return _opened(seat)

    def _give_up(self, known: Lineage) -> reforming.Past:
        """Close this generation, but keep the port at which this rank is found."""
        with self._lock:
            if self._closed or self._forms_again or self._is_a_child():
                raise copy.copy(self._over) if self._over else self._closed_error()
            self._forms_again = True
            standby, self._standby = self._standby, None
        cause = self.last_failure()
        self.told()
        directory = self._settings.report_dir
        if directory is not None:
            own = reforming.addresses(known, self._who.coordinator, [known.me])
            slot, generation = self._world_rank, self.generation
            reports.write_reforming(directory, slot, generation, self.addresses())
            notices.tell(directory, "reform", slot, generation, address=",".join(map(str, own)))
        self.end("orderly")
        return reforming.Past(known, self._who, self._settings, self._name, standby, cause)

    def _stale_error(self, generation: int) -> StaleGroup:
        return StaleGroup(
            f"generation {self.generation} of the group {self.name} is over: this process is in "
            f"generation {generation}",
            hint="use the group that reform() returned",
            here=self.rank,
            generation=self.generation,
        )

    # --- the end ------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the group on all ranks: every call, under way or later, raises GroupAborted.

        Args:
            reason: for the error's message and its ``cause``.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason is a {type(reason).__name__}; it must be a text")
        if self._over is None:
            self._core.abort(printable(reason))

    def _leave(self) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group in good order: wait for what was submitted, say goodbye, free all.

        Calling it again does nothing.

        Raises:
            StandfastError: an ``_async`` operation had failed and nobody has asked its handle;
                the group is closed all the same. Each further call raises it, too.
        """
        try:
            self._wait_for_handles()
        except BaseException:
            self.end("interrupted")
            raise
        self.end("orderly")
        if self._cause is not None and not self._was_told:
            raise copy.copy(self._cause)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self.healthy() else "failed"
        return f"<standfast.Group {self.name}: rank {self.rank} of {self.size}, {state}>"

    # --- for hooks.py and handles.py ----------------------------------------------------------

    @property
    def completions(self) -> Completions:
        """The descriptor by which asyncio waits; made when first needed."""
        with self._lock:
            if self._completions is None:
                core = self._core
                self._completions = Completions(core.completion_fd(), core.drain_completions)
            return self._completions

    def left_behind(self) -> StandfastError | None:
        """Return what a handle raises in a forked child, or None in the process that joined."""
        return self._closed_error() if self._is_a_child() else None

    def end(self, how: str) -> str:
        """Close without waiting for handles: see ``Membership.end``."""
        ended = super().end(how)
        if self._completions is not None and os.getpid() == self._pid:
            self._completions.close()
        with self._lock:
            standby, self._standby = self._standby, None
        if standby is not None and not self._is_a_child():
            standby.close()
        return ended

    def fault(self, failure: _core.Failure, plan: Plan | None = None) -> StandfastError:
        """Return the group's first cause, made from this failure if it is the first."""
        if plan is None:
            return self.first_cause(failure)
        return self.first_cause(failure, plan.name, plan.describe())

    def _raise_failure(self) -> None:
        """Raise what ended the group, if anything did."""
        failure = self._core.failure()
        if failure is not None:
            raise self._told(self.fault(failure))

    # --- for native code of others (standfast.mlx) --------------------------------------------

    def native(self) -> object:
        """Return a capsule by which native code runs operations: include/standfast/native.h.

        Raises:
            StandfastError: the group is closed or over.
        """
        if self._over is not None:
            raise copy.copy(self._over)
        return self._core.native(self.rank, self.size)

    def ended_by(self, failure: _core.Failure, name: str, what: str) -> StandfastError:
        """Return what to raise for an operation that such code has run: the first cause.

        Args:
            failure: what the operation returned.
            name: the operation.
            what: its array, e.g. ``"float32[1024]"``.
        """
        error = self._over
        return self._told(copy.copy(error) if error else self.first_cause(failure, name, what))

    # --- running ------------------------------------------------------------------------------

    def _run(self, plan: Plan) -> Any:
        if self._over is not None:
            raise copy.copy(self._over)
        try:
            answer = (self._core.run_blob if plan.blob else self._core.run)(plan.request)
        except BaseException:
            self._cut_short(plan.name)
            raise
        if answer is None or isinstance(answer, memoryview):
            return plan.deliver(answer)
        raise self._told(self.fault(answer, plan))

    def _stopped(
        self, failure: _core.Failure, name: str, dtype: int | None, shape: tuple[int, ...] | None
    ) -> NoReturn:
        """Raise what a shortcut met; dtype and shape of the operation's array, if it has one."""
        what = "" if dtype is None or shape is None else dtypes.shape_text(dtype, shape)
        raise self._told(self.first_cause(failure, name, what))

    def _cut_short(self, name: str) -> None:
        """Note that a signal handler's exception has cut an operation short: nobody can go on."""
        with self._lock:
            if self._over is None:
                self._over = GroupClosed(
                    f"the group {self.name} is over: {name} was interrupted by a signal",
                    hint="form a new group with standfast.init()",
                    here=self.rank,
                    generation=self.generation,
                )

    def _told(self, error: StandfastError) -> StandfastError:
        self.told()
        return error

    def _submit(self, plan: Plan) -> Handle[Any]:
        if self._over is not None:
            raise copy.copy(self._over)
        with self._handles_lock:  # the core takes a place in the queue and enters it in two steps
            handle: Handle[Any] = Handle(self, self._core.submit(plan.request), plan)
            while self._handles and self._handles[0].ended_well():
                self._handles.popleft()
            self._handles.append(handle)
        return handle

    def settled(self, handle: Handle[Any]) -> None:
        """Let go of a handle: its memory is its own again."""
        with self._handles_lock:
            if handle in self._handles:
                self._handles.remove(handle)

    def _wait_for_handles(self) -> None:
        """Wait for what was submitted; a failed operation fails the group, which fault() notes."""
        with self._handles_lock:
            handles = list(self._handles)
        for handle in handles:
            handle.finish()
