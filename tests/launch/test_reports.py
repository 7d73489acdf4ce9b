"""Report files, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standfast.errors import GroupAborted, PeerDied, RendezvousError, StandfastError
from standfast.launch.reports import read_reports


def write(directory: Path, rank: int, content: str, generation: int = 1) -> None:
    """Write a report file as a rank would."""
    (directory / f"rank-{rank}-gen{generation}.json").write_text(content)


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (PeerDied("rank 2 died", rank=2, host="a", detected_ns=70), (2,)),
        (PeerDied("rank 0 died", rank=0), (0,)),
        (RendezvousError("no", missing=[1, 3]), (1, 3)),
        (GroupAborted("enough"), ()),
    ],
)
def test_errors_of_the_library_are_understood(
    tmp_path: Path, error: StandfastError, names: tuple[int, ...]
) -> None:
    """What StandfastError.to_dict() gives comes back with its names and times."""
    write(tmp_path, 1, json.dumps({"error": error.to_dict(), "raised_ns": 90}))
    (report,) = read_reports(str(tmp_path), generation=1, ranks=4).values()
    assert (report.kind, report.type, report.message) == (
        error.kind,
        type(error).__name__,
        error.message,
    )
    assert report.names == names
    assert (report.raised_ns, report.seen_ns) == (90, error.detected_ns or 90)
    assert report.fields == error.to_dict()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"error": 1, "raised_ns": 1}',
        '{"error": {"kind": "died"}}',
        "[" * 99999,
        '{"error": {"kind": "died", "type": "T", "message": "m", "rank": "x"}, "raised_ns": 1}',
    ],
)
def test_nonsense_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    """A broken file never breaks the launcher."""
    write(tmp_path, 0, content)
    assert read_reports(str(tmp_path), generation=1, ranks=2) == {}


def test_only_this_generation_counts(tmp_path: Path) -> None:
    """Reports of an older generation are not taken for this one's."""
    write(tmp_path, 0, json.dumps({"error": PeerDied("x", rank=1).to_dict(), "raised_ns": 1}))
    assert read_reports(str(tmp_path), generation=2, ranks=2) == {}
