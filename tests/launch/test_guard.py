"""The guardian's program alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.launch import guard
from tests.launch.support import lives, wait_until


def start_guard(directory: Path) -> subprocess.Popen[bytes]:
    """Start the guardian as the launcher does."""
    command = [sys.executable, "-I", "-S", guard.__file__, str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def start_group() -> subprocess.Popen[bytes]:
    """Start a process group of two that outlives its leader."""
    return subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"], start_new_session=True)


def test_kills_what_is_left_and_removes_the_directory(tmp_path: Path) -> None:
    """When the launcher's end closes without a goodbye, groups in care are killed, others not."""
    mine, gone = start_group(), start_group()
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "rank-0-gen1.json").write_text("{}")
    process = start_guard(directory)
    assert process.stdin is not None
    process.stdin.write(f"+{mine.pid}\n+{gone.pid}\n-{gone.pid}\n".encode())
    process.stdin.close()
    assert mine.wait(timeout=5) == -9
    process.wait(timeout=5)
    assert lives(gone.pid)
    assert not directory.exists()
    os.killpg(gone.pid, signal.SIGKILL)
    gone.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists segments")
def test_removes_segments_of_those_it_killed(tmp_path: Path) -> None:
    """Segments of a rank that is killed while it forms a group go with it; others keep theirs."""
    mine = start_group()
    shared = Path(guard.SHARED_MEMORY)
    left = shared / f"sf-{mine.pid}-0123456789ab"
    kept = shared / f"sf-{os.getpid()}-0123456789ab"
    try:
        for segment in (left, kept):
            segment.touch()
        process = start_guard(tmp_path / "job")
        assert process.stdin is not None
        process.stdin.write(f"+{mine.pid}\n".encode())
        process.stdin.close()
        assert mine.wait(timeout=5) == -9
        process.wait(timeout=5)
        assert not left.exists()
        assert kept.exists()
    finally:
        left.unlink(missing_ok=True)
        kept.unlink(missing_ok=True)


def test_goodbye(tmp_path: Path) -> None:
    """After a goodbye nothing is killed; the directory goes all the same."""
    group = start_group()
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "status.json").write_text("{}")
    process = start_guard(directory)
    process.communicate(f"+{group.pid}\n!\n".encode(), timeout=10)
    assert process.returncode == 0
    assert lives(group.pid)
    assert not directory.exists()
    os.killpg(group.pid, signal.SIGKILL)
    group.wait()
    wait_until(lambda: not lives(group.pid))
