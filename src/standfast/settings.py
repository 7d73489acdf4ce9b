"""Every setting: its environment variables, default and meaning. The class Settings is the table.

`load` is called once per group by init(); `rows` lists the table for commands and documents. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from standfast import matrix
from standfast.errors import ConfigError
from standfast.matrix import Matrix

T = TypeVar("T")

# What stock JACCL reads, of which the first that is there counts; see standfast.jaccl.
JACCL_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "rank": ("JACCL_RANK", "MLX_RANK"),
    "devices": ("JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"),
    "coordinator": ("JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"),
    "ring": ("JACCL_RING", "MLX_JACCL_RING"),
}
# The macOS release with which stock began to send large messages.
LARGE_FRAMES_SINCE = (26, 3)
KEY_BYTES_MIN = 16
LIMIT_S_MIN = 1.0
HEARTBEAT_S = 0.5
# In groups of more than MANY ranks rank 0 has so many links that it listens less often.
MANY = 64
HEARTBEAT_MANY_S = 1.0
HINT_S = 3.0
SILENCE_S = 20.0
# Limits that are not given keep these distances from those that are.
HINT_SHARE = 0.5
HEARTBEAT_SHARE = 1 / 3
SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class Secret(bytes):
    """Bytes that never show themselves: not in a repr, an f-string, a log line or a traceback."""

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__


class Row(NamedTuple):
    """One setting, as `rows` lists it."""

    name: str
    variables: tuple[str, ...]
    default: object
    meaning: str
    shared: bool


# Readers turn an argument or a variable's text into a setting; ValueError says what is wanted.


def seconds(value: object) -> float:
    """Read a positive, finite number of seconds."""
    number = _number(value)
    if not number > 0:
        raise ValueError("must be a number of seconds above 0")
    return number


def seconds_or_zero(value: object) -> float:
    """Read a finite number of seconds, 0 included."""
    number = _number(value)
    if number < 0:
        raise ValueError("must be a number of seconds, 0 or more")
    return number


def limit(value: object) -> float:
    """Read a limit that ends a group: at least 1 s, since shorter ones are false alarms."""
    number = _number(value)
    if number < LIMIT_S_MIN:
        raise ValueError(f"must be at least {LIMIT_S_MIN:g} s")
    return number


def limit_or_off(value: object) -> float:
    """Read a limit as `limit` does, or 0 for none."""
    number = _number(value)
    if number != 0 and number < LIMIT_S_MIN:
        raise ValueError(f"must be 0 (off) or at least {LIMIT_S_MIN:g} s")
    return number


def _number(value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("must be a number of seconds")
    return number


def switch(value: object) -> bool:
    """Read True or False, or 1/0, true/false, yes/no, on/off."""
    if isinstance(value, bool):
        return value
    found = SWITCHES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be one of 1, 0, true, false, yes, no, on, off")
    return found


def word(*allowed: str) -> Callable[[object], str]:
    """Return a reader of one of the given words."""

    def read(value: object) -> str:
        if isinstance(value, str) and value.lower() in allowed:
            return value.lower()
        raise ValueError(f"must be one of {', '.join(allowed)}")

    return read


def text(value: object) -> str:
    """Read a text that is not empty."""
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("must not be empty")


def descriptor(value: object) -> int:
    """Read the number of an open file descriptor."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError("must be the number of a file descriptor")


def device_matrix(value: object) -> str | Matrix:
    """Read the path of a device file, or take its rows."""
    if isinstance(value, Matrix):
        return value
    return matrix.parse(value, "devices") if isinstance(value, (list, tuple)) else text(value)


def secret(value: object) -> Secret:
    """Read a key of at least 16 bytes; a text stands for its UTF-8 bytes."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, (bytes, bytearray)):
        raise ValueError("must be bytes or text")
    if len(value) < KEY_BYTES_MIN:
        raise ValueError(f"must have at least {KEY_BYTES_MIN} bytes, and has {len(value)}")
    return Secret(value)


def setting(
    default: T, read: Callable[[object], Any], *variables: str, meaning: str, shared: bool = False
) -> T:
    """Make a field of Settings. `shared`: all ranks must have the same value."""
    metadata = {"read": read, "variables": variables, "meaning": meaning, "shared": shared}
    return dataclasses.field(default=default, repr=read is not secret, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """All settings of a group. An argument wins over the environment, that over the default."""

    fabric: str = setting(
        "auto",
        word("auto", "shm", "tcp", "verbs"),
        "STANDFAST_FABRIC",
        shared=True,
        meaning="what carries data; auto: shm between ranks of one host, tcp between hosts; verbs:"
        " RDMA, and nothing else",
    )
    devices: str | Matrix | None = setting(  # noqa: RUF009 - a field, and its default is None
        None,
        device_matrix,
        "STANDFAST_DEVICES",
        "JACCL_IBV_DEVICES",
        "MLX_IBV_DEVICES",
        meaning="for fabric=verbs: JACCL's device file, or its rows; without it, the only device"
        " with a link",
    )
    rdma_library: str | None = setting(
        None,
        text,
        "STANDFAST_RDMA_LIBRARY",
        meaning="the verbs library to load in place of the system's",
    )
    topology: str = setting(
        "auto",
        word("auto", "mesh", "ring", "direct", "two-phase"),
        "STANDFAST_TOPOLOGY",
        shared=True,
        meaning="how collectives run; auto: chosen per operation from its size and the group's;"
        " direct, two-phase: a mesh with one of its algorithms only, for measuring",
    )
    jaccl_frames: str = setting(
        "auto",
        word("auto", "26.3", "4k"),
        "STANDFAST_JACCL_FRAMES",
        meaning="for standfast.jaccl: messages of up to 512 KiB, as stock JACCL sends them since"
        " macOS 26.3, or of 4 KiB, as before; auto: as stock does on this system",
    )
    init_timeout_s: float = setting(
        60.0,
        seconds,
        "STANDFAST_INIT_TIMEOUT_S",
        meaning="the one deadline within which the group must be formed",
    )
    heartbeat_s: float = setting(
        HEARTBEAT_S,
        seconds,
        "STANDFAST_HEARTBEAT_S",
        shared=True,
        meaning="time between two heartbeats on a control link; less by default if hint_s is; the"
        f" default is {HEARTBEAT_MANY_S:g} in groups of more than {MANY} ranks",
    )
    hint_s: float = setting(
        HINT_S,
        seconds,
        "STANDFAST_HINT_S",
        shared=True,
        meaning="within this time a silent, frozen or late rank is hinted at; ends nobody; less by"
        " default if silence_s or progress_s is",
    )
    silence_s: float = setting(
        SILENCE_S,
        limit,
        "STANDFAST_SILENCE_S",
        shared=True,
        meaning="silence after which a peer is given up: PeerUnreachable or PeerStalled; not more"
        " than progress_s by default",
    )
    progress_s: float = setting(
        600.0,
        limit_or_off,
        "STANDFAST_PROGRESS_TIMEOUT_S",
        "JACCL_PROGRESS_TIMEOUT_S",
        "MLX_JACCL_PROGRESS_TIMEOUT_S",
        shared=True,
        meaning="how long an operation may wait without progress; 0: for ever",
    )
    startup_s: float = setting(
        1800.0,
        seconds_or_zero,
        "STANDFAST_STARTUP_S",
        shared=True,
        meaning="in place of progress_s, if longer, for a rank that has begun no operation yet:"
        " it may be loading",
    )
    verify: bool = setting(
        False,
        switch,
        "STANDFAST_VERIFY",
        shared=True,
        meaning="results are compared between ranks by their digests: damage is DigestMismatch",
    )
    beacon: bool = setting(
        True,
        switch,
        "STANDFAST_BEACON",
        shared=True,
        meaning="ranks of a host learn of a death before the kernel has freed the dead one's memory"
        " (Linux)",
    )
    sentinel: bool = setting(
        True,
        switch,
        "STANDFAST_SENTINEL",
        meaning="a small process does so for a rank that is alone on its host",
    )
    close_linger_s: float = setting(
        1.0,
        seconds_or_zero,
        "STANDFAST_CLOSE_LINGER_S",
        meaning="how long close() waits for its goodbye to arrive",
    )
    exit_on_fault: bool = setting(
        False,
        switch,
        "STANDFAST_EXIT_ON_FAULT",
        meaning="end the process with status 75 if a failure cannot be raised into the program",
    )
    exit_grace_s: float = setting(
        10.0,
        seconds_or_zero,
        "STANDFAST_EXIT_GRACE_S",
        meaning="how long exit_on_fault waits for the program to take the failure",
    )
    handle_sigterm: bool = setting(
        True,
        switch,
        "STANDFAST_HANDLE_SIGTERM",
        meaning="let SIGTERM end a wait and tell the peers, if the program has no handler for it",
    )
    excepthook: bool = setting(
        True,
        switch,
        "STANDFAST_EXCEPTHOOK",
        meaning="tell the peers of an uncaught exception: type, message and traceback tail",
    )
    key: bytes | None = setting(
        None,
        secret,
        "STANDFAST_KEY",
        meaning="pre-shared key, at least 16 bytes; authenticates both ends of every connection",
    )
    data_address: str | None = setting(
        None,
        text,
        "STANDFAST_DATA_ADDRESS",
        meaning="where this rank listens for data: an address, an interface name, or a subnet",
    )
    torch_error_file: str | None = setting(
        None,
        text,
        "STANDFAST_TORCH_ERROR_FILE",
        "TORCHELASTIC_ERROR_FILE",
        meaning="where torchrun looks for the cause of a rank's end; a rank that was failed by a"
        " peer says so there",
    )
    report_dir: str | None = setting(
        None,
        text,
        "STANDFAST_REPORT_DIR",
        meaning="directory for flight records and reports; none are written without it",
    )
    join: str | None = setting(
        None,
        text,
        "STANDFAST_JOIN",
        meaning="for a newcomer: host:port,... of a group's ranks, into which init() is taken when"
        " they call reform(); rank, size and coordinator are not asked for then",
    )
    listen_fd: int | None = setting(
        None,
        descriptor,
        "STANDFAST_LISTEN_FD",
        meaning="a listening socket that the launcher hands to rank 0 as the coordinator's",
    )
    log_level: str = setting(
        "warning",
        word("debug", "info", "warning", "error"),
        "STANDFAST_LOG_LEVEL",
        meaning='level of the logger "standfast"',
    )

    def has_large_jaccl_frames(self) -> bool:
        """Tell which of JACCL's two frames to use; where macOS is not, the newer ones."""
        if self.jaccl_frames != "auto":
            return self.jaccl_frames == "26.3"
        release = platform.mac_ver()[0]
        return not release or _version(release) >= LARGE_FRAMES_SINCE

    def __post_init__(self) -> None:
        """Check the limits against each other.

        Raises:
            ConfigError: they do not grow in the order in which they act.
        """
        problem = disorder(self)
        if problem:
            raise ConfigError(problem)

    def heartbeat_for(self, size: int) -> float:
        """Return the time between two heartbeats in a group of `size` ranks, in seconds."""
        if size <= MANY or self.heartbeat_s != HEARTBEAT_S:
            return self.heartbeat_s
        return max(self.heartbeat_s, min(HEARTBEAT_MANY_S, HEARTBEAT_SHARE * self.hint_s))


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def disorder(settings: Settings) -> str | None:
    """Say which two limits are not in the order heartbeat < hint < silence <= progress, or None."""
    names = ["heartbeat_s", "hint_s", "silence_s", "progress_s"]
    if settings.progress_s == 0:
        names.pop()
    limits = [(name, float(getattr(settings, name))) for name in names]
    order = " < ".join(f"{name} ({value:g})" for name, value in limits)
    order = order.replace("< progress_s", "<= progress_s")
    for (low, small), (high, large) in itertools.pairwise(limits):
        may_be_equal = high == "progress_s"
        if small > large or (small == large and not may_be_equal):
            below = "is above" if may_be_equal else "is not below"
            return f"{low}={small:g} {below} {high}={large:g}; the limits must grow: {order}"
    return None


def jaccl_variables(environ: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Return what is set of JACCL_VARIABLES: the variable's name and its text."""
    environ = os.environ if environ is None else environ
    found = {}
    for name, variables in JACCL_VARIABLES.items():
        variable = next((each for each in variables if each in environ), None)
        if variable is not None:
            found[name] = (variable, environ[variable])
    return found


def rows() -> Iterator[Row]:
    """List the settings, in the order in which they are documented."""
    for field in dataclasses.fields(Settings):
        meta = field.metadata
        yield Row(field.name, meta["variables"], field.default, meta["meaning"], meta["shared"])


def load(
    overrides: Mapping[str, object],
    environ: Mapping[str, str],
    usual: Mapping[str, object] | None = None,
) -> Settings:
    """Return the settings: from `overrides` (None means: not given), else `environ`, else defaults.

    `usual` has the defaults that are other than the table's for this caller.

    Raises:
        ConfigError: a name that is no setting, a value that cannot be, or limits out of order;
            names the argument or variable and its value (a key's value is not shown).
    """
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    unknown = sorted(overrides.keys() - fields.keys())
    if unknown:
        raise ConfigError(
            f"there is no setting {', '.join(map(repr, unknown))}",
            hint=f"the settings are {', '.join(fields)}",
        )
    values: dict[str, Any] = dict(usual or {})
    for name, field in fields.items():
        found = _given(name, field.metadata["variables"], overrides, environ)
        if found is not None:
            values[name] = _convert(field.metadata["read"], *found)
    return Settings(**_filled(values))


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Add the limits that follow from others: a short one alone is no contradiction."""
    values.setdefault("silence_s", min(SILENCE_S, values.get("progress_s") or SILENCE_S))
    values.setdefault("hint_s", min(HINT_S, HINT_SHARE * values["silence_s"]))
    values.setdefault("heartbeat_s", min(HEARTBEAT_S, HEARTBEAT_SHARE * values["hint_s"]))
    return values


def _given(
    name: str,
    variables: tuple[str, ...],
    overrides: Mapping[str, object],
    environ: Mapping[str, str],
) -> tuple[str, object] | None:
    """Return where a setting was given and its raw value; the first place wins."""
    if overrides.get(name) is not None:
        return name, overrides[name]
    return next(((v, environ[v]) for v in variables if v in environ), None)


def _convert(read: Callable[[object], Any], source: str, value: object) -> Any:
    try:
        return read(value)
    except ValueError as error:
        shown = source if read is secret else f"{source}={value!r}"
        # "from None": the chain would carry the value of a key into a traceback.
        raise ConfigError(f"{shown}: {error}") from None


def agreement(settings: Settings) -> dict[str, str | float | bool]:
    """Return the part of the settings that must be the same on all ranks."""
    return {row.name: getattr(settings, row.name) for row in rows() if row.shared}
