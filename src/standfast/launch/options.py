"""Options of `standfast run` that depend on each other: brought together, or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from standfast import exits
from standfast.launch.placement import Host
from standfast.launch.spec import LaunchError

if TYPE_CHECKING:
    from standfast.hosts import HostFile
    from standfast.nodes import Node

NODES = ("STANDFAST_N", "LWS_", "JOB_COMPLETION_INDEX", "PET_", "SKYPILOT_N", "SLURM_")
"""How the names begin by which a scheduler tells a process its node: nodes.py has them all."""


def settle_ranks(options: dict[str, Any]) -> None:
    """Bring hosts, ranks and spares together, or say what does not fit.

    Raises:
        click.UsageError: options do not fit together.
        LaunchError: the host file is wrong.
    """
    hostfile = options.pop("hostfile")
    if hostfile is not None:
        if options["hosts"]:
            raise click.UsageError("--hosts and --hostfile: only one of them can be right.")
        read = _read_hostfile(hostfile)
        options["hosts"], options["backend"] = entries_of(read), read.backend
        options["env"] = (*read.envs, *options["env"])
    if options["replace"] and options["watch"]:
        raise click.UsageError("--replace needs ranks that call reform(); under --watch none do.")
    if options["replace"] and not options["restarts"]:
        raise click.UsageError("--replace needs --restarts N: how often a rank may be replaced.")
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


def settle_nodes(options: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Find out which node this is, if each has a launcher: from options, else from the scheduler.

    A rank of a group is not asked: what it starts is its own.

    Raises:
        click.UsageError: options do not fit together.
        LaunchError: the environment says something that cannot be.
    """
    count, rank = options.pop("nnodes"), options.pop("node_rank")
    coordinator, wait_s = options.pop("coordinator"), options.pop("wait_nodes_s")
    told = {
        "STANDFAST_NNODES": count,
        "STANDFAST_NODE_RANK": rank,
        "STANDFAST_COORDINATOR": coordinator,
    }
    given = {name: str(value) for name, value in told.items() if value is not None}
    if options["hosts"] or options["hostfile"]:
        if given:
            raise click.UsageError(
                "--nnodes, --node-rank and --coordinator: with hosts there is one launcher, here."
            )
        return
    asked = given or ("STANDFAST_RANK" not in environ and _speaks_of_nodes(environ))
    node = _node({**environ, **given}, options) if asked else None
    if given and node is None:
        raise click.UsageError("one of several nodes needs both --nnodes and --node-rank.")
    if node is not None and options["ranks"] is None:
        options["ranks"] = node.ranks_per_node
    if node is None or node.count == 1 or options["ranks"] is None:
        return
    if options["spares"]:
        raise click.UsageError(
            "--spares needs places that are free; with a launcher on each node each has a rank."
        )
    from standfast.endpoint import parse_endpoint
    from standfast.launch.nodes import NodeSpec, hosts_of

    if node.coordinator is None:
        raise LaunchError(
            f"node {node.rank} of {node.count} does not know where node 0 is ({node.source})",
            status=exits.CONFIG,
            hint="--coordinator HOST:PORT on all nodes, or STANDFAST_PORT where the host is known",
        )
    options["node"] = NodeSpec(
        rank=node.rank,
        count=node.count,
        coordinator=parse_endpoint(node.coordinator),
        wait_s=wait_s,
        job_id=node.job_id or "",
        attempt=node.attempt,
    )
    options["hosts"] = hosts_of(options["node"], options["ranks"])
    options["ranks"] *= node.count


def _speaks_of_nodes(environ: Mapping[str, str]) -> bool:
    """Whether it is worth the time to look closer."""
    return any(name.startswith(NODES) for name in environ)


def _node(environ: Mapping[str, str], options: Mapping[str, Any]) -> Node | None:
    """Return what nodes.py makes of it. A scheduler may say the number of ranks, too."""
    from standfast import nodes
    from standfast.errors import ConfigError

    try:
        ranks = options["ranks"]
        if ranks is None:
            alone = nodes.resolve(environ, ranks_per_node=1)
            ranks = alone.ranks_per_node if alone else None
        return nodes.resolve(environ, ranks_per_node=ranks or 1)
    except ConfigError as error:
        raise LaunchError(error.message, status=exits.CONFIG, hint=error.hint) from error


def _need_no_hosts(options: dict[str, Any]) -> None:
    """Refuse what only means something with hosts."""
    if options["ranks"] is None:
        raise click.UsageError("say how many ranks: -n N, or where: --hosts, --hostfile.")
    for name, default in (("min_ranks", None), ("wait_refill_s", 0.0)):
        if options[name] != default:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{flag} needs hosts: on one machine every place can be filled again at once."
            )
    if options["spares"] and options["watch"]:
        raise click.UsageError("--spares wait in standfast.init(); under --watch nobody calls it.")
    if options["spares"] and not options["restarts"]:
        raise click.UsageError("--spares needs --restarts N: else no place ever becomes free.")


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


def _read_hostfile(path: str) -> HostFile:
    """Read --hostfile."""
    from standfast.errors import ConfigError

    try:
        return _hosts_in(path)
    except ConfigError as error:
        raise LaunchError(
            f"--hostfile: {error.message}", status=exits.CONFIG, hint=error.hint
        ) from error


def _hosts_in(path: str) -> HostFile:
    """Read a host file; ConfigError if it cannot be read."""
    from standfast import hosts
    from standfast.errors import ConfigError

    try:
        with click.open_file(path, encoding="utf-8") as file:
            text = file.read()
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return hosts.parse(text, name=path)


def convert_hosts(
    listed: str | None,
    path: str | None,
    *,
    form: str,
    backend: str | None,
    envs: Sequence[str],
) -> str:
    """Return the text of a host file for `standfast hosts`; either `listed` or `path` is given.

    Raises:
        ConfigError: what is read is wrong, or the form has no place for it.
    """
    from standfast import hosts

    read = hosts.parse_list(listed) if listed is not None else _hosts_in(path or "-")
    more = hosts.HostFile(read.hosts, backend or read.backend, (*read.envs, *envs))
    text = hosts.written(more, form)
    hosts.parse(text, name="what would be written")  # --env and --backend are checked as well
    return text


def entries_of(file: HostFile) -> tuple[Host, ...]:
    """Return a host file's entries as the launcher uses them. Pure."""
    return tuple(
        Host(host.ssh, host.slots, host.ips[0] if host.ips else None, number, host.rdma)
        for number, host in enumerate(file.hosts)
    )
