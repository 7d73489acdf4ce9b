"""`--log-dir`: each rank's output in files of its own, byte for byte, over all generations."""

from __future__ import annotations

import errno
import os

from standfast import exits
from standfast.launch.spec import LaunchError


class Log:
    """One file. A disk that is full ends the file, not the job."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )

    def write(self, data: bytes) -> None:
        """Append what a rank wrote."""
        view = memoryview(data)
        try:
            while self._fd is not None and view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Logs:
    """The files of a job: rank-0.out, rank-0.err, ..."""

    def __init__(self, directory: str | None) -> None:
        """Make the directory; LaunchError if that is impossible."""
        self._directory = directory
        self._logs: dict[tuple[int, bool], Log] = {}
        if directory is None:
            return
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "OSError")
            text = f"--log-dir {directory}: {error.strerror} ({name})"
            raise LaunchError(text, status=exits.USAGE) from error

    def of(self, rank: int, *, stderr: bool) -> Log | None:
        """Return a rank's file, or None without --log-dir."""
        if self._directory is None:
            return None
        if (rank, stderr) not in self._logs:
            name = f"rank-{rank}.{'err' if stderr else 'out'}"
            self._logs[rank, stderr] = Log(os.path.join(self._directory, name))
        return self._logs[rank, stderr]

    def close(self) -> None:
        """Close all."""
        for log in self._logs.values():
            log.close()
