"""Results of speed.py as Markdown tables. Pure: records in, text out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from backends import BACKENDS

Record = dict[str, Any]
Key = tuple[str, int, str, int]
OPS = ("all_reduce", "all_gather", "reduce_scatter", "pingpong", "barrier", "eval_only")
OURS = {"standfast": ("openmpi", "mpich"), "standfast-tcp": ("openmpi-tcp", "gloo", "mlx")}
MIB = 1 << 20


def cells(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Return all measurements by backend, ranks, operation and bytes."""
    found: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        for cell in record["results"]:
            key = record["backend"], record["ranks"], cell["op"], cell["bytes"]
            found[key].append(cell)
    return found


def quietest(measured: Iterable[Record], keep: int) -> list[Record]:
    """Return the runs of one cell during which other processes took least of the machine."""
    good = [cell for cell in measured if "median_us" in cell]
    return sorted(good, key=lambda cell: cell["foreign_pct"])[:keep]


def medians(records: Iterable[Record], keep: int) -> dict[Key, float]:
    """Return the median over the quietest runs of their medians, in microseconds."""
    return {
        key: statistics.median(cell["median_us"] for cell in best)
        for key, measured in cells(records).items()
        if (best := quietest(measured, keep))
    }


def markdown(records: Sequence[Record], keep: int) -> str:
    """Return the whole report."""
    lines = []
    for ranks in sorted({record["ranks"] for record in records}):
        here = [record for record in records if record["ranks"] == ranks]
        present = [name for name in BACKENDS if any(r["backend"] == name for r in here)]
        lines += [f"## {ranks} ranks", "", *_times(here, present, keep)]
        lines += ["", *_ratios(here, present, keep), ""]
    return "\n".join([*lines, _noise(records, keep)])


def _times(records: Sequence[Record], present: Sequence[str], keep: int) -> list[str]:
    measured = cells(records)
    lines = [f"Microseconds per call: median (best) of the {keep} quietest runs.", ""]
    lines += _head(["operation", "size", *(BACKENDS[name].title for name in present)])
    for op, nbytes in _rows(measured):
        texts = []
        for name in present:
            runs = next(
                (v for k, v in measured.items() if k[0] == name and k[2:] == (op, nbytes)), []
            )
            best = quietest(runs, keep)
            if best:
                middle = statistics.median(cell["median_us"] for cell in best)
                texts.append(f"{_us(middle)} ({_us(min(cell['min_us'] for cell in best))})")
            else:
                failed = any(cell.get("error") != "not offered" for cell in runs)
                texts.append("error" if failed else "-")
        if set(texts) != {"-"}:
            lines.append(_line([op, _size(nbytes), *texts]))
    return lines


def _ratios(records: Sequence[Record], present: Sequence[str], keep: int) -> list[str]:
    """Return ours / peer, shared memory beside shared memory and TCP beside TCP."""
    middle = {(key[0], *key[2:]): value for key, value in medians(records, keep).items()}
    pairs = [(o, p) for o, peers in OURS.items() for p in peers if {o, p} <= set(present)]
    if not pairs:
        return []
    lines = ["Our time / the peer's: below 1 we are faster.", ""]
    lines += _head(["operation", "size", *(f"{o} / {BACKENDS[p].title}" for o, p in pairs)])
    for op, nbytes in _rows(cells(records)):
        ratios = []
        for ours, peer in pairs:
            times = middle.get((ours, op, nbytes)), middle.get((peer, op, nbytes))
            ratios.append(_ratio(times[0] / times[1]) if times[0] and times[1] else "-")
        if set(ratios) != {"-"}:
            lines.append(_line([op, _size(nbytes), *ratios]))
    return lines


def _noise(records: Sequence[Record], keep: int) -> str:
    used = [c["foreign_pct"] for runs in cells(records).values() for c in quietest(runs, keep)]
    if not used:
        return "Nothing was measured."
    worst = sorted(used)[int(len(used) * 0.9)]
    return (
        "CPU taken by other work in the runs used, in per cent of one core: "
        f"median {statistics.median(used):.0f}, 90th percentile {worst:.0f}."
    )


def _rows(measured: Iterable[Key]) -> list[tuple[str, int]]:
    return sorted({key[2:] for key in measured}, key=lambda row: (OPS.index(row[0]), row[1]))


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _size(nbytes: int) -> str:
    if nbytes == 0:
        return ""
    if nbytes < 1024:
        return f"{nbytes} B"
    return f"{nbytes // 1024} KiB" if nbytes < MIB else f"{nbytes // MIB} MiB"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _us(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.1f} ms"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
