"""`standfast bench` where no rank is: starts jobs, takes turns between libraries, shows results."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from standfast.bench import model, table
from standfast.bench.backends import Backend, ours
from standfast.bench.jobs import Job, JobFailed, Launch
from standfast.bench.machine import wait_until_quiet
from standfast.bench.plan import Cell
from standfast.bench.printer import Progress, Rows
from standfast.bench.rank import How, Result

PATIENCE_S = 10.0

Write = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Task:
    """What the options ask for.

    time_key: which of a result's times the tables show. runs: rounds of a comparison.
    """

    cells: Sequence[Cell]
    ranks: int
    how: How
    launch: Launch
    time_key: str = "median_us"
    runs: int = 3


def show(task: Task, backends: Sequence[Backend], write: Write, bar: Write | None) -> list[Result]:
    """Measure ourselves, over each fabric in turn, and write nccl-tests' table as it grows.

    Raises:
        JobFailed: a job did not end well.
    """
    results: list[Result] = []
    progress = Progress(len(backends) * len(task.cells), bar)
    for backend in backends:
        rows = Rows(task.cells, describe(backend.title, task.ranks), time_key=task.time_key)
        progress.show("starting ranks")
        for result in told(task, backend):
            results.append(result)
            progress.clear()
            for line in rows.add(result):
                write(line)
            progress.step(_label(result))
        progress.clear()
    return results


def compare(
    task: Task, backends: Sequence[Backend], write: Write, bar: Write | None
) -> list[Result]:
    """Measure the libraries in turn, `runs` times round, and write ours beside the others.

    The first of `backends` is ours. Another library that fails is left out from there on.

    Raises:
        JobFailed: our own ranks did not end well.
    """
    results: list[Result] = []
    lost: set[str] = set()
    progress = Progress(task.runs * len(backends) * len(task.cells), bar)
    for _ in range(task.runs):
        for backend in backends:
            if backend.name in lost:
                continue
            wait_until_quiet(PATIENCE_S if task.how.again else 0)
            try:
                for result in told(task, backend):
                    results.append(result)
                    progress.step(f"{backend.name}: {_label(result)}")
            except JobFailed as error:
                if backend.is_ours:
                    raise
                lost.add(backend.name)
                progress.clear()
                sys.stderr.write(f"standfast: {error}, and is left out:\n{error.output}\n")
    progress.clear()
    titles = {backend.name: backend.title for backend in backends}
    for line in table.comparison(results, titles, ours=backends[0].name, time_key=task.time_key):
        write(line)
    return results


def algorithms(how: How, launch: Launch, runs: int, bar: Write | None) -> list[Result]:
    """Measure each algorithm of the core in turn, `runs` times round, for model.rows().

    Raises:
        JobFailed: a job did not end well.
    """
    results: list[Result] = []
    jobs = [*model.jobs()] * runs
    progress = Progress(len(jobs), bar)
    for fabric, ranks, topology in jobs:
        task = Task(model.cells(topology, ranks), ranks, how, launch)
        for result in told(task, ours(fabric, topology)):
            results.append({"fabric": fabric, "topology": topology, **result})
        progress.step(f"{fabric}, {ranks} ranks, {topology}")
    progress.clear()
    return results


def told(task: Task, backend: Backend) -> Iterator[Result]:
    """Run one job; yield its results with the name of its library."""
    with Job(backend, task.ranks, task.cells, task.how, task.launch) as job:
        for result in job.results():
            yield {"backend": backend.name, **result}


def describe(title: str, ranks: int) -> str:
    """Return what stands above a table."""
    return f"{title}, {ranks} ranks, {os.cpu_count()} cores"


def _label(result: Result) -> str:
    return f"{result['op']} {table.size_text(result['nbytes'])}"


def document(ranks: int, time_key: str, results: Sequence[Result]) -> str:
    """Return all results as one JSON object."""
    return json.dumps(
        {"ranks": ranks, "cores": os.cpu_count(), "time": time_key, "results": results}
    )
