"""What each operation asks of the core: checks the arguments and makes a Plan. Sends nothing.

group.py runs plans at once, or hands them to the core's threads. Every ValueError and TypeError
comes from here, before any byte is sent, and is the same on all ranks that pass the same thing.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from standfast import dtypes, kinds
from standfast._core import Request
from standfast.arrays import as_wire, element_type, out_wire, overlap
from standfast.kinds import Kind, Wire

OPS = ("sum", "max", "min", "prod")
TAG_MAX = 2**31 - 1
ANY_RANK = -1
AXES_MAX = 64

Shape = tuple[int, ...]
Blob = memoryview | None


class Member(NamedTuple):
    """Which rank, of how many, makes a plan."""

    rank: int
    size: int


class Plan:
    """One operation, ready to be run.

    request goes to the core; blob tells that its result comes back as a memoryview, because only
    the sender knew its size. deliver makes the caller's result of it. keep owns the memory that
    the request's addresses point to. name and what are for messages.
    """

    __slots__ = ("blob", "deliver", "keep", "name", "request", "what")

    def __init__(
        self,
        name: str,
        request: Request,
        deliver: Callable[[Blob], Any],
        keep: tuple[object, ...] = (),
        what: Wire | None = None,
        blob: bool = False,
    ) -> None:
        self.name: str = name
        self.request: Request = request
        self.deliver: Callable[[Blob], Any] = deliver
        self.keep: tuple[object, ...] = keep
        self.what: Wire | None = what
        self.blob: bool = blob

    def describe(self) -> str:
        """Return e.g. ``float32[4,3]``, or "" where no array is involved."""
        return "" if self.what is None else dtypes.shape_text(self.what.dtype, self.what.shape)


def seconds(timeout_s: float | None) -> float:
    """Return a time limit for the core, where 0 stands for the group's own."""
    if timeout_s is None:
        return 0.0
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s is {timeout_s}; it must be a positive number of seconds")
    return float(timeout_s)


def all_reduce(
    me: Member, x: Any, op: str, out: Any, timeout_s: float | None, name: str = ""
) -> Plan:
    """Combine x of all ranks, element by element."""
    wire = as_wire(x, writable=out is not None and out is x)
    name = name or f"all_{op}"
    _check_op(op, wire, name)
    target, deliver = _target(wire, wire.shape, out, x, name)
    request = Request(
        kind="all_reduce",
        src=wire.address,
        dst=target.address,
        count=wire.elements,
        dtype=wire.dtype,
        op=op,
        timeout_s=seconds(timeout_s),
    )
    return Plan(name, request, deliver, (wire, target), wire)


def all_gather(me: Member, x: Any, out: Any, timeout_s: float | None) -> Plan:
    """Put x of all ranks one after the other."""
    wire = as_wire(x)
    target, deliver = _target(wire, _stacked(wire, me), out, None, "all_gather")
    own = target.address + me.rank * wire.nbytes
    if out is not None and wire.address != own and overlap(wire, target):
        raise ValueError("out overlaps x; they may only share x's own place in out")
    request = Request(
        kind="all_gather",
        src=wire.address,
        dst=target.address,
        count=wire.elements,
        dtype=wire.dtype,
        timeout_s=seconds(timeout_s),
    )
    return Plan("all_gather", request, deliver, (wire, target), wire)


def reduce_scatter(me: Member, x: Any, op: str, out: Any, timeout_s: float | None) -> Plan:
    """Combine x of all ranks, and keep this rank's share of axis 0."""
    wire = as_wire(x)
    name = f"{op}_scatter" if op == "sum" else "reduce_scatter"
    _check_op(op, wire, name)
    target, deliver = _target(wire, _share(wire, me, name), out, None, name)
    _check_apart(wire, target, out)
    request = Request(
        kind="reduce_scatter",
        src=wire.address,
        dst=target.address,
        count=target.elements,
        dtype=wire.dtype,
        op=op,
        timeout_s=seconds(timeout_s),
    )
    return Plan(name, request, deliver, (wire, target), wire)


def broadcast(me: Member, x: Any, root: int, out: Any, timeout_s: float | None) -> Plan:
    """Give every rank the root's x."""
    root = _peer(me, root, "root")
    wire = as_wire(x, writable=out is not None and out is x)
    target, deliver = _target(wire, wire.shape, out, x, "broadcast")
    request = Request(
        kind="broadcast",
        src=wire.address,
        dst=target.address,
        count=wire.elements,
        dtype=wire.dtype,
        peer=root,
        timeout_s=seconds(timeout_s),
    )
    return Plan("broadcast", request, deliver, (wire, target), wire)


def all_to_all(me: Member, x: Any, out: Any, timeout_s: float | None) -> Plan:
    """Send the i-th share of axis 0 to rank i."""
    wire = as_wire(x)
    share = _share(wire, me, "all_to_all")
    target, deliver = _target(wire, wire.shape, out, None, "all_to_all")
    _check_apart(wire, target, out)
    request = Request(
        kind="all_to_all",
        src=wire.address,
        dst=target.address,
        count=math.prod(share),
        dtype=wire.dtype,
        timeout_s=seconds(timeout_s),
    )
    return Plan("all_to_all", request, deliver, (wire, target), wire)


def gather(me: Member, x: Any, root: int, out: Any, timeout_s: float | None) -> Plan:
    """Put x of all ranks one after the other, at the root only."""
    root = _peer(me, root, "root")
    wire = as_wire(x)
    if is_bytes(x, wire):
        return _gather_bytes(me, wire, root, out, timeout_s)
    target: Wire | None = None
    deliver: Callable[[Blob], Any] = _nothing
    if me.rank == root:
        target, deliver = _target(wire, _stacked(wire, me), out, None, "gather")
        _check_apart(wire, target, out)
    request = Request(
        kind="gather",
        src=wire.address,
        dst=0 if target is None else target.address,
        count=wire.elements,
        dtype=wire.dtype,
        peer=root,
        timeout_s=seconds(timeout_s),
    )
    return Plan("gather", request, deliver, (wire, target), wire)


def is_bytes(x: Any, wire: Wire) -> bool:
    """Tell whether x counts as bytes, whose length may differ from rank to rank."""
    return wire.kind in (kinds.BYTES, kinds.BYTEARRAY) or (
        isinstance(x, memoryview) and x.format == "B"
    )


def _gather_bytes(me: Member, wire: Wire, root: int, out: Any, timeout_s: float | None) -> Plan:
    if out is not None:
        raise TypeError("gather of bytes takes no out=: the root gets a list of bytes")
    request = Request(
        kind="gather_bytes",
        src=wire.address,
        count=wire.elements,
        dtype=dtypes.UINT8,
        peer=root,
        timeout_s=seconds(timeout_s),
    )
    deliver = split_bytes if me.rank == root else _nothing
    return Plan("gather", request, deliver, (wire,), wire, blob=True)


def split_bytes(blob: Blob) -> list[bytes]:
    """Take apart what gather_bytes returns: for each rank u64 length, then the bytes."""
    assert blob is not None
    found, at = [], 0
    while at < len(blob):
        (length,) = struct.unpack_from("<Q", blob, at)
        found.append(bytes(blob[at + 8 : at + 8 + length]))
        at += 8 + length
    return found


def scatter(me: Member, x: Any, root: int, out: Any, timeout_s: float | None) -> Plan:
    """Give rank i the i-th share of axis 0 of the root's x."""
    root = _peer(me, root, "root")
    if me.rank == root:
        return _scatter_root(me, x, out, timeout_s)
    target = None if out is None else as_wire(out, writable=True)
    request = Request(
        kind="scatter",
        dst=0 if target is None else target.address,
        count=0 if target is None else target.nbytes,
        dtype=dtypes.UINT8,
        peer=root,
        timeout_s=seconds(timeout_s),
        meta=b"" if target is None else scatter_meta(target.kind, target.dtype, target.shape),
    )

    def deliver(blob: Blob) -> Any:
        return scattered(blob, out, target)

    return Plan("scatter", request, deliver, (target,), target, blob=True)


def _scatter_root(me: Member, x: Any, out: Any, timeout_s: float | None) -> Plan:
    """Make the root's plan. If its x is bad, the others must hear of it: they wait for it."""
    try:
        wire = as_wire(x)
        target, take = _target(wire, _share(wire, me, "scatter"), out, None, "scatter")
        _check_apart(wire, target, out)
    except (TypeError, ValueError) as error:
        return _scatter_refusal(me, error, timeout_s)
    request = Request(
        kind="scatter",
        src=wire.address,
        dst=target.address,
        count=target.nbytes,
        dtype=dtypes.UINT8,  # in bytes, since the others do not know the dtype
        peer=me.rank,
        timeout_s=seconds(timeout_s),
        meta=scatter_meta(wire.kind, wire.dtype, target.shape),
    )
    return Plan("scatter", request, take, (wire, target), wire, blob=True)


def _scatter_refusal(me: Member, error: Exception, timeout_s: float | None) -> Plan:
    text = f"the root of scatter, rank {me.rank}, cannot send its x: {error}"

    def deliver(blob: Blob) -> Any:
        raise ValueError(text) from error

    request = Request(
        kind="scatter",
        peer=me.rank,
        dtype=dtypes.UINT8,
        timeout_s=seconds(timeout_s),
        meta=_REFUSED + text.encode(),
    )
    return Plan("scatter", request, deliver, blob=True)


_REFUSED, _ACCEPTED = b"\x00", b"\x01"
_KINDS: tuple[Kind, ...] = (
    kinds.BUFFER,
    kinds.NUMPY,
    kinds.TORCH,
    kinds.MLX,
    kinds.JAX,
    kinds.BYTES,
    kinds.BYTEARRAY,
    kinds.PYARRAY,
)


def scatter_meta(kind: Kind, dtype: int, share: Shape) -> bytes:
    """Describe each rank's share: accepted, kind, dtype, number of dimensions, dimensions."""
    number = _KINDS.index(kind) if kind in _KINDS else 0
    return _ACCEPTED + struct.pack(f"<BBB{len(share)}Q", number, dtype, len(share), *share)


def read_scatter_meta(meta: bytes) -> tuple[Kind, int, Shape]:
    """Undo scatter_meta(). The kind is one that this process has the library for.

    Raises:
        ValueError: the root refused its input; the text says why.
    """
    if meta[:1] == _REFUSED:
        raise ValueError(meta[1:].decode())
    number, dtype, axes = struct.unpack_from("<BBB", meta, 1)
    share = struct.unpack_from(f"<{axes}Q", meta, 4)
    return kinds.available(_KINDS[number]), dtype, share


def scattered(blob: Blob, out: Any, target: Wire | None) -> Any:
    """Make a non-root's result of the blob: u32 length of the meta, meta, data unless in out."""
    assert blob is not None
    (length,) = struct.unpack_from("<I", blob)
    kind, dtype, share = read_scatter_meta(bytes(blob[4 : 4 + length]))
    data = blob[4 + length :]
    if target is None:
        made = kind.make(dtype, share)
        _copy(data, as_wire(made, writable=True))
        return kind.finish(made)
    out_wire(out, dtype, share, "scatter")
    if len(data) == target.nbytes:
        _copy(data, target)
    return out


def _copy(data: memoryview, target: Wire) -> None:
    import ctypes

    if target.nbytes:
        source = as_wire(data)
        ctypes.memmove(target.address, source.address, target.nbytes)


def send(me: Member, x: Any, dst: int, tag: int, timeout_s: float | None) -> Plan:
    """Send x to one rank."""
    dst = _other(me, dst, "dst")
    wire = as_wire(x)
    request = Request(
        kind="send",
        src=wire.address,
        count=wire.elements,
        dtype=wire.dtype,
        peer=dst,
        tag=_tag(tag),
        timeout_s=seconds(timeout_s),
    )
    return Plan("send", request, _nothing, (wire,), wire)


def recv(
    me: Member,
    shape: int | Sequence[int] | None,
    dtype: Any,
    src: int,
    tag: int,
    out: Any,
    timeout_s: float | None,
) -> Plan:
    """Receive an array of this shape and dtype, or bytes, from one rank."""
    src = _other(me, src, "src")
    if dtype is bytes:
        return _recv_bytes(shape, src, tag, out, timeout_s)
    kind, code = element_type(dtype)
    return _recv(kind, code, _shape(shape), src, tag, out, timeout_s)


def recv_like(me: Member, x: Any, src: int, tag: int, out: Any, timeout_s: float | None) -> Plan:
    """Receive an array of x's sort, shape and dtype from one rank."""
    src = _other(me, src, "src")
    wire = as_wire(x)
    return _recv(wire.kind, wire.dtype, wire.shape, src, tag, out, timeout_s)


def recv_from_any(out: Any, tag: int, timeout_s: float | None) -> Plan:
    """Receive an array like `out` from whichever rank first sends a message with this tag."""
    wire = as_wire(out, writable=True)
    return _recv(wire.kind, wire.dtype, wire.shape, ANY_RANK, tag, out, timeout_s)


def _recv(
    kind: Kind, dtype: int, shape: Shape, src: int, tag: int, out: Any, timeout_s: float | None
) -> Plan:
    if out is None:
        made = kind.make(dtype, shape)
        target, deliver = as_wire(made, writable=True), _finisher(kind, made)
    else:
        target, deliver = out_wire(out, dtype, shape, "recv"), _giver(out)
    request = Request(
        kind="recv",
        dst=target.address,
        count=target.elements,
        dtype=dtype,
        peer=src,
        tag=_tag(tag),
        timeout_s=seconds(timeout_s),
    )
    return Plan("recv", request, deliver, (target,), target)


def _recv_bytes(
    length: int | Sequence[int] | None, src: int, tag: int, out: Any, timeout_s: float | None
) -> Plan:
    if length is not None:
        return _recv(kinds.BYTES, dtypes.UINT8, _shape(length), src, tag, out, timeout_s)
    if out is not None:
        raise TypeError("recv of bytes of unknown length takes no out=; pass the length as shape")
    request = Request(
        kind="recv_bytes",
        dtype=dtypes.UINT8,
        peer=src,
        tag=_tag(tag),
        timeout_s=seconds(timeout_s),
    )
    return Plan("recv", request, _to_bytes, blob=True)


def barrier(me: Member, timeout_s: float | None) -> Plan:
    """Wait for all ranks."""
    return Plan("barrier", Request(kind="barrier", timeout_s=seconds(timeout_s)), _nothing)


def agree(me: Member, flag: bool, timeout_s: float | None) -> Plan:
    """Combine a flag of all ranks by `and`."""
    verdict = bytearray([bool(flag)])
    wire = as_wire(verdict, writable=True)
    request = Request(
        kind="all_reduce",
        src=wire.address,
        dst=wire.address,
        count=1,
        dtype=dtypes.BOOL,
        op="prod",
        timeout_s=seconds(timeout_s),
    )
    return Plan("agree", request, lambda blob: verdict[0] != 0, (wire,))


def _target(
    wire: Wire, shape: Shape, out: Any, same_as: Any, name: str
) -> tuple[Wire, Callable[[Blob], Any]]:
    """Return where the result goes, and how the caller gets it.

    same_as: the operation's x, if out may be x itself; wire has then been checked to be writable.
    """
    if out is None:
        kind = wire.kind
        made = kind.make(wire.dtype, shape)
        return as_wire(made, writable=True), _finisher(kind, made)
    if out is same_as:
        return wire, _giver(out)
    target = out_wire(out, wire.dtype, shape, name)
    if same_as is not None and target.address != wire.address:
        _check_apart(wire, target, out)
    return target, _giver(out)


def _finisher(kind: Kind, made: Any) -> Callable[[Blob], Any]:
    return lambda blob: kind.finish(made)


def _giver(out: Any) -> Callable[[Blob], Any]:
    return lambda blob: out


def _nothing(blob: Blob) -> None:
    return None


def _to_bytes(blob: Blob) -> bytes:
    assert blob is not None
    return bytes(blob)


def _check_op(op: str, wire: Wire, name: str) -> None:
    if op not in OPS:
        raise ValueError(f"op is {op!r}; it must be one of {', '.join(OPS)}")
    if wire.dtype == dtypes.COMPLEX64 and op in ("max", "min"):
        raise TypeError(f"{name} of complex64: complex numbers have no order, so no {op}")


def _check_apart(wire: Wire, target: Wire, out: Any) -> None:
    if out is not None and overlap(wire, target):
        raise ValueError("out overlaps x; pass memory of its own")


def _stacked(wire: Wire, me: Member) -> Shape:
    """Return the shape of all ranks' x along axis 0; a 0-d array counts as length 1."""
    first, *rest = wire.shape or (1,)
    return (first * me.size, *rest)


def _share(wire: Wire, me: Member, name: str) -> Shape:
    """Return the shape of one rank's share of axis 0."""
    if not wire.shape:
        raise ValueError(f"{name} splits axis 0 among the ranks, and a 0-d array has none")
    first, *rest = wire.shape
    if first % me.size:
        raise ValueError(
            f"{name} splits axis 0 among {me.size} ranks, and its length {first} is no multiple"
            f" of that (shape {wire.shape})"
        )
    return (first // me.size, *rest)


def _peer(me: Member, rank: int, name: str) -> int:
    try:
        rank = operator.index(rank)
    except TypeError:
        raise TypeError(f"{name} is a {type(rank).__name__}; it must be a rank, an int") from None
    if not 0 <= rank < me.size:
        raise ValueError(f"{name} is {rank}; the ranks of this group are 0 to {me.size - 1}")
    return rank


def _other(me: Member, rank: int, name: str) -> int:
    rank = _peer(me, rank, name)
    if rank == me.rank:
        word = "send to" if name == "dst" else "receive from"
        raise ValueError(f"{name} is {rank}, this rank itself; a rank cannot {word} itself")
    return rank


def _tag(tag: int) -> int:
    tag = operator.index(tag)
    if not 0 <= tag <= TAG_MAX:
        raise ValueError(f"tag is {tag}; it must be from 0 to {TAG_MAX}")
    return tag


def _shape(shape: int | Sequence[int] | None) -> Shape:
    if shape is None:
        raise TypeError("shape is None; only recv(None, bytes, src) may leave it open")
    extents: Sequence[int] = (shape,) if isinstance(shape, int) else shape
    found = tuple(operator.index(extent) for extent in extents)
    if any(extent < 0 for extent in found) or len(found) > AXES_MAX:
        raise ValueError(f"shape is {found}; extents must not be negative")
    return found
