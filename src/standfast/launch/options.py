"""Options of `standfast run` that depend on each other: brought together, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from standfast.launch.placement import Host

if TYPE_CHECKING:
    from standfast.hosts import HostFile


def settle_ranks(options: dict[str, Any]) -> None:
    """Bring hosts, ranks and spares together, or say what does not fit."""
    hostfile = options.pop("hostfile")
    if hostfile is not None:
        if options["hosts"]:
            raise click.UsageError("--hosts and --hostfile: only one of them can be right.")
        options["hosts"], envs = _read_hostfile(hostfile)
        options["env"] = (*envs, *options["env"])
    hosts, ranks, spares = options["hosts"], options["ranks"], options["spares"]
    if not hosts:
        _need_no_hosts(options)
        return
    room = sum(host.slots for host in hosts) - spares
    options["ranks"] = room if ranks is None else ranks
    if options["ranks"] > room or room < 1:
        kept = f", {spares} of them kept as spares" if spares else ""
        raise click.UsageError(
            f"{options['ranks']} ranks do not fit: the hosts have {room + spares} places{kept}."
        )
    if options["min_ranks"] is not None and options["min_ranks"] > options["ranks"]:
        raise click.UsageError("--min-ranks is more than there are ranks.")


def _need_no_hosts(options: dict[str, Any]) -> None:
    """Refuse what only means something with hosts."""
    if options["ranks"] is None:
        raise click.UsageError("say how many ranks: -n N, or where: --hosts, --hostfile.")
    for name, default in (("min_ranks", None), ("spares", 0), ("wait_refill_s", 0.0)):
        if options[name] != default:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{flag} needs --hosts: on one machine every place can be filled again at once."
            )


def read_hosts(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[Host, ...]:
    """Read --hosts."""
    if text is None:
        return ()
    from standfast import hosts
    from standfast.errors import ConfigError

    try:
        return entries_of(hosts.parse_list(text))
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def settle_environment(options: dict[str, Any], own_environ: Mapping[str, str]) -> None:
    """Put --env into what ranks inherit, here and on other hosts."""
    environ = dict(own_environ)
    own = {
        name: value
        for name, value in environ.items()
        if name.startswith("STANDFAST_") and not name.startswith("STANDFAST_RUN_")
    }
    for word in options.pop("env"):
        name, equals, value = word.partition("=")
        if not name or (not equals and name not in environ):
            raise click.UsageError(f"--env {word}: there is no such variable here to hand on.")
        own[name] = value if equals else environ[name]
    options["environ"] = environ | own
    options["handed_on"] = own


def _read_hostfile(path: str) -> tuple[tuple[Host, ...], tuple[str, ...]]:
    """Read --hostfile: the hosts, and variables for all ranks."""
    from standfast import hosts
    from standfast.errors import ConfigError

    try:
        with open(path, encoding="utf-8") as file:
            read = hosts.parse(file.read(), name=path)
    except (ConfigError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--hostfile: {error}") from error
    return entries_of(read), read.envs


def entries_of(file: HostFile) -> tuple[Host, ...]:
    """Return a host file's entries as the launcher uses them. Pure."""
    return tuple(
        Host(host.ssh, host.slots, host.ips[0] if host.ips else None) for host in file.hosts
    )
