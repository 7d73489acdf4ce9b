"""Results as text: nccl-tests' table, and ours beside other libraries'. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from standfast.bench.plan import Cell, bandwidths, from_dict

Result = Mapping[str, Any]
NOT_OFFERED = "not offered"
FIELDS = frozenset(Cell.__dataclass_fields__)
HALF = "{:>9} {:>7} {:>7} {:>7}"
LEFT = "{:>12} {:>12} {:>9} {:>6} {:>5}"


def cell_of(result: Result) -> Cell:
    """Return the cell that a result is of."""
    return from_dict({key: value for key, value in result.items() if key in FIELDS})


def header(op: str, description: str) -> list[str]:
    """Return the lines above an operation's rows."""
    halves = ("out-of-place", "in-place")
    wide = len(HALF.format("", "", "", ""))
    return [
        f"# {op}: {description}",
        "# " + LEFT.format("", "", "", "", "")[2:] + "".join(f" {each:^{wide}}" for each in halves),
        "# "
        + LEFT.format("size", "count", "type", "redop", "root")[2:]
        + (" " + HALF.format("time", "algbw", "busbw", "#wrong")) * 2,
        "# "
        + LEFT.format("(B)", "(elements)", "", "", "")[2:]
        + (" " + HALF.format("(us)", "(GB/s)", "(GB/s)", "")) * 2,
    ]


def row(out_of_place: Result, in_place: Result | None, *, time_key: str) -> str:
    """Return a line of the table. A half that does not exist, or failed, has dashes."""
    cell = cell_of(out_of_place)
    left = LEFT.format(
        cell.nbytes,
        out_of_place["count"],
        cell.dtype if cell.operation.sized else "-",
        cell.redop or "-",
        cell.root,
    )
    return " ".join((left, _half(out_of_place, time_key), _half(in_place, time_key))).rstrip()


def _half(result: Result | None, time_key: str) -> str:
    if result is None or time_key not in result:
        return HALF.format("-", "-", "-", "-")
    algorithm, bus = bandwidths(cell_of(result), result["ranks"], result[time_key])
    wrong = "N/A" if result["wrong"] is None else str(result["wrong"])
    return HALF.format(time_text(result[time_key]), f"{algorithm:.2f}", f"{bus:.2f}", wrong)


def time_text(us: float) -> str:
    """Return microseconds with three digits at least."""
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def size_text(nbytes: int) -> str:
    """Return e.g. "64 MiB"; 1000 stays "1000 B"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def footer(results: Iterable[Result], *, time_key: str) -> list[str]:
    """Return the lines below a table: errors, wrong values, and our mean busbw."""
    results = list(results)
    good = [result for result in results if time_key in result]
    errors = (
        f"# {each['backend']}, {each['op']} {each['dtype']}: {each['error']}"
        for each in results
        if each.get("error", NOT_OFFERED) != NOT_OFFERED
    )
    lines = list(dict.fromkeys(errors))
    checked = [result["wrong"] for result in good if result["wrong"] is not None]
    if checked:
        lines.append(f"# wrong values: {sum(checked)}{' FAILED' if sum(checked) else ' OK'}")
    if len({result["backend"] for result in good}) == 1:
        rates = [bandwidths(cell_of(each), each["ranks"], each[time_key])[1] for each in good]
        lines.append(f"# average busbw: {statistics.mean(rates):.3f} GB/s")
    return lines


def noise_lines(results: Sequence[Result], noise_max_pct: float) -> list[str]:
    """Return what other processes took of the CPU, and whether that was too much."""
    good = [each for each in results if "error" not in each]
    known = [each["foreign_pct"] for each in good if each["foreign_pct"] is not None]
    if good and not known:
        return ["# what other work took of the CPU meanwhile is not known on this system"]
    if not known:
        return ["# nothing was measured"]
    noisy = sum(each > noise_max_pct for each in known)
    line = f"# other work took {statistics.median(known):.0f} % of a core"
    line += f" (median; at most {max(known):.0f} %)"
    if noisy:
        line += f": {noisy} of {len(known)} figures are noisy, measure again on a quiet machine"
    return [line]


def wrong_values(results: Iterable[Result]) -> int:
    """Return the number of wrong elements over all results."""
    return sum(result.get("wrong") or 0 for result in results)


# --- ours beside other libraries'

Key = tuple[Cell, str]


def medians(results: Iterable[Result], *, time_key: str) -> dict[Key, float]:
    """Return the median over runs of each cell's time, by cell and backend."""
    found: dict[Key, list[float]] = {}
    for result in results:
        if time_key in result:
            found.setdefault((cell_of(result), result["backend"]), []).append(result[time_key])
    return {key: statistics.median(times) for key, times in found.items()}


def comparison(
    results: Sequence[Result], titles: Mapping[str, str], *, ours: str, time_key: str
) -> list[str]:
    """Return a table: times in us, and how many times as fast as each peer we are."""
    times = medians(results, time_key=time_key)
    others = [name for name in titles if name != ours]
    names = [ours, *(word for name in others for word in (name, "speed"))]
    widths = [max(10, len(name) + 1) for name in names]
    lines = [f"# {name}: {title}" for name, title in titles.items()]
    lines.append("# times in us; speed: the other's time / ours, above 1 we are faster")
    lines.append(_columns("# operation", "size", names, widths))
    for cell in dict.fromkeys(cell for cell, _ in times):
        mine = times.get((cell, ours))
        texts = [time_text(mine) if mine else "-"]
        for name in others:
            theirs = times.get((cell, name))
            texts.append(time_text(theirs) if theirs else "-")
            texts.append(f"{theirs / mine:.2f}x" if theirs and mine else "-")
        words = [cell.op, cell.redop, cell.dtype if cell.operation.sized else ""]
        label = " ".join(word for word in (*words, "in place" if cell.in_place else "") if word)
        lines.append(_columns(label, size_text(cell.nbytes) if cell.nbytes else "", texts, widths))
    return lines


def _columns(label: str, size: str, texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = "".join(f"{text:>{wide}}" for text, wide in zip(texts, widths, strict=True))
    return f"{label:<36} {size:>9}{cells}"
