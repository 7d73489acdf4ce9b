"""Slurm's ways of writing hosts and counts, read as Slurm means them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from standfast import slurm
from standfast.errors import ConfigError

LISTS = [
    ("a", ["a"]),
    ("a,b", ["a", "b"]),
    ("gnode[10,20-22],x1", ["gnode10", "gnode20", "gnode21", "gnode22", "x1"]),
    ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("r[1-2]n[3,5].lan", ["r1n3.lan", "r1n5.lan", "r2n3.lan", "r2n5.lan"]),
    ("a[1]b", ["a1b"]),
]


@pytest.mark.parametrize(("text", "expected"), LISTS)
def test_a_host_list(text: str, expected: list[str]) -> None:
    """Ranges, lists, leading zeros, and several brackets in a name."""
    assert slurm.hosts("SLURM_STEP_NODELIST", text) == expected


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm is not installed")
@pytest.mark.parametrize(("text", "expected"), LISTS)
def test_slurm_itself_reads_it_so(text: str, expected: list[str]) -> None:
    """`scontrol show hostnames` names the same hosts."""
    command = ["scontrol", "show", "hostnames", text]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"scontrol has no configuration here: {answer.stderr.strip()}")
    assert answer.stdout.split() == expected


@pytest.mark.parametrize(
    "text", ["", "a,", "a[", "a]", "a[]", "a[x]", "a[3-1]", "a[1-]", "a b", "a[1-999999999]"]
)
def test_what_is_no_host_list(text: str) -> None:
    """The variable and its value are named."""
    with pytest.raises(ConfigError, match="SLURM_STEP_NODELIST="):
        slurm.hosts("SLURM_STEP_NODELIST", text)


def test_tasks_per_node() -> None:
    """Repetitions are spelled out."""
    assert slurm.tasks_per_node("V", "2(x3),1") == [2, 2, 2, 1]
    assert slurm.tasks_per_node("V", "4") == [4]
    for text in ("", "2(x", "a", "2(x3),", "2(x999999999)"):
        with pytest.raises(ConfigError, match="V="):
            slurm.tasks_per_node("V", text)


def test_the_port_is_jaxs() -> None:
    """job % 4096 + 61440: every job has one, and it is a port."""
    assert slurm.port(0) == 61440
    assert slurm.port(4095) == 65535
    assert slurm.port(4097) == 61441
