"""Under mpirun rank 0's address travels by MPI's broadcast: with a module in place of mpi4py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 60.0
# A world of the size that mpirun says, whose broadcast goes through a file.
MPI4PY = """
import os, types
rc = types.SimpleNamespace(finalize=None)
"""
MPI = """
import os, time
from mpi4py import rc
PLACE = os.environ["FAKE_MPI"]
class Request:
    def __init__(self, letter):
        self.letter = letter
    def Test(self):
        if not os.path.exists(PLACE + "/letter"):
            return False
        with open(PLACE + "/letter", "rb") as file:
            self.letter[:] = file.read()
        return True
class World:
    def Get_rank(self):
        return int(os.environ.get("FAKE_RANK", os.environ["OMPI_COMM_WORLD_RANK"]))
    def Get_size(self):
        return int(os.environ.get("FAKE_SIZE", os.environ["OMPI_COMM_WORLD_SIZE"]))
    def Ibcast(self, letter, root):
        if self.Get_rank() == root:
            with open(PLACE + "/letter.new", "wb") as file:
                file.write(letter)
            os.rename(PLACE + "/letter.new", PLACE + "/letter")
        return Request(letter)
COMM_WORLD = World()
ended = False
def Is_initialized():
    return "FAKE_IDLE" not in os.environ
def Is_finalized():
    return ended
def Finalize():
    global ended
    ended = True
    with open(f"{PLACE}/finalized-{COMM_WORLD.Get_rank()}", "w"):
        pass
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a package that looks like mpi4py."""
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text(MPI4PY)
    (package / "MPI.py").write_text(MPI)
    return tmp_path


def rank(place: Path, number: int, code: str, **environ: str) -> subprocess.Popen[str]:
    """Start a rank as Open MPI's mpirun would, of two, without a meeting point."""
    foreign = ("OMPI_", "MASTER_", "STANDFAST_", "PMIX_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    path = os.pathsep.join(filter(None, [str(place), kept.get("PYTHONPATH", "")]))
    own = {"OMPI_COMM_WORLD_RANK": str(number), "OMPI_COMM_WORLD_SIZE": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": path, "FAKE_MPI": str(place), **own, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(*ranks: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Wait for ranks; return status, stdout and stderr of each."""
    found = []
    for each in ranks:
        try:
            out, err = each.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            each.kill()
            out, err = each.communicate()
        found.append((each.returncode, out.strip(), err))
    return found


def test_they_meet_by_a_broadcast(place: Path) -> None:
    """Two ranks that know nothing but their numbers form a group; MPI is ended in good order."""
    code = "import standfast; g = standfast.init(); print(g.rank, g.all_sum(1.0 + g.rank))"
    first, second = ends(rank(place, 0, code), rank(place, 1, code))
    assert (first[:2], second[:2]) == ((0, "0 3.0"), (0, "1 3.0")), first[2] + second[2]
    assert (place / "finalized-0").exists()
    assert (place / "finalized-1").exists()


def test_mpi_is_not_ended_after_a_fault(place: Path) -> None:
    """A rank that lost a peer does not call what could wait for that peer; its status is 75."""
    code = """
import os, signal, standfast
g = standfast.init()
if g.rank:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    g.all_sum(1.0)
except standfast.PeerDied as error:
    print("lost", error.rank)
"""
    first, second = ends(rank(place, 0, code), rank(place, 1, code))
    assert (first[:2], second[0]) == ((0, "lost 1"), -9), first[2] + second[2]
    assert not list(place.glob("finalized-*"))


def test_a_program_that_has_mpi_ends_it_itself(place: Path) -> None:
    """Where mpi4py was imported before, its end is the program's own matter."""
    code = "from mpi4py import MPI, rc; import standfast; standfast.init(); print(rc.finalize)"
    first, second = ends(rank(place, 0, code), rank(place, 1, code))
    assert (first[:2], second[:2]) == ((0, "None"), (0, "None")), first[2] + second[2]
    assert not list(place.glob("finalized-*"))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FAKE_RANK": "0", "FAKE_SIZE": "1"}, "mpirun says rank 1 of 2, mpi4py rank 0 of 1"),
        ({"FAKE_IDLE": "1"}, "MPI is not running"),
    ],
)
def test_an_mpi4py_that_is_of_no_use(place: Path, environ: dict[str, str], words: str) -> None:
    """It is named, with the other way out, and the status is 78."""
    ((status, _, err),) = ends(rank(place, 1, "import standfast; standfast.init()", **environ))
    assert status == 78
    assert words in err
    assert "STANDFAST_COORDINATOR=host:port" in err


def test_one_that_cannot_be_loaded(place: Path) -> None:
    """So is one whose library is not there."""
    (place / "mpi4py" / "MPI.py").write_text("raise ImportError('libmpi.so.40 is not there')")
    ((status, _, err),) = ends(rank(place, 1, "import standfast; standfast.init()"))
    assert status == 78
    assert "mpi4py is installed, but cannot be loaded: libmpi.so.40 is not there" in err


def test_the_broadcast_is_bounded(place: Path) -> None:
    """If rank 0 never calls, the others say so instead of waiting for ever."""
    code = """
from standfast import mpi
mpi.meeting(1, 2, limit_s=0.3)
"""
    began_s = time.monotonic()
    ((status, _, err),) = ends(rank(place, 1, code))
    assert status != 0
    assert "waited 0.3 s for the broadcast of rank 0's address" in err
    assert time.monotonic() - began_s < LIMIT_S


def test_a_meeting_point_needs_no_mpi(place: Path) -> None:
    """What mpirun was told is believed, and mpi4py is not loaded."""
    code = "import sys; from standfast import identity; print(identity.resolve().coordinator); "
    code += "print('mpi4py' in sys.modules)"
    told = {"MASTER_ADDR": "10.0.0.9", "STANDFAST_PORT": "5"}
    ((status, out, err),) = ends(rank(place, 1, code, **told))
    assert (status, out.split()) == (0, ["10.0.0.9:5", "False"]), err
