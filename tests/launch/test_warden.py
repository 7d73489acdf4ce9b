"""How a warden ends, where the cause and the program's own end come at the same moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from standfast.errors import PeerDied, StandfastError
from standfast.launch.inbox import SIGNALS
from standfast.launch.warden import Faults, Warden

BROKEN_CONNECTION = "raise SystemExit(1)"


class WatchOfRank0:
    """A watch whose cause comes while it waits for one, as from the watch's own thread."""

    rank = 0

    def __init__(self, faults: Faults, cause: StandfastError | None) -> None:
        self._faults = faults
        self._cause = cause
        self.ended = ""

    def report_failure(self, error: BaseException) -> None:
        """Hand the cause over, which is all the same to who asks for the last failure."""
        assert "exit status 1" in str(error)
        if self._cause is not None:
            self._faults.put(self._cause)

    def last_failure(self) -> StandfastError | None:
        """Return the cause."""
        return self._cause

    def end(self, how: str) -> str:
        """Take note of it."""
        self.ended = how
        return how


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A warden leaves signals to the system when it is done, for it ends then; this process not."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    wakeup_fd = signal.set_wakeup_fd(-1)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)
    signal.set_wakeup_fd(wakeup_fd)


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with 1, as one does whose library has lost a connection."""
    started = subprocess.Popen([sys.executable, "-c", BROKEN_CONNECTION])
    yield started
    # The warden has reaped it.
    started.returncode = 1


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (PeerDied("rank 1 on b died", rank=1, here=0), 75),
        (None, 1),
        (PeerDied("rank 0 itself", rank=0, here=0), 1),
    ],
)
def test_a_cause_that_comes_with_the_programs_own_end_decides(
    program: subprocess.Popen[bytes], cause: StandfastError | None, status: int
) -> None:
    """The status is that of the peer's loss, if there was one, although nobody took it before."""
    faults = Faults()
    watch = WatchOfRank0(faults, cause)
    warden = Warden(watch, faults, program.pid, "train.py", 1.0)  # type: ignore[arg-type]
    assert warden.run(0.5) == status
    assert watch.ended == "failed"
