"""`standfast bench` over several hosts: real sshds on loopback, each process of the job a rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.launch.sshd import Farm, farm_of_two
from tests.launch.support import Ended, run

BENCH = [sys.executable, "-m", "standfast", "bench", "-n", "3", "-w", "0", "--again", "0"]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Two hosts."""
    yield from farm_of_two(tmp_path_factory.mktemp("farm"))


def bench(farm: Farm, *arguments: str) -> Ended:
    """Run it with two ranks on each host."""
    hosts = ["--ssh", farm.ssh, "--hosts", "host-a:2,host-b:2"]
    return run(hosts, [*BENCH, *arguments])


def test_rank_0_writes_the_table(farm: Farm) -> None:
    """Two operations at three sizes are six rows, all from rank 0."""
    ended = bench(farm, "all_reduce,all_gather", "-b", "32", "-e", "32K", "-f", "32")
    assert ended.status == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines() if "float32" in line]
    assert {row[0] + row[1] for row in rows} == {"[r0host-a]"}
    assert [row[2] for row in rows] == ["32", "1024", "32768"] * 2
    assert "4 ranks" in ended.out


def test_json_is_one_object(farm: Farm) -> None:
    """With --json the ranks' only line is rank 0's document, which a program can read."""
    ended = bench(farm, "barrier", "--json")
    assert ended.status == 0, ended.err
    (line,) = ended.out.splitlines()
    document = json.loads(line.removeprefix("[r0 host-a] "))
    assert [result["op"] for result in document["results"]] == ["barrier"]


def test_a_mistake_ends_all_ranks(farm: Farm) -> None:
    """What needs jobs of its own is refused on every rank, with the status of a usage error."""
    ended = bench(farm, "--compare", "gloo")
    assert ended.status == 2
    assert "--compare starts jobs of its own" in ended.err
