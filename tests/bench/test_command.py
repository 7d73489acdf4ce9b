"""`standfast bench` as users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from standfast import _core
from standfast.bench import limits
from standfast.testing.emulator import library_path
from tests.ranks import rank_environment

QUICK = ("-n", "3", "-w", "0", "--again", "0")
LIMIT_S = 100
RANK_MODULE = "standfast.bench.rank"


def environment() -> dict[str, str]:
    """Return an environment in which no launcher says who this is."""
    kept = rank_environment(0, 1, "")
    return {key: value for key, value in kept.items() if not key.startswith("STANDFAST_")}


def bench(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "standfast", *before, "bench", *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def measured(*arguments: str) -> list[dict[str, Any]]:
    """Run the command with --json; return its results."""
    done = bench(*QUICK, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    assert results
    return results


def test_the_table_has_a_row_per_size() -> None:
    """Three sizes are three rows, none of them wrong."""
    done = bench("-b", "8", "-e", "8K", "-f", "32", *QUICK)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row[:5] for row in rows] == [
        [size, count, "float32", "sum", "-1"]
        for size, count in (("8", "2"), ("256", "64"), ("8192", "2048"))
    ]
    assert all(row[8] == row[12] == "0" for row in rows)
    assert "# wrong values: 0 OK" in done.stdout


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_every_operation_dtype_and_operator_is_right(fabric: str) -> None:
    """All that there is on three ranks is measured and right, in and out of place."""
    results = measured(
        *("all", "-g", "3", "-d", "all", "-o", "all", "--fabric", fabric, "-b", "2K", "-e", "2K")
    )
    assert len(results) > 200
    assert [each for each in results if each.get("wrong") or "error" in each] == []
    assert {each["in_place"] for each in results} == {True, False}


def test_two_ranks_play_ping_pong_in_a_ring() -> None:
    """A topology is asked for by name, and ping-pong is there for two ranks."""
    results = measured("ping_pong,all_reduce", "--topology", "ring", "-b", "1M", "-e", "1M")
    assert [each["op"] for each in results] == ["ping_pong", "all_reduce", "all_reduce"]


def test_shared_arrays_are_measured() -> None:
    """--memory shared takes arrays of standfast.empty(), and results are right."""
    results = measured("all", "--memory", "shared", "-b", "1M", "-e", "1M")
    assert [each for each in results if each["wrong"]] == []
    assert {each["backend"] for each in results} == {"standfast-empty"}


@pytest.mark.skipif(not library_path().exists(), reason="the emulated library is not built")
def test_verbs_are_measured_over_the_emulator() -> None:
    """--emulate needs no hardware."""
    results = measured("--emulate", "-b", "64K", "-e", "64K")
    assert {each["backend"] for each in results} == {"standfast-verbs"}


def test_it_is_a_rank_of_a_job_that_runs() -> None:
    """Under `standfast run` each process is one rank, and rank 0 writes."""
    done = bench(
        *QUICK, "-e", "8", before=("run", "-n", "3", "--", sys.executable, "-m", "standfast")
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "float32" in line]
    assert len(rows) == 1
    assert "3 ranks" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "no operation 'nothing'; known are all_reduce"),
        (("-d", "float8"), "no dtype 'float8'"),
        (("-o", "avg"), "no redop 'avg'"),
        (("--fabric", "pigeon"), "no fabric 'pigeon'"),
        (("-b", "8X"), "'8X' is not a size"),
        (("-b", "64", "-e", "8"), "-e 8 is less than -b 64"),
        (("-f", "1"), "-f 1: a factor of 1 or less"),
        (("-f", "2", "-i", "8"), "only one of them can be right"),
        (("-i", "1", "-e", "1M"), "more than 200 sizes"),
        (("-r", "2"), "-r 2: there is no such rank among 2"),
        (("-g", "1"), "is not in the range"),
        (("ping_pong", "-g", "3"), "ping_pong does not exist for float32, sum and 3 ranks"),
        (("--compare", "mlx", "--fabric", "shm,tcp"), "one fabric and one topology"),
        (("--emulate", "--fabric", "tcp"), "--emulate is for --fabric verbs"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_right(
    arguments: tuple[str, ...], words: str
) -> None:
    """Status 2, nothing on stdout, and a sentence that shows what was wrong."""
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())


def test_an_unknown_library_is_a_config_error() -> None:
    """Status 78, with the names that are known."""
    done = bench("--compare", "nccl")
    assert done.returncode == 78
    assert "no library 'nccl'" in done.stderr
    assert "openmpi" in done.stderr


def test_a_plot_needs_its_directory() -> None:
    """Status 78 before anything is measured."""
    done = bench("--plot", "/nowhere/at/all/out.svg")
    assert done.returncode == 78
    assert "there is no such directory" in done.stderr


def test_a_library_that_is_not_installed_is_left_out() -> None:
    """stderr says what is missing and how to install it; ours is measured all the same."""
    done = bench("--compare", f"gloo={sys.executable}", "-e", "8", "--runs", "1", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "gloo is left out" in done.stderr
    assert "-m pip install torch" in done.stderr
    assert "all_reduce sum float32" in done.stdout


def test_mlx_is_measured_beside_us() -> None:
    """Where MLX is installed, the table has its times and the ratio."""
    pytest.importorskip("mlx.core")
    done = bench("--compare", "mlx", "-b", "4K", "-e", "4K", "--runs", "1", *QUICK)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("all_reduce sum"))
    assert row.split()[-1].endswith("x")


def test_a_plot_is_written(tmp_path: Path) -> None:
    """--plot writes an SVG with a curve per operation."""
    pytest.importorskip("matplotlib")
    done = bench(*QUICK, "-e", "4K", "-f", "8", "--plot", str(tmp_path / "out.svg"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.svg").read_text()
    assert "<svg" in text
    assert "busbw" in text


def ranks_of(launcher: int) -> list[int]:
    """Return the processes below one that are ranks of a benchmark."""
    found, left = [], [launcher]
    while left:
        pid = left.pop()
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        left += [int(child) for child in below]
        if words[1:3] == ["-m", RANK_MODULE]:
            found.append(pid)
    return sorted(found)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the ranks in /proc")
def test_a_rank_that_dies_is_named() -> None:
    """SIGKILL of a rank ends the command with the launcher's report and its status."""
    process = subprocess.Popen(
        [sys.executable, "-m", "standfast", "bench", "-b", "1M", "-e", "1M", "-n", "1000000"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + LIMIT_S / 2
        while len(ranks := ranks_of(process.pid)) < 2:
            assert time.monotonic() < end, "the ranks never started"
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(ranks[-1], signal.SIGKILL)
        _, errors = process.communicate(timeout=LIMIT_S / 2)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in errors
    assert "rank" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the ranks in /proc")
def test_sigterm_leaves_no_rank_behind() -> None:
    """SIGTERM of the command ends its ranks, and then it, with status 143."""
    process = subprocess.Popen(
        [sys.executable, "-m", "standfast", "bench", "-b", "1M", "-e", "1M", "-n", "1000000"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + LIMIT_S / 2
        while len(ranks := ranks_of(process.pid)) < 2:
            assert time.monotonic() < end, "the ranks never started"
            time.sleep(0.02)
        process.terminate()
        assert process.wait(LIMIT_S / 2) == 128 + signal.SIGTERM
        assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    finally:
        process.kill()
        process.wait()


def test_the_machines_limits_are_plausible() -> None:
    """Each limit is measured, unless it needs two cores and there is one: rates and times."""
    found = limits.measure(_core.measure_limit)
    for limit in limits.LIMITS:
        best, median = found[limit.name]
        if best is None or median is None:
            continue
        assert (1e6 < median <= best < 1e13) if limit.is_rate else (1e-9 < best <= median < 1.0)
    assert found["copy"].median is not None
    with pytest.raises(ValueError, match="no such limit: pigeons"):
        _core.measure_limit("pigeons")
