"""Bandwidth and time against size, as an SVG. The one file that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from standfast.bench.table import Result, cell_of, medians

Curve = dict[int, float]


def curves(results: Sequence[Result], *, time_key: str) -> dict[str, Curve]:
    """Return each curve's times in us by size; its name says what it is. Pure."""
    found: dict[str, Curve] = {}
    for (cell, backend), time_us in medians(results, time_key=time_key).items():
        if cell.nbytes:
            words = (backend, cell.op, cell.redop, cell.dtype, "in place" if cell.in_place else "")
            found.setdefault(" ".join(filter(None, words)), {})[cell.nbytes] = time_us
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}


def draw(results: Sequence[Result], path: Path, *, time_key: str) -> None:
    """Draw busbw and time against size, one curve per library and operation.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib as mpl
    import matplotlib.ticker

    mpl.use("svg")
    from matplotlib import pyplot

    figure, (rates, times) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    factors = {cell_of(each).op: (cell_of(each), each["ranks"]) for each in results}
    for name, curve in curves(results, time_key=time_key).items():
        op = next(word for word in name.split() if word in factors)
        cell, ranks = factors[op]
        factor = cell.operation.factor(ranks)
        rates.plot([*curve], [s / t / 1e3 * factor for s, t in curve.items()], ".-", label=name)
        times.plot([*curve], [*curve.values()], ".-", label=name)
    rates.set(xscale="log", xlabel="size (bytes)", ylabel="busbw (GB/s)")
    times.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (us)")
    for axes in (rates, times):
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(base=2, numticks=10))
        axes.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    rates.legend(fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
