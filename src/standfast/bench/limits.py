"""What this machine allows, measured by the core, and how much of it our operations reach.

A bound is the least time that the bytes an operation must move, or the messages it must exchange,
take at the measured limit; our share is bound / our time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from standfast.bench.plan import Cell
from standfast.bench.table import Result, cell_of, size_text, time_text

MIB = 1 << 20


class Limit(NamedTuple):
    """One limit: its name in the core, what it is, and whether it is a rate or a time."""

    name: str
    title: str
    is_rate: bool


LIMITS = (
    Limit("copy", "memcpy, 64 MiB, one core", True),
    Limit("copy_cached", "memcpy, 256 KiB (in L2), one core", True),
    Limit("copy_on_two", "memcpy, 64 MiB, two cores at once, sum", True),
    Limit("add", "float32 a += b, 64 MiB, bytes of b", True),
    Limit("spin", "shared memory, spinning, one way", False),
    Limit("wake_up", "pipe, reader asleep on another core, one way", False),
    Limit("tcp_blocking", "loopback TCP, 8 B, blocking, one way", False),
    Limit("tcp_polling", "loopback TCP, 8 B, polling, one way", False),
    Limit("tcp_stream", "loopback TCP, stream, 1 MiB writes", True),
)


class Measured(NamedTuple):
    """A limit's samples summed up: bytes/s or seconds. None: not measurable here."""

    best: float | None
    median: float | None


def measure(measure_one: Callable[[str], Sequence[float]]) -> dict[str, Measured]:
    """Return all limits by name; `measure_one` is the core's measure_limit."""
    return {limit.name: _summed(limit, measure_one(limit.name)) for limit in LIMITS}


def _summed(limit: Limit, samples: Sequence[float]) -> Measured:
    if not samples:
        return Measured(None, None)
    return Measured(max(samples) if limit.is_rate else min(samples), statistics.median(samples))


def cells() -> dict[str, list[Cell]]:
    """Return what we measure of ourselves, on two ranks, by fabric."""
    small = [Cell("ping_pong", 8), Cell("barrier", 0, "uint8"), Cell("all_reduce", 8, redop="sum")]
    large = [
        Cell("ping_pong", 16 * MIB),
        *(Cell("all_reduce", size * MIB, redop="sum") for size in (1, 16, 64)),
        Cell("all_gather", 16 * MIB),
        Cell("reduce_scatter", 16 * MIB, redop="sum"),
    ]
    return {"shm": small + large, "tcp": small + large}


def bound_us(cell: Cell, fabric: str, limits: Mapping[str, Measured]) -> float | None:
    """Return the least time of an operation of two ranks in us, or None without the limit. Pure.

    Small: one message each way at once, so one way's latency. Large, over shared memory: the bytes
    that both ranks must read and write between them, once each, as copies of two cores at once do;
    a copy reads a byte and writes one. Over TCP: the bytes both send, as a stream between two
    cores moves them.
    """
    if cell.nbytes <= 8:
        latency = limits["spin" if fabric == "shm" else "tcp_polling"].median
        return None if latency is None else latency * 1e6
    rate = limits["copy_on_two" if fabric == "shm" else "tcp_stream"].median
    if rate is None:
        return None
    if fabric == "tcp":
        sent = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "ping_pong": 1.0}
        return sent[cell.op] * cell.nbytes / rate * 1e6
    # Reads and writes of both ranks, in sizes: x and out are touched once, whatever is staged.
    touched = {"all_reduce": 4.0, "all_gather": 3.0, "reduce_scatter": 3.0, "ping_pong": 2.0}
    return touched[cell.op] / 2 * cell.nbytes / rate * 1e6


def lines(limits: Mapping[str, Measured]) -> Iterator[str]:
    """Yield the table of limits."""
    yield f"{'# what the machine allows':<48} {'unit':>6} {'best':>10} {'median':>10}"
    for limit in LIMITS:
        found = limits[limit.name]
        unit = "GB/s" if limit.is_rate else "us"
        texts = [_text(limit, each) for each in found]
        yield f"{limit.title:<48} {unit:>6} {texts[0]:>10} {texts[1]:>10}"


def _text(limit: Limit, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e9:.2f}" if limit.is_rate else f"{value * 1e6:.3f}"


def share_lines(
    results: Sequence[Result], fabric: str, limits: Mapping[str, Measured], *, time_key: str
) -> Iterator[str]:
    """Yield the table of our shares of the limits, over one fabric."""
    yield f"{f'# {fabric}, 2 ranks':<26} {'size':>9} {'bound us':>10} {'ours us':>10} {'share':>7}"
    for result in results:
        if time_key not in result:
            continue
        cell, ours = cell_of(result), result[time_key]
        bound = bound_us(cell, fabric, limits)
        left = f"{cell.op:<26} {size_text(cell.nbytes):>9}"
        if bound is None:
            yield f"{left} {'-':>10} {time_text(ours):>10} {'-':>7}"
        else:
            yield f"{left} {time_text(bound):>10} {time_text(ours):>10} {bound / ours:>7.0%}"


def to_dict(limits: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the limits as JSON has them: bytes per second, or seconds."""
    return {name: found._asdict() for name, found in limits.items()}
