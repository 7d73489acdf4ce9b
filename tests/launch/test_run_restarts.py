"""`--restarts`: formed again under the next generation, once every old process is reaped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.support import python, run, run_code, run_json


def test_formed_again() -> None:
    """After a failure the ranks start again under generation 2, with a new listener."""
    code = """
print(f"generation {GENERATION}", os.environ["STANDFAST_COORDINATOR"], flush=True)
if GENERATION == 1 and RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = run_code(["-n", "2", "--restarts", "3"], code)
    assert ended.status == 0
    lines = [line.split()[1:] for line in ended.out.splitlines()]
    assert sorted(generation for _, generation, _ in lines) == ["1", "1", "2", "2"]
    assert len({address for _, _, address in lines}) == 2
    assert "rank 1 was ended by SIGKILL (generation 1," in ended.block[0]
    again = "standfast: all processes are gone; forming generation 2 (restart 1 of 3)"
    assert ended.block[-1] == again


def test_old_processes_are_gone_before_new_ones_start(tmp_path: Path) -> None:
    """At most one process per rank and generation: also children of old ranks are gone."""
    code = """
me = f"{sys.argv[1]}/pid-{GENERATION}-{RANK}"
if GENERATION > 1:
    for name in os.listdir(sys.argv[1]):
        if name.startswith(f"pid-{GENERATION - 1}-"):
            with open(f"{sys.argv[1]}/{name}") as file:
                for pid in file.read().split():
                    assert not os.path.exists(f"/proc/{pid}"), (name, pid)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
touch(me, f"{os.getpid()} {child}")
if GENERATION == 3:
    sys.exit(0)
if RANK == 0:
    wait_for(f"{sys.argv[1]}/pid-{GENERATION}-1")
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
forever()
"""
    limits = ["--grace-s", "0.1", "--kill-after-s", "0.1"]
    place = tmp_path / "pids"
    place.mkdir()
    ended = run(["-n", "2", "--restarts", "2", *limits], [*python(code), str(place)])
    assert ended.status == 0, ended.err
    assert len(list(place.iterdir())) == 6


def test_used_up() -> None:
    """When the restarts are used up, the status is 75, and every generation had its block."""
    ended, report = run_json(["-n", "2", "--restarts", "2"], "if RANK == 0: sys.exit(9)")
    assert ended.status == 75
    assert [each["generation"] for each in report["generations"]] == [1, 2, 3]
    assert report["restarts"] == 2
    assert sum("the group failed: rank 0 failed with exit 9" in line for line in ended.block) == 3
    assert ended.block[-1] == "standfast: exit status 75 (the restarts are used up)"


@pytest.mark.parametrize("status", [2, 76, 78])
def test_not_again(status: int) -> None:
    """Usage, mismatch and configuration errors are not tried again."""
    ended = run_code(["-n", "1", "--restarts", "3"], f"sys.exit({status})")
    assert ended.status == status
    assert "forming" not in ended.err


def test_a_cause_later_on_that_must_not_be_retried() -> None:
    """The last generation's cause decides."""
    ended = run_code(["-n", "1", "--restarts", "3"], "sys.exit({1: 5, 2: 78}[GENERATION])")
    assert ended.status == 78


def test_time_limit_spans_restarts() -> None:
    """--timeout-s limits the whole job, not one generation."""
    ended = run_code(
        ["-n", "1", "--restarts", "9999", "--timeout-s", "1"], "time.sleep(.1); exit(1)"
    )
    assert ended.status == 124
    assert ended.seconds < 15
