"""torch's collectives on a standfast group. Names, arguments and results are torch's.

Tensors may be non-contiguous, of any dtype that the core has; what only moves may be of any dtype.
Every method returns a Work: a finished one where the options say ``asyncOp = False``, as torch's
own functions do by default. Mistakes in the arguments are ValueErrors and TypeErrors here, before
any byte is sent. What the core raises arrives as a DistBackendError that is the core's class, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from standfast import operations
from standfast.errors import NoProgress, PeerStalled, StandfastError
from standfast.operations import Plan
from standfast.torch import sparse, tensors
from standfast.torch.errors import as_torch_error, torch_errors
from standfast.torch.reductions import Reduction, reduction
from standfast.torch.running import Finish, Runner, Step
from standfast.torch.tensors import Tensor
from standfast.torch.works import Work

C10D = torch._C._distributed_c10d


class Collectives(Runner):
    """Operations in which all ranks of the group take part."""

    # --- reductions ---------------------------------------------------------------------------

    def allreduce(self, tensors_: Any, opts: Any = None, **more: Any) -> Work:
        """Combine a tensor of all ranks element by element, in place.

        Args:
            tensors_: the tensor, or a list of it; the same shape and dtype on all ranks. A sparse
                one takes SUM or AVG.
            opts: AllreduceOptions, or a ReduceOp.
            more: fields of the options, such as ``op`` and ``timeout``.
        """
        opts = _options(C10D.AllreduceOptions, opts, more)
        given = _only(tensors_, "all_reduce")
        if isinstance(given, torch.Tensor) and given.is_sparse:
            return self._sparse_sum(given, opts)
        tensor = tensors.check(given, "all_reduce")
        self._sequence += 1
        into, back = tensors.target(tensor)
        source = into if back is None else tensors.flat(tensor)
        step = self._reduced(source, into, opts, "all_reduce")
        return self._run([_then(step, back)], [given], opts)

    def _reduced(self, source: Tensor, into: Tensor, opts: Any, what: str) -> Step:
        """Combine flat tensors of all ranks into another, or into themselves."""
        by = reduction(opts.reduceOp, source.dtype, what)
        limit_s, me = self._timeout_s(opts), self._me
        if not by.core:
            rows = torch.empty(me.size * source.numel(), dtype=source.dtype)
            plan = operations.all_gather(me, source, rows, limit_s)
            return Step(plan, lambda: _combine(by, rows.view(me.size, -1), into))
        source, result = tensors.numbers(source), tensors.numbers(into)
        if source.data_ptr() == result.data_ptr():
            source = result
        plan = operations.all_reduce(me, source, by.core, result, limit_s, what)
        return Step(plan, lambda: by.finish(into, me.size))

    def allreduce_coalesced(self, tensors_: Any, opts: Any = None) -> Work:
        """Combine several tensors as allreduce() does: all of one dtype in one go."""
        opts = _options(C10D.AllreduceCoalescedOptions, opts, {})
        self._sequence += 1
        steps = []
        for alike in _by_dtype(tensors_, "allreduce_coalesced"):
            whole = tensors.joined(alike)
            step = self._reduced(whole, whole, opts, "all_reduce")
            steps.append(_then(step, _spreader(whole, alike)))
        return self._run(steps, tensors_, opts)

    def reduce(self, tensors_: Any, opts: Any = None, **more: Any) -> Work:
        """Combine a tensor of all ranks at the root; elsewhere it stays as it is.

        Args:
            tensors_: the tensor, or a list of it.
            opts: ReduceOptions, with ``rootRank``.
            more: fields of the options.
        """
        opts = _options(C10D.ReduceOptions, opts, more)
        given = _only(tensors_, "reduce")
        tensor = tensors.check(given, "reduce")
        self._sequence += 1
        source = tensors.flat(tensor)
        into = torch.empty_like(source)
        back: Finish | None = None
        if opts.rootRank == self._me.rank:
            back = _copier(tensor, into)
        step = self._reduced(source, into, opts, "reduce")
        return self._run([_then(step, back)], [given], opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Combine lists of tensors of all ranks; rank i gets the i-th.

        Args:
            outputs: a tensor, or a list of it.
            inputs: a list of as many tensors as there are ranks, or a list of that list. They may
                differ in size, in the same way on all ranks.
            opts: ReduceScatterOptions.
        """
        opts = _options(C10D.ReduceScatterOptions, opts, {})
        given = _only(outputs, "reduce_scatter")
        into = tensors.check(given, "reduce_scatter")
        parts = self._one_each(inputs, "reduce_scatter")
        tensors.same([into], "reduce_scatter", parts[self._me.rank])
        self._sequence += 1
        whole = tensors.joined(parts)
        if all(part.numel() == into.numel() for part in parts):
            step = self._scattered(into, whole, opts, "reduce_scatter")
        else:
            own = whole.split([part.numel() for part in parts])[self._me.rank]
            step = self._reduced(whole, whole, opts, "reduce_scatter")
            step = _then(step, _copier(into, own))
        return self._run([step], [given], opts)

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> Work:
        """Combine a tensor of all ranks; rank i gets the i-th of its equal parts.

        Args:
            output: tensor of n elements.
            source: tensor of size * n elements, of the same dtype.
            opts: ReduceScatterOptions.
        """
        opts = _options(C10D.ReduceScatterOptions, opts, {})
        self._sequence += 1
        return self._run([self._single_scattered(output, source, opts)], [output], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Work:
        """Do reduce_scatter_single() for several tensors."""
        opts = _options(C10D.ReduceScatterOptions, opts, {})
        self._sequence += 1
        pairs = zip(outputs, inputs, strict=True)
        steps = [self._single_scattered(into, source, opts) for into, source in pairs]
        return self._run(steps, outputs, opts)

    def _single_scattered(self, output: Any, source: Any, opts: Any) -> Step:
        what = "reduce_scatter_tensor"
        into, whole = tensors.check(output, what), tensors.check(source, what)
        self._check_sizes(small=into, large=whole, what=what)
        return self._scattered(into, tensors.flat(whole), opts, what)

    def _scattered(self, into: Tensor, whole: Tensor, opts: Any, what: str) -> Step:
        by = reduction(opts.reduceOp, whole.dtype, what)
        limit_s, me = self._timeout_s(opts), self._me
        if not by.core:
            rows = torch.empty_like(whole)
            plan = operations.all_to_all(me, whole, rows, limit_s)
            return Step(plan, lambda: _combine(by, rows.view(me.size, -1), into))
        result, back = tensors.apart(into, whole)
        numbers = tensors.numbers(result)
        plan = operations.reduce_scatter(me, tensors.numbers(whole), by.core, numbers, limit_s)
        return _then(Step(plan, lambda: by.finish(result, me.size)), back)

    def _sparse_sum(self, tensor: Tensor, opts: Any) -> Work:
        """Add up sparse tensors: their elements are gathered, since each rank has others."""
        by = reduction(opts.reduceOp, tensor.dtype, "all_reduce")
        if by.core != "sum":
            raise ValueError(f"all_reduce of a sparse tensor with {by.kind.name}: it takes SUM")
        self._sequence += 1
        with torch_errors(self._global_ranks):
            total = sparse.total(self._group, tensor, self._timeout_s(opts))
        by.finish(total, self._me.size)
        with torch.no_grad():
            tensor.copy_(total)
        return self._run([], [tensor], opts)

    # --- moving -------------------------------------------------------------------------------

    def broadcast(self, tensors_: Any, opts: Any = None, root: int | None = None) -> Work:
        """Give every rank the root's tensor, in place.

        Args:
            tensors_: the tensor, or a list of it.
            opts: BroadcastOptions, with ``rootRank``; or the root.
            root: the rank that sends.
        """
        if isinstance(opts, int):
            opts, root = None, opts
        more = {} if root is None else {"rootRank": root}
        opts = _options(C10D.BroadcastOptions, opts, more)
        given = _only(tensors_, "broadcast")
        tensor = tensors.check(given, "broadcast")
        self._sequence += 1
        into, back = tensors.target(tensor)
        if back is not None and opts.rootRank == self._me.rank:
            into, back = tensors.flat(tensor), None
        wire = tensors.freight(into)
        plan = operations.broadcast(self._me, wire, opts.rootRank, wire, self._timeout_s(opts))
        return self._run([Step(plan, back)], [given], opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Give every rank the tensors of all.

        Args:
            outputs: a list of as many tensors as there are ranks, or a list of that list.
            inputs: a tensor of the same size and dtype, or a list of it.
            opts: AllgatherOptions.
        """
        opts = _options(C10D.AllgatherOptions, opts, {})
        self._sequence += 1
        given = outputs[0] if _is_nested(outputs) else outputs
        step = self._gathered(given, _only(inputs, "all_gather"), opts)
        return self._run([step], given, opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> Work:
        """Do allgather() for several tensors: ``output_lists[rank][i]`` gets rank's i-th input."""
        opts = _options(C10D.AllgatherOptions, opts, {})
        self._sequence += 1
        columns = list(zip(*output_lists, strict=True))
        pairs = zip(columns, inputs, strict=True)
        steps = [self._gathered(column, source, opts) for column, source in pairs]
        return self._run(steps, [each for row in output_lists for each in row], opts)

    def _gathered(self, outputs: Any, source: Any, opts: Any) -> Step:
        tensor = tensors.check(source, "all_gather")
        parts = self._one_each(outputs, "all_gather")
        tensors.same(parts, "all_gather", tensor)
        whole = torch.empty(self._me.size * tensor.numel(), dtype=tensor.dtype)
        plan = self._gather_plan(tensors.flat(tensor), whole, opts)
        return Step(plan, _spreader(whole, parts))

    def _gather_plan(self, source: Tensor, whole: Tensor, opts: Any) -> Plan:
        source, whole = tensors.freight(source), tensors.freight(whole)
        return operations.all_gather(self._me, source, whole, self._timeout_s(opts))

    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> Work:
        """Give every rank the tensors of all, one after the other in one tensor.

        Args:
            output: tensor of size * n elements; may contain this rank's input at its own place.
            source: tensor of n elements, of the same dtype.
            opts: AllgatherOptions.
        """
        opts = _options(C10D.AllgatherOptions, opts, {})
        self._sequence += 1
        return self._run([self._single_gathered(output, source, opts)], [output], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Work:
        """Do all_gather_single() for several tensors."""
        opts = _options(C10D.AllgatherOptions, opts, {})
        self._sequence += 1
        pairs = zip(outputs, inputs, strict=True)
        steps = [self._single_gathered(into, source, opts) for into, source in pairs]
        return self._run(steps, outputs, opts)

    def _single_gathered(self, output: Any, source: Any, opts: Any) -> Step:
        what = "all_gather_into_tensor"
        into, part = tensors.check(output, what), tensors.check(source, what)
        self._check_sizes(small=part, large=into, what=what)
        whole, back = tensors.target(into)
        return Step(self._gather_plan(tensors.flat(part), whole, opts), back)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> Work:
        """Give the root the tensors of all.

        Args:
            outputs: at the root a list of a list of as many tensors as there are ranks; elsewhere
                an empty one.
            inputs: a tensor, or a list of it.
            opts: GatherOptions, with ``rootRank``.
            more: fields of the options.
        """
        opts = _options(C10D.GatherOptions, opts, more)
        tensor = tensors.check(_only(inputs, "gather"), "gather")
        self._sequence += 1
        whole, back, given = None, None, []
        if opts.rootRank == self._me.rank:
            given = outputs[0] if _is_nested(outputs) else outputs
            parts = self._one_each(given, "gather")
            tensors.same(parts, "gather", tensor)
            made = torch.empty(self._me.size * tensor.numel(), dtype=tensor.dtype)
            whole, back = tensors.freight(made), _spreader(made, parts)
        source = tensors.freight(tensors.flat(tensor))
        limit_s = self._timeout_s(opts)
        plan = operations.gather(self._me, source, opts.rootRank, whole, limit_s)
        return self._run([Step(plan, back)], given, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> Work:
        """Give each rank one of the root's tensors.

        Args:
            outputs: a tensor, or a list of it.
            inputs: at the root a list of a list of as many tensors as there are ranks; elsewhere
                an empty one.
            opts: ScatterOptions, with ``rootRank``.
            more: fields of the options.
        """
        opts = _options(C10D.ScatterOptions, opts, more)
        given = _only(outputs, "scatter")
        tensor = tensors.check(given, "scatter")
        self._sequence += 1
        into, back = tensors.target(tensor)
        whole = None
        if opts.rootRank == self._me.rank:
            parts = self._one_each(inputs[0] if _is_nested(inputs) else inputs, "scatter")
            tensors.same(parts, "scatter", tensor)
            whole = tensors.freight(tensors.joined(parts))
        wire, limit_s = tensors.freight(into), self._timeout_s(opts)
        plan = operations.scatter(self._me, whole, opts.rootRank, wire, limit_s)
        return self._run([Step(plan, back)], [given], opts)

    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Work:
        """Send the i-th tensor to rank i; get one from each rank, in their order.

        Args:
            outputs: one tensor per rank, of the size that it sends here.
            inputs: one tensor per rank; they may differ in size.
            opts: AllToAllOptions.
        """
        opts = _options(C10D.AllToAllOptions, opts, {})
        into = self._one_each(outputs, "all_to_all")
        source = self._one_each(inputs, "all_to_all")
        self._sequence += 1
        return self._run(self._exchanged(into, source, opts), outputs, opts, beside=True)

    def all_to_all_single(
        self,
        output: Any,
        source: Any,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        """Send the i-th part of axis 0 to rank i; get one from each rank, in their order.

        Args:
            output: tensor for what comes.
            source: tensor of what is sent, of the same dtype.
            output_splits: by rank, how much of axis 0 comes from it; empty or None: equal parts.
            input_splits: by rank, how much of axis 0 it is sent.
            opts: AllToAllOptions.
        """
        opts = _options(C10D.AllToAllOptions, opts, {})
        what = "all_to_all_single"
        into, tensor = tensors.check(output, what), tensors.check(source, what)
        if into.dtype != tensor.dtype:
            raise ValueError(f"{what}: the input is {tensor.dtype}, the output {into.dtype}")
        self._sequence += 1
        if not output_splits and not input_splits:
            return self._run([self._equal_parts(into, tensor, opts)], [output], opts)
        whole, back = tensors.apart(into, tensor)
        parts = self._split(whole, into, output_splits, "output")
        sent = self._split(tensors.flat(tensor), tensor, input_splits, "input")
        steps = self._exchanged(parts, sent, opts)
        if back is not None and steps:
            steps[-1] = _then(steps[-1], back)
        return self._run(steps, [output], opts, beside=True)

    def _equal_parts(self, into: Tensor, tensor: Tensor, opts: Any) -> Step:
        if into.numel() != tensor.numel() or (tensor.dim() and tensor.shape[0] % self._me.size):
            raise ValueError(
                f"all_to_all_single among {self._me.size} ranks: axis 0 of shape"
                f" {tuple(tensor.shape)} must be a multiple of that, and the output as large; it is"
                f" {tuple(into.shape)}"
            )
        whole, back = tensors.apart(into, tensor)
        source, result = tensors.freight(tensors.flat(tensor)), tensors.freight(whole)
        return Step(operations.all_to_all(self._me, source, result, self._timeout_s(opts)), back)

    def _split(
        self, whole: Tensor, tensor: Tensor, splits: Sequence[int] | None, name: str
    ) -> list[Tensor]:
        """Cut a flat tensor into one part per rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        size = self._me.size
        if not splits:
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"all_to_all_single: {name} splits {list(splits)} must be one number for each of"
                f" {size} ranks, {rows} in all, as axis 0 of {tuple(tensor.shape)} has"
            )
        row = whole.numel() // rows if rows else 0
        return list(whole.split([count * row for count in splits]))

    def _exchanged(self, into: Sequence[Tensor], sent: Sequence[Tensor], opts: Any) -> list[Step]:
        """Exchange tensors with all ranks: in round i with the i-th before and behind this one."""
        limit_s, me = self._timeout_s(opts), self._me
        tensors.copy_into(into[me.rank], tensors.flat(sent[me.rank]).clone())
        steps = []
        for distance in range(1, me.size):
            to, source = (me.rank + distance) % me.size, (me.rank - distance) % me.size
            wire = tensors.freight(tensors.flat(sent[to]))
            steps.append(Step(operations.send(me, wire, to, 0, limit_s)))
            made, back = tensors.target(into[source])
            wire = tensors.freight(made)
            plan = operations.recv(me, wire.shape, wire.dtype, source, 0, wire, limit_s)
            steps.append(Step(plan, back))
        return steps

    # --- together -----------------------------------------------------------------------------

    def barrier(self, opts: Any = None, **more: Any) -> Work:
        """End once all ranks have called it.

        Args:
            opts: BarrierOptions; devices mean nothing here.
            more: fields of the options, such as ``timeout``.
        """
        opts = _options(C10D.BarrierOptions, opts, more)
        self._sequence += 1
        return self._run([Step(operations.barrier(self._me, self._timeout_s(opts)))], [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return once all ranks have called it; the error names those that did not come in time.

        Args:
            timeout: how long to wait; 0 hardly waits at all.
            wait_all_ranks: means nothing here: every error names all ranks that are missing.

        Raises:
            NoProgress: the time ran out. As after any error, the group is over then.
        """
        self._sequence += 1
        asked_s = self._limit_s if timeout is None else timeout.total_seconds()
        limit_s = None if asked_s is None else max(asked_s, 0.001)
        try:
            self._group._run(operations.barrier(self._me, limit_s))
        except StandfastError as error:
            raised = as_torch_error(error, self._global_ranks, _as_gloo_says(error, asked_s))
        else:
            return
        raise raised

    # --- checks -------------------------------------------------------------------------------

    def _one_each(self, given: Any, what: str) -> list[Tensor]:
        """Check a list of one tensor per rank."""
        if _is_nested(given):
            given = _only(given, what)
        if isinstance(given, torch.Tensor) or len(given) != self._me.size:
            raise ValueError(f"{what} takes a list of {self._me.size} tensors, one per rank")
        return [tensors.check(each, what) for each in given]

    def _check_sizes(self, *, small: Tensor, large: Tensor, what: str) -> None:
        if small.dtype != large.dtype or small.numel() * self._me.size != large.numel():
            raise ValueError(
                f"{what} among {self._me.size} ranks: one tensor must be {self._me.size} times the"
                f" other, and of its dtype; there are {large.dtype} {tuple(large.shape)} and"
                f" {small.dtype} {tuple(small.shape)}"
            )


def _as_gloo_says(error: StandfastError, asked_s: float | None) -> str:
    """Return how Gloo would put the failure of a monitored barrier: programs look for its words."""
    if not isinstance(error, NoProgress | PeerStalled) or error.rank is None:
        return ""
    words = f"Rank {error.rank} failed to pass monitoredBarrier"
    if error.here != 0:
        words = (
            f"Rank {error.here} successfully reached monitoredBarrier, but received errors while"
            " waiting for send/recv from rank 0"
        )
    elif asked_s is not None and asked_s <= 0:
        words = f"Rank {error.here} timed out in monitoredBarrier after 0 ms"
    return f" (as Gloo says it: {words})"


def _options(cls: Any, given: Any, more: dict[str, Any]) -> Any:
    """Return torch's options of an operation; `given` may be a ReduceOp."""
    opts = cls() if given is None or _is_operator(given) else given
    if given is not opts and given is not None:
        opts.reduceOp = given
    for name, value in more.items():
        if value is not None:
            setattr(opts, {"op": "reduceOp", "root": "rootRank"}.get(name, name), value)
    return opts


def _is_operator(given: Any) -> bool:
    return isinstance(given, (dist.ReduceOp, dist.ReduceOp.RedOpType))


def _is_nested(given: Any) -> bool:
    return bool(len(given)) and isinstance(given[0], (list, tuple))


def _only(given: Any, what: str) -> Any:
    """Return a tensor that came alone or in a list."""
    if isinstance(given, torch.Tensor):
        return given
    if len(given) != 1:
        raise ValueError(f"{what} takes one tensor per rank; there are {len(given)}")
    return given[0]


def _by_dtype(given: Sequence[Any], what: str) -> list[list[Tensor]]:
    """Sort tensors into lists of one dtype, in the order in which dtypes come first."""
    found: dict[Any, list[Tensor]] = {}
    for each in given:
        tensor = tensors.check(each, what)
        found.setdefault(tensor.dtype, []).append(tensor)
    return list(found.values())


def _then(step: Step, back: Finish | None) -> Step:
    """Add something to be done after a step."""
    first = step.finish
    if first is None or back is None:
        return Step(step.plan, first or back)

    def both() -> None:
        first()
        back()

    return Step(step.plan, both)


def _combine(by: Reduction, rows: Tensor, into: Tensor) -> None:
    tensors.copy_into(into, by.combine(rows))


def _copier(into: Tensor, source: Tensor) -> Callable[[], None]:
    return lambda: tensors.copy_into(into, source)


def _spreader(whole: Tensor, parts: Sequence[Tensor]) -> Callable[[], None]:
    return lambda: tensors.spread(whole, parts)
