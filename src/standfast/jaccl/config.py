"""Who is in a JACCL group, and over which devices: from arguments, or from stock's variables.

Pure, but for reading the device file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from standfast import settings
from standfast.endpoint import parse_endpoint
from standfast.errors import ConfigError
from standfast.jaccl import files
from standfast.jaccl.topology import choose
from standfast.matrix import Matrix

AllGather = Callable[[bytes], Sequence[bytes]]
"""Gives all ranks the bytes of all, by rank; the lengths are the same on all ranks."""


@dataclass(frozen=True)
class Config:
    """Who is in a JACCL group, and over which devices.

    Args:
        rank: this process's number, from 0.
        devices: JACCL's device matrix: the path of a file, or its rows. Row i, column j names rank
            i's ends of the cables to rank j: None, a name, or a list of names.
        coordinator: "host:port" where rank 0 listens; not needed with all_gather.
        prefer_ring: a ring, if the devices make one, where they make a mesh as well.
        all_gather: takes the place of rank 0's port while the group is formed: a function of bytes
            that returns the bytes of all ranks. How long it blocks is up to it. No connection stays
            open then, so that only clocks tell of a dead rank.

    Raises:
        ConfigError: names the row, the column and the host where the devices are wrong.
    """

    rank: int
    devices: str | os.PathLike[str] | Sequence[Sequence[Any]] | Matrix
    coordinator: str | None = None
    prefer_ring: bool = False
    all_gather: AllGather | None = None
    matrix: Matrix = field(init=False, repr=False)
    topology: Literal["mesh", "ring"] = field(init=False)
    """What stock chooses for these devices, on all ranks."""

    def __post_init__(self) -> None:
        """Read the devices, and check all."""
        here = socket.gethostname()
        matrix = files.whole(self.devices, rank=self.rank, host=here)
        size = len(matrix.rows)
        if isinstance(self.rank, bool) or not isinstance(self.rank, int):
            raise ConfigError(f"rank={self.rank!r} is not a whole number")
        if not 0 <= self.rank < size:
            raise ConfigError(
                f"rank {self.rank} is not one of the {size} ranks 0..{size - 1} of {matrix.source}"
            )
        if self.coordinator is not None:
            parse_endpoint(self.coordinator)
        elif self.all_gather is None:
            raise ConfigError(
                "a JACCL group needs a coordinator",
                hint="coordinator='host:port' of rank 0 (JACCL_COORDINATOR), or all_gather=",
            )
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "topology", choose(matrix, prefer_ring=self.prefer_ring))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.matrix.rows)


@dataclass(frozen=True)
class Options:
    """What stock has no setting for. None: from the environment, else the default.

    Args:
        timeout_s: the one deadline for forming the group, in seconds; 60 by default.
        frames: "26.3": messages of up to 512 KiB, as since macOS 26.3; "4k": of 4 KiB, as before.
            The ranks do not tell each other, so it must be what all of them have. "auto": what
            stock has on this system; "26.3" where it does not run.
        key: pre-shared key of at least 16 bytes, by which both ends of each side-channel connection
            prove themselves. A stock rank can't: a group with a key is one of our ranks alone.
        settings: further fields of ``standfast.settings.Settings``, such as progress_s.
    """

    timeout_s: float | None = None
    frames: Literal["auto", "26.3", "4k"] | None = None
    key: str | bytes | None = field(default=None, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def overrides(self) -> dict[str, Any]:
        """Return all of it, as arguments for `settings.load`."""
        named = {"init_timeout_s": self.timeout_s, "jaccl_frames": self.frames, "key": self.key}
        return {**self.settings, **named}


def from_env(environ: Mapping[str, str] | None = None) -> Config | None:
    """Return the group that stock's variables describe, or None if they describe none.

    ``JACCL_RANK``, ``JACCL_IBV_DEVICES`` (a file), ``JACCL_COORDINATOR`` and ``JACCL_RING``
    (present or not), or else ``MLX_RANK``, ``MLX_IBV_DEVICES``, ``MLX_JACCL_COORDINATOR`` and
    ``MLX_JACCL_RING``.

    Raises:
        ConfigError: some are there and others are not, or one is not what it must be.
    """
    found = settings.jaccl_variables(environ)
    if not {"devices", "coordinator"} & found.keys():
        return None
    missing = [name for name in ("rank", "devices", "coordinator") if name not in found]
    if missing:
        seen = ", ".join(f"{variable}={value!r}" for variable, value in found.values())
        lacking = ", ".join(" or ".join(settings.JACCL_VARIABLES[name]) for name in missing)
        raise ConfigError(f"{seen} is set, but {lacking} is not")
    variable, text = found["rank"]
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{variable}={text!r} is not a rank: a whole number from 0")
    return Config(
        rank=int(text),
        devices=Path(found["devices"][1]),
        coordinator=found["coordinator"][1],
        prefer_ring="ring" in found,
    )
