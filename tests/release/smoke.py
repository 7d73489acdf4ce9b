"""Jobs of two ranks in which one dies, with the standfast that this Python has installed.

What a wheel is tried with, by `make release` here and by cibuildwheel; it needs only the wheel.

    python tests/release/smoke.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

RANK = """
import array
import os
import signal
import sys
import time

import standfast

with standfast.init() as group:
    mine = array.array("d", [group.rank + 1.0] * 1000)
    group.all_sum(mine, out=mine)
    assert set(mine) == {3.0}, mine
    if group.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.all_sum(mine, out=mine)
    except standfast.PeerDied as error:
        print(f"rank {error.rank} died:", *group.links().values())
        raise SystemExit(75) from error
"""
LIMIT_S = 100
KILLED = 128 + 9


def check_where() -> None:
    """The package is the installed one, whole; without a GIL it has not brought that back."""
    import standfast
    from standfast import _core

    home = Path(standfast.__file__).resolve().parent
    if not home.is_relative_to(Path(sys.prefix).resolve()):
        raise SystemExit(f"error: {home} is no installed standfast")
    print(f"standfast of {home}, {Path(_core.__file__ or '').name}")
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys._is_gil_enabled():  # type: ignore[attr-defined]
        raise SystemExit("error: importing standfast has switched the GIL on")


def check_job(rank: Path, fabric: str, link: str, *launch: str) -> None:
    """A death is named by the survivor, and by the exit status; data went over this fabric."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("STANDFAST_")}
    environ["STANDFAST_FABRIC"] = fabric
    command = [sys.executable, "-m", "standfast", *launch, "--", sys.executable, str(rank)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=rank.parent,
        env=environ,
    )
    if done.returncode != KILLED or f"rank 1 died: {link}" not in done.stdout:
        text = f"{done.stdout}{done.stderr}"
        raise SystemExit(f"error: {command} ended with status {done.returncode}:\n{text}")
    print(f"two ranks over {fabric}: ended as they should")


def main() -> None:
    """Try what is installed."""
    check_where()
    with tempfile.TemporaryDirectory() as folder:
        rank = Path(folder) / "rank.py"
        rank.write_text(RANK, encoding="utf-8")
        check_job(rank, "shm", "shm", "run", "-n", "2")
        check_job(rank, "tcp", "tcp", "run", "-n", "2")
        check_job(rank, "verbs", "rdma", "emulate", "--macs", "2")


if __name__ == "__main__":
    main()
