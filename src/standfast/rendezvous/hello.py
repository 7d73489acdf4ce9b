"""What this rank says about itself."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
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

    It stands in the name of the directory beside the package, or, of an editable installation, in
    another place of those that are searched for modules. importlib.metadata would tell as well,
    but loads the email package for it, which costs each rank 20 ms at the start.
    """
    return version_in([Path(__file__).parents[2]]) or version_in(map(Path, sys.path)) or "unknown"


def version_in(places: Iterable[Path]) -> str:
    """Return the version of the first place that has one installed, or ""."""
    for place in places:
        found = [path.name for path in place.glob("standfast-*.dist-info")]
        if len(found) == 1:
            return found[0].removesuffix(".dist-info").partition("-")[2]
    return ""


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
