"""How ranks of a collective group of Ray's find each other, with a folder in place of its store."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from standfast import RendezvousError
from standfast.ray.meeting import Party, meet
from tests.ranks import run_ranks


class FolderBoard:
    """One entry, in a file."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, "entry")

    def read(self) -> bytes | None:
        """Return the entry, or None."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, entry: bytes) -> None:
        """Put an entry there."""
        new = self._path.with_name("new")
        new.write_bytes(entry)
        new.replace(self._path)

    def clear(self) -> None:
        """Remove the entry."""
        self._path.unlink(missing_ok=True)


def party(rank: int, size: int, folder: str) -> Party:
    """Return a rank of a group named "g"."""
    return Party(FolderBoard(folder), rank, size, "g", "127.0.0.1")


def joins(folder: str, begin: str = "") -> list[Any]:
    """Meet as the rank that the environment says, and add up; rank 0 waits until rank 1 is there.

    By the time rank 0 may begin, rank 1 has seen what was there before.
    """
    rank, size = int(os.environ["STANDFAST_RANK"]), int(os.environ["STANDFAST_WORLD_SIZE"])
    if begin and rank == 1:
        assert FolderBoard(folder).read() is not None
        Path(begin).touch()
    while begin and rank == 0 and not Path(begin).exists():
        time.sleep(0.01)
    with meet(party(rank, size, folder)) as group:
        return [group.name, float(group.all_sum(1.0))]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_meet(size: int, tmp_path: Path) -> None:
    """They form a group of the name they were given, and leave no entry."""
    for ended in run_ranks(size, joins, str(tmp_path), form=False):
        assert ended.value == ["ray:g", float(size)]
    assert FolderBoard(str(tmp_path)).read() is None


def test_an_old_entry_is_left_for_the_new_one(tmp_path: Path) -> None:
    """What a killed rank 0 has left leads nowhere: who has read it follows the new one."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    entry = json.dumps({"address": address, "key": "ab" * 32}).encode()
    FolderBoard(str(tmp_path)).write(entry)
    ended = run_ranks(3, joins, str(tmp_path), str(tmp_path / "begin"), form=False)
    assert [each.value for each in ended] == [["ray:g", 3.0]] * 3


def test_nobody_has_said_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rank 0 the deadline ends it, and the error names the rank and what to do."""
    monkeypatch.setenv("STANDFAST_INIT_TIMEOUT_S", "0.3")
    with pytest.raises(RendezvousError) as caught:
        meet(party(1, 2, str(tmp_path)))
    assert (caught.value.rank, caught.value.missing) == (0, (0,))
    assert str(caught.value).startswith(
        "rank 1 of 2 of the group ray:g waited 0.3 s for rank 0, which has not said in Ray's store"
    )


def test_a_rank_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 names who is missing, and its entry is gone."""
    monkeypatch.setenv("STANDFAST_INIT_TIMEOUT_S", "0.3")
    with pytest.raises(RendezvousError) as caught:
        meet(party(0, 3, str(tmp_path)))
    assert tuple(caught.value.missing or ()) == (1, 2)
    assert FolderBoard(str(tmp_path)).read() is None
