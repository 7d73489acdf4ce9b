"""What this rank says about itself."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec

from standfast.errors import ConfigError
from standfast.identity import Identity
from standfast.rendezvous.host import host_id, host_name
from standfast.rendezvous.protocol import NAME_MAX, Hello
from standfast.settings import Settings, agreement


@functools.cache
def package_version() -> str:
    """Return the version that is installed, "unknown" in a source tree.

    It stands in the name of the directory beside the package. importlib.metadata would tell as
    well, but loads the email package for it, which costs each rank 20 ms at the start.
    """
    beside = Path(__file__).parents[2].glob("standfast-*.dist-info")
    found = [path.name.removesuffix(".dist-info").partition("-")[2] for path in beside]
    return found[0] if len(found) == 1 else _version_elsewhere()


def _version_elsewhere() -> str:
    """Ask importlib.metadata: it also knows editable installations."""
    import importlib.metadata

    try:
        return importlib.metadata.version("standfast")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def hello_of(identity: Identity, settings: Settings, name: str, *, wires: bool) -> Hello:
    """Return this rank's hello, still without its data port.

    Raises:
        ConfigError: the group's name or the job id is too long.
    """
    for what, value in (("name", name), ("job id", identity.job_id or "")):
        if len(value) > NAME_MAX:
            raise ConfigError(f"the group's {what} has {len(value)} characters, over {NAME_MAX}")
    return Hello(
        version=package_version(),
        size=identity.size,
        generation=identity.generation,
        wires=wires,
        name=name,
        job_id=identity.job_id,
        settings=agreement(settings),
        host=host_name(),
        host_id=host_id(),
        pid=os.getpid(),
        port=0,
        addresses=[],
        explicit=False,
    )


def with_data(hello: Hello, port: int, addresses: list[str], *, explicit: bool) -> Hello:
    """Return the hello with where this rank listens for data."""
    return msgspec.structs.replace(hello, port=port, addresses=addresses, explicit=explicit)
