"""Finds the program before anything is started. The statuses are those of a shell."""

from __future__ import annotations

import errno
import os

from standfast import exits
from standfast.launch.spec import LaunchError


def find_program(name: str, search_path: str) -> str:
    """Return the path of the program, or raise LaunchError with status 127 or 126."""
    if not name:
        raise LaunchError("the program's name is empty", status=exits.NOT_FOUND)
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(folder or ".", name) for folder in search_path.split(os.pathsep)]
    found = [path for path in candidates if os.path.exists(path)]
    usable = next((path for path in found if _executable(path)), None)
    if usable is not None:
        return os.path.abspath(usable)
    raise _not_executable(found[0]) if found else _not_found(name)


def cannot_exec(path: str, error: OSError) -> LaunchError:
    """Explain why the kernel refused a program that is there and executable."""
    if error.errno == errno.ENOENT:
        message = f"cannot start {path}: the interpreter in its first line (#!) does not exist"
        return LaunchError(message, status=exits.NOT_FOUND)
    name = errno.errorcode.get(error.errno or 0, "OSError")
    hint = None
    if error.errno == errno.ENOEXEC:
        hint = "a script needs a first line such as #!/bin/sh"
    message = f"cannot start {path}: execve: {os.strerror(error.errno or 0)} ({name})"
    return LaunchError(message, status=exits.NOT_EXECUTABLE, hint=hint)


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _not_executable(path: str) -> LaunchError:
    if os.path.isdir(path):
        return LaunchError(f"cannot start {path}: it is a directory", status=exits.NOT_EXECUTABLE)
    hint = f"-- python {path}" if path.endswith(".py") else f"chmod +x {path}"
    return LaunchError(
        f"cannot start {path}: it is not executable", status=exits.NOT_EXECUTABLE, hint=hint
    )


def _not_found(name: str) -> LaunchError:
    if "/" in name:
        return LaunchError(f"cannot start {name}: no such file", status=exits.NOT_FOUND)
    hint = None
    if os.path.exists(name):
        hint = f"-- python {name}" if name.endswith(".py") else f"-- ./{name}"
    return LaunchError(f"cannot start {name}: not found on PATH", status=exits.NOT_FOUND, hint=hint)
