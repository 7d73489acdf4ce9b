"""A child that is there, but waits for a word before it becomes the program.

The warden forks it while it still has one thread, and lets it go when the watch stands: the program
never runs unwatched, and a fork never meets a thread.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from standfast.launch.parts import die_with_parent
from standfast.launch.program import cannot_exec

GO = b"!"


class HeldProgram:
    """A forked child, before it executes the program."""

    def __init__(
        self,
        path: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        not_inherited: Sequence[int] = (),
    ) -> None:
        """Fork. `not_inherited`: inheritable descriptors that are none of the program's."""
        warden = os.getpid()
        read_fd, self._write_fd = os.pipe()
        self.pid: int = os.fork()
        if self.pid == 0:
            os.close(self._write_fd)
            try:
                die_with_parent(warden)
                for descriptor in not_inherited:
                    os.set_inheritable(descriptor, False)
                if os.read(read_fd, 1) == GO:
                    _become(path, command, environment)
            finally:
                os._exit(os.EX_OSERR)
        os.close(read_fd)

    def release(self) -> None:
        """Let it execute the program."""
        os.write(self._write_fd, GO)
        os.close(self._write_fd)

    def abandon(self) -> None:
        """Let it end instead, and reap it."""
        os.close(self._write_fd)
        os.waitpid(self.pid, 0)


def _become(path: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Execute the program; if the kernel refuses, end as a shell would."""
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):  # Python ignores these, its programs must not
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(path, list(command), environment)
    except OSError as error:
        refused = cannot_exec(path, error)
        sys.stderr.write(f"standfast: {refused}\n")
        sys.stderr.flush()
        os._exit(refused.status)
