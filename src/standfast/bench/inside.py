"""`standfast bench` as a rank of a job that runs already: rank 0 writes the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from standfast.bench.adapters import Standfast
from standfast.bench.plan import Cell
from standfast.bench.printer import Rows
from standfast.bench.rank import How, Result, measure_all

Write = Callable[[str], None]


def measure(
    cells_for: Callable[[int], Sequence[Cell]],
    how: How,
    *,
    fabric: str,
    topology: str,
    memory: str,
    write: Write,
    time_key: str,
) -> tuple[int, list[Result]]:
    """Join the job's group, measure, and return its size and, on rank 0, the results.

    Raises:
        StandfastError: the group could not be formed, or an operation failed.
    """
    adapter = Standfast(0, 0, {"fabric": fabric, "topology": topology, "memory": memory})
    adapter.join()
    results: list[Result] = []
    with adapter.group:
        cells = cells_for(adapter.size)
        title = f"standfast ({fabric}), {adapter.size} ranks"
        rows = Rows(cells, title, time_key=time_key)

        def tell(result: Result) -> None:
            results.append({"backend": "standfast", **result})
            for line in rows.add(result):
                write(line)

        measure_all(adapter, cells, how, tell)
    return adapter.size, results
