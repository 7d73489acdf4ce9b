"""A rank that was failed by a peer tells torchrun so, and is never the root cause by its date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standfast import torch_report
from standfast.errors import NoProgress, PeerDied


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was written yet."""
    monkeypatch.setattr(torch_report, "_written", [])
    return


def test_the_form_is_torchs() -> None:
    """A message with its extra information; the date is seconds as text, and lies in the future."""
    written = json.loads(torch_report.text_of(PeerDied("rank 2 died", rank=2), 1000.9))
    assert written["message"]["message"].startswith("PeerDied: rank 2 died")
    assert written["message"]["extraInfo"]["timestamp"] == str(1000 + torch_report.LATER_S)


def test_only_what_is_about_another_rank(tmp_path: Path) -> None:
    """An error about nobody, or about this rank, is dated by torch as any other."""
    path = tmp_path / "error.json"
    torch_report.write(path, 1, NoProgress("nothing moves"))
    torch_report.write(path, 1, PeerDied("rank 1 died", rank=1))
    assert not path.exists()
    torch_report.write(path, 1, PeerDied("rank 2 died", rank=2))
    torch_report.write(path, 1, PeerDied("rank 3 died", rank=3))
    assert "rank 2" in path.read_text()


def test_it_is_there_at_the_end(tmp_path: Path) -> None:
    """What @record has written over it is replaced once more; nothing is written unasked."""
    path = tmp_path / "error.json"
    torch_report.again()
    torch_report.write(path, 1, PeerDied("rank 2 died", rank=2))
    path.write_text("{}")
    torch_report.again()
    assert "rank 2" in path.read_text()


def test_trouble_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that is gone costs nothing but a warning."""
    torch_report.write(tmp_path / "gone/error.json", 1, PeerDied("rank 2 died", rank=2))
    assert "could not be written" in caplog.text
