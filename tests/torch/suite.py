"""Runs PyTorch's own tests of a backend, DistributedTest, as they come with torch: the CPU cases.

    python -m tests.torch.suite standfast              # all cases that Gloo passes
    python -m tests.torch.suite standfast test_barrier # these
    python -m tests.torch.suite gloo --all             # which are there, and how they end

One line per case: name, how it ended, seconds. With standfast, status 1 if a case that Gloo passes
does not, and suite_differences.txt does not say why; or if one passes of which that file says it
does not.
Each case runs in 3 ranks, forked from here, for starting them anew takes ten times as long.

Many cases skip every backend that they do not know by name. So our backend runs under Gloo's: where
torch would make a ProcessGroupGloo, it makes ours. Only the events of torch's profiler, which Gloo
writes and we do not, are not asked for.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
PASSED_BY_GLOO = HERE / "suite_gloo.txt"
DIFFERENCES = HERE / "suite_differences.txt"
RANKS = "3"


def gloo_cases() -> list[str]:
    """Return the cases that Gloo passes."""
    return [line for line in PASSED_BY_GLOO.read_text().splitlines() if line[:5] == "test_"]


def differences() -> dict[str, str]:
    """Return the cases of those that we do not pass, and why."""
    lines = DIFFERENCES.read_text().splitlines()
    found = (line.partition(": ") for line in lines if line[:5] == "test_")
    return {name: why for name, _, why in found}


def prepare(backend: str, folder: str) -> Any:
    """Set what the tests read from the environment; return the class that has them."""
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": RANKS,
        "TEMP_DIR": folder,
        "MASTER_ADDR": "127.0.0.1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        "OMP_NUM_THREADS": "1",
    }
    for name in ("barrier", "test_dir", "init_dir"):
        Path(folder, name).mkdir(exist_ok=True)

    import torch.multiprocessing
    from torch.testing._internal.distributed import distributed_test

    if backend == "standfast":
        stand_in_for_gloo()
        for events in (
            distributed_test.PROFILING_SUPPORTED_BACKENDS,
            distributed_test.CUDA_PROFILING_SUPPORTED_BACKENDS,
            distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
        ):
            events.remove("gloo")
    base: Any = distributed_test.TestDistBackend
    cases: Any = distributed_test.DistributedTest._DistTestBase

    class Suite(base, cases):  # type: ignore[misc] # torch's classes are Any where it is not there
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


def stand_in_for_gloo() -> None:
    """Let torch make our process group wherever it would make Gloo's."""
    from torch.distributed import distributed_c10d

    from standfast.torch.errors import torch_errors
    from standfast.torch.meeting import Party, meet
    from standfast.torch.shells import StandfastProcessGroup

    class ProcessGroupGloo(StandfastProcessGroup):
        options = SimpleNamespace()  # torch writes to it

        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            name = "torch:gloo"
            party = Party(store, rank, size, name, tuple(range(size)), timeout.total_seconds())
            with torch_errors():
                group = meet(party, lambda: None)
            super().__init__(group, ())

    vars(distributed_c10d)["ProcessGroupGloo"] = ProcessGroupGloo


def run(suite: Any, names: Sequence[str]) -> Iterator[tuple[str, str, float, str]]:
    """Run cases; yield name, "passed", "skipped" or "failed", seconds, and what was said."""
    for name in names:
        began = time.monotonic()
        result = unittest.TestResult()
        suite(name).run(result)
        bad = [text for _, text in (*result.failures, *result.errors)]
        how = "failed" if bad else "skipped" if result.skipped else "passed"
        said = "".join(bad) or "".join(text for _, text in result.skipped)
        yield name, how, time.monotonic() - began, said


def main(backend: str, wanted: Sequence[str]) -> int:
    """Run the wanted cases, or those that Gloo passes; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        suite = prepare(backend, folder)
        if list(wanted) == ["--all"]:
            wanted = unittest.defaultTestLoader.getTestCaseNames(suite)
        known = differences() if backend == "standfast" else {}
        wrong = []
        for name, how, seconds, said in run(suite, wanted or gloo_cases()):
            last = said.strip().splitlines()[-1:] or [""]
            print(f"{name} {how} {seconds:.1f} s {'' if how == 'passed' else last[0]}", flush=True)
            if (how == "passed") == (name in known):
                wrong.append(name)
                sys.stderr.write(said)
        print(f"{len(wrong)} not as expected: {' '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
