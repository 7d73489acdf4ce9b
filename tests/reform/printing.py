"""A process of a test, and the lines that it has printed."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Mapping, Sequence

LIMIT_S = 100.0


class Printing:
    """A process whose output, both streams, is read as it comes."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], fds: Sequence[int] = ()
    ) -> None:
        self.process = subprocess.Popen(
            command,
            env=env,
            pass_fds=fds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match in what is printed."""

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), LIMIT_S)
            match = found()
        assert match is not None, f"no {pattern!r} in:\n" + "\n".join(self.lines)
        return match

    def end(self) -> int:
        """Wait for its end; return its status."""
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status
