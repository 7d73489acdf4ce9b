"""Files and lists that name the hosts of a job: MLX's JSON, Open MPI's, Hydra's, SkyPilot's. Pure.

The launcher calls `parse` for --hostfile and `parse_list` for --hosts; `standfast hosts` writes a
file with `written`. docs/design/launchers.md has the forms and where they come from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from standfast.errors import ConfigError

SLOTS_MAX = 4096
# Words of Open MPI's and Hydra's lines that do not change which ranks run where.
IGNORED_WORDS = frozenset({"max_slots", "max-slots", "binding", "user", "ifname"})


@dataclass(frozen=True)
class Host:
    """A host of a job.

    ssh: what ssh is called with: a name of ~/.ssh/config, an address without brackets, user@host.
    slots: how many ranks run there. ips: where the others reach it; the first is preferred.
    rdma: for each host of the file, the devices that lead there; () where none does. Empty if the
    file says nothing of RDMA.
    """

    ssh: str
    slots: int = 1
    ips: tuple[str, ...] = ()
    rdma: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class HostFile:
    """The hosts of a job in the order of their ranks, and what MLX's second form says besides.

    backend: "ring", "jaccl", ... or None. envs: "NAME=value" for each rank.
    """

    hosts: tuple[Host, ...]
    backend: str | None = None
    envs: tuple[str, ...] = ()

    def ranks(self) -> tuple[Host, ...]:
        """Return the host of each rank: rank r runs on the r-th."""
        return tuple(chain.from_iterable((host,) * host.slots for host in self.hosts))


def parse(text: str, *, name: str) -> HostFile:
    """Read a host file in any of the forms; `name` is the file, for messages.

    A file that begins with ``[`` or ``{`` is MLX's JSON. All others have a host per line, as Open
    MPI (``host slots=2``), Hydra (``host:2``) and SkyPilot (an address) write it. A lone ``[v6]:2``
    begins with a bracket too, and is told by what follows.

    Raises:
        ConfigError: it is none of them, or names no host; says where.
    """
    start = text.lstrip()
    if start.startswith("{") or (start.startswith("[") and start[1:].lstrip()[:1] in ("{", "]")):
        return _parse_mlx(text, name)
    return HostFile(parse_lines(text, name=name))


def parse_list(text: str, *, name: str = "--hosts") -> HostFile:
    """Read ``a,b:2``: hosts with the number of their ranks, 1 if none is given.

    Raises:
        ConfigError: an entry is empty, or its number is none.
    """
    return HostFile(tuple(_host(word.strip(), f"{name}={text!r}") for word in text.split(",")))


def parse_lines(text: str, *, name: str) -> tuple[Host, ...]:
    """Read a host per line; ``#`` begins a comment, and empty lines are nothing.

    Raises:
        ConfigError: a line is of no known form; names the file and the line.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_line(words, f"{name}, line {number}"))
    if not hosts:
        raise ConfigError(f"{name} names no host", hint="write one per line: host slots=2")
    return tuple(hosts)


def _line(words: Sequence[str], where: str) -> Host:
    host = _host(words[0], where)
    slots = host.slots
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key == "slots" and equals:
            slots = _slots(value, where)
        elif not equals or key not in IGNORED_WORDS:
            raise ConfigError(
                f"{where}: {word!r} is not understood",
                hint="a line is `host`, `host slots=2` or `host:2`",
            )
    return Host(host.ssh, slots)


def _host(text: str, where: str) -> Host:
    """Read ``host``, ``host:2``, ``[v6]`` or ``[v6]:2``, each with ``user@`` if need be."""
    head, colon, slots = text.rpartition(":")
    if text.endswith("]") or not colon:
        head, slots = text, "1"
    user, at, address = head.rpartition("@")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        raise ConfigError(
            f"{where}: {text!r} is ambiguous", hint="write an IPv6 address in brackets: [fd00::1]:2"
        )
    return Host(_ssh(f"{user}{at}{address}", where), _slots(slots, where))


def _ssh(host: object, where: str) -> str:
    """Check what will be an argument of ssh: it must be one word, and no option."""
    if not isinstance(host, str) or not host or host.startswith("-"):
        raise ConfigError(f"{where}: {host!r} is not the name of a host")
    if any(c.isspace() or not c.isprintable() or c in "[]," for c in host):
        raise ConfigError(f"{where}: {host!r} is not the name of a host")
    return host


def _slots(value: object, where: str) -> int:
    """Read how many ranks a host has."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9
    number = int(value) if isinstance(value, str) and digits else value
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= SLOTS_MAX:
        return number
    raise ConfigError(f"{where}: {value!r} is not a number of ranks from 1 to {SLOTS_MAX}")


# --- MLX's JSON


def _parse_mlx(text: str, name: str) -> HostFile:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    around = value if isinstance(value, dict) else {"hosts": value}
    entries = around.get("hosts")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"{name} names no host", hint='MLX\'s form is [{"ssh": "host", "ips": ["10.0.0.1"]}]'
        )
    backend = around.get("backend")
    if backend is not None and not isinstance(backend, str):
        raise ConfigError(f"{name}: backend={backend!r} is not a word")
    envs = _words(around.get("envs"), f"{name}: envs")
    for env in envs:
        if not env.partition("=")[0] or "=" not in env:
            raise ConfigError(f"{name}: envs: {env!r} is not of the form NAME=value")
    hosts = tuple(_mlx_host(entry, f"{name}: host {i}") for i, entry in enumerate(entries))
    _check_rdma(hosts, name)
    return HostFile(hosts, backend, envs)


def _mlx_host(entry: object, where: str) -> Host:
    if not isinstance(entry, dict) or "ssh" not in entry:
        raise ConfigError(f'{where} is not of the form {{"ssh": "host"}}')
    rdma = entry.get("rdma") or []
    if not isinstance(rdma, list):
        raise ConfigError(f"{where}: rdma={rdma!r} is not a list")
    return Host(
        ssh=_ssh(entry["ssh"], f"{where}: ssh"),
        slots=_slots(entry.get("slots", 1), f"{where}: slots"),
        ips=_words(entry.get("ips"), f"{where}: ips"),
        rdma=tuple(_devices(cell, f"{where}: rdma[{i}]") for i, cell in enumerate(rdma)),
    )


def _words(value: object, where: str) -> tuple[str, ...]:
    """Read a list of texts; nothing and null are an empty one."""
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise ConfigError(f"{where}={value!r} is not a list of texts")
    return tuple(value)


def _devices(cell: object, where: str) -> tuple[str, ...]:
    """Read the devices between two hosts: null, a name, or a list of names."""
    if isinstance(cell, str) and cell:
        return (cell,)
    return _words(cell, where)


def _check_rdma(hosts: Sequence[Host], name: str) -> None:
    """Check that the devices make a square whose cables have two ends."""
    if not any(host.rdma for host in hosts):
        return
    for here, host in enumerate(hosts):
        if len(host.rdma) != len(hosts):
            raise ConfigError(
                f"{name}: host {here} ({host.ssh}): rdma has {len(host.rdma)} entries, "
                f"and there are {len(hosts)} hosts"
            )
    for here, host in enumerate(hosts):
        for there, devices in enumerate(host.rdma):
            if devices and here == there:
                raise ConfigError(f"{name}: host {here} ({host.ssh}): rdma[{here}] is itself")
            if devices and not hosts[there].rdma[here]:
                raise ConfigError(
                    f"{name}: host {here} ({host.ssh}) has {', '.join(devices)} to host {there} "
                    f"({hosts[there].ssh}), whose rdma[{here}] is empty"
                )


FORMATS = ("mlx", "openmpi", "hydra")


def written(file: HostFile, form: str) -> str:
    """Write a host file in one of FORMATS.

    Raises:
        ConfigError: the form cannot say what the file does, and says nothing of what is left out.
    """
    if form == "mlx":
        return mlx_json(file)
    left_out = {
        "ips": any(host.ips for host in file.hosts),
        "rdma": any(host.rdma for host in file.hosts),
        "backend": file.backend is not None,
        "envs": bool(file.envs),
    }
    if any(left_out.values()):
        names = ", ".join(name for name, there in left_out.items() if there)
        raise ConfigError(f"a host file for {form} has no place for {names}", hint="--format mlx")
    between = " slots=" if form == "openmpi" else ":"
    return "".join(f"{_bracketed(host.ssh)}{between}{host.slots}\n" for host in file.hosts)


def _bracketed(ssh: str) -> str:
    """Put an IPv6 address into brackets, where a line would be ambiguous without."""
    user, at, address = ssh.rpartition("@")
    return f"{user}{at}[{address}]" if ":" in address else ssh


def mlx_json(file: HostFile) -> str:
    """Write a host file that mlx.launch reads as well.

    The form is the list where that says all, else the object. A host with several ranks is written
    once for each, since the rank is the position to MLX.

    Raises:
        ConfigError: a host has RDMA devices and several ranks.
    """
    if any(host.rdma and host.slots > 1 for host in file.hosts):
        raise ConfigError("a host with RDMA devices has one rank in MLX's host file")
    hosts = [_mlx_entry(host) for host in file.ranks()]
    if file.backend is None and not file.envs:
        return json.dumps(hosts, indent=2) + "\n"
    head = {} if file.backend is None else {"backend": file.backend}
    return json.dumps({**head, "envs": list(file.envs), "hosts": hosts}, indent=2) + "\n"


def _mlx_entry(host: Host) -> dict[str, object]:
    entry: dict[str, object] = {"ssh": host.ssh, "ips": list(host.ips)}
    if host.rdma:
        entry["rdma"] = [_mlx_cell(devices) for devices in host.rdma]
    return entry


def _mlx_cell(devices: Sequence[str]) -> str | list[str] | None:
    if not devices:
        return None
    return devices[0] if len(devices) == 1 else list(devices)
