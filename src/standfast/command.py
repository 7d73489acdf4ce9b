"""The `standfast` command. Parses, calls, and returns exit statuses; decides nothing else.

Everything but click is imported where it is needed, so that ranks start early: commands that have a
module of their own are in LazyGroup's table.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from standfast import exits
from standfast.launch.options import (
    read_hosts,
    settle_environment,
    settle_nodes,
    settle_ranks,
)

if TYPE_CHECKING:
    from standfast.launch.spec import JobSpec
    from standfast.ray.plan import RayPlan


def _from_0(_ctx: click.Context, _param: click.Parameter, seconds: float | None) -> float | None:
    """Accept a finite number of seconds."""
    if seconds is None or 0 <= seconds <= 1e9:
        return seconds
    raise click.BadParameter(f"{seconds:g} is not a number of seconds from 0 on.")


def _above_0(ctx: click.Context, param: click.Parameter, seconds: float | None) -> float | None:
    """Accept a finite number of seconds, but not 0."""
    if seconds == 0:
        raise click.BadParameter("0 seconds are over before they began.")
    return _from_0(ctx, param, seconds)


class GroupedCommand(click.Command):
    """A command with its options under headings; `sections` maps those to parameter names."""

    def __init__(self, *args: Any, sections: dict[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, and the rest at the end."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        left = {option.name: option.get_help_record(ctx) for option in options}
        for heading, names in (*self._sections.items(), ("Other", [*left])):
            records = [left.pop(name, None) for name in names]
            rows = [record for record in records if record is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class LazyGroup(click.Group):
    """A group with commands that are imported when they are asked for, or listed with their help.

    `later` maps a command's name to its module; there it has the name that it has here.
    """

    def __init__(self, *args: Any, later: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted({*super().list_commands(ctx), *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or None."""
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        found = getattr(importlib.import_module(self._later[cmd_name]), cmd_name)
        assert isinstance(found, click.Command)
        return found


@click.group(
    cls=LazyGroup,
    later={"bench": "standfast.bench.command"},
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  standfast run -n 4 -- python train.py --epochs 20",
)
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def cli(ctx: click.Context, version: bool) -> None:
    """Collective communication in which a dead peer is a prompt, precise error on every rank."""
    if version:
        from standfast.version import version as installed

        click.echo(f"standfast {installed()}")
        ctx.exit(exits.OK)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command(
    cls=GroupedCommand,
    sections={
        "Ranks": ("ranks", "watch"),
        "Hosts": ("hosts", "hostfile", "ssh", "python", "env"),
        "A launcher on each node": ("nnodes", "node_rank", "coordinator", "wait_nodes_s"),
        "Ray": ("on", "ray_address", "ray_strategy", "ray_resources"),
        "Forming again": (
            "restarts",
            "replace",
            "min_ranks",
            "wait_refill_s",
            "spares",
            "checkpoint",
        ),
        "Limits": ("timeout_s", "grace_s", "kill_after_s"),
        "Input and output": ("stdin", "json", "log_dir", "events", "on_fault"),
    },
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    options_metavar="-n N [--hosts ...] [OPTIONS] --",
    short_help="Start ranks of a program, and tell who failed first.",
    epilog="""\b
Exit status:
  0      all ranks returned 0
  75     the --restarts are used up, and trying again is sensible
  124    --timeout-s ended the job
  126    the program is not executable; 127: there is no such program
  128+n  signal n ended the rank that failed first, or told the launcher to end (130: Ctrl-C)
  else   that of the rank that failed first; see `standfast explain CODE`

\b
Example:
  standfast run -n 4 --restarts 3 -- python train.py --epochs 20
  standfast run -n 4 --watch -- ./engine --model m.gguf""",
)
@click.option(
    "-n",
    "--ranks",
    type=click.IntRange(1, 4096),
    metavar="N",
    envvar="STANDFAST_RUN_RANKS",
    show_envvar=True,
    help="How many ranks to start; with --nnodes on each node. With hosts by default as many as"
    " they have room for.",
)
@click.option(
    "--hosts",
    metavar="HOST[:N],...",
    callback=read_hosts,
    envvar="STANDFAST_RUN_HOSTS",
    show_envvar=True,
    help="Start ranks on these hosts by ssh, N on each (1); localhost needs no ssh. standfast must"
    " be installed there, in the same version.",
)
@click.option(
    "--hostfile",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    envvar="STANDFAST_RUN_HOSTFILE",
    show_envvar=True,
    help="The same from a file: MLX's JSON, or lines as Open MPI (host slots=N) or Hydra (host:N)"
    " want them.",
)
@click.option(
    "--ssh",
    metavar="COMMAND",
    default="ssh",
    show_default=True,
    envvar="STANDFAST_RUN_SSH",
    show_envvar=True,
    help='OpenSSH\'s client, with options: "ssh -F my_config".',
)
@click.option(
    "--python",
    metavar="PATH",
    envvar="STANDFAST_RUN_PYTHON",
    show_envvar=True,
    help="The Python on the hosts that has standfast; by default the path of this one.",
)
@click.option(
    "--env",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="A variable for the ranks. Without a value: hand on the launcher's own. On this machine"
    " ranks have all of them, on other hosts STANDFAST_... and these.",
)
@click.option(
    "--nnodes",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="This command is run on each of N nodes, by a scheduler or by hand (STANDFAST_NNODES)."
    " Slurm, LeaderWorkerSet, Indexed Jobs, Kubeflow and SkyPilot say it themselves.",
)
@click.option(
    "--node-rank",
    type=click.IntRange(min=0),
    metavar="R",
    help="Which of them this is, from 0 (STANDFAST_NODE_RANK). Node 0's launcher is the job's: it"
    " has the output and the report, and its --restarts, --events and the like count.",
)
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    help="Where node 0's launcher listens for the others (STANDFAST_COORDINATOR).",
)
@click.option(
    "--wait-nodes-s",
    type=float,
    callback=_above_0,
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    envvar="STANDFAST_RUN_WAIT_NODES_S",
    show_envvar=True,
    help="How long the nodes' launchers wait for each other at the start.",
)
@click.option(
    "--on",
    type=click.Choice(["ray"]),
    envvar="STANDFAST_RUN_ON",
    show_envvar=True,
    help="Start ranks on a cluster of Ray: actors in one placement group, a bundle per rank.",
)
@click.option(
    "--ray-address",
    metavar="HOST:PORT",
    envvar="STANDFAST_RUN_RAY_ADDRESS",
    show_envvar=True,
    help="The cluster; by default RAY_ADDRESS, else the one that runs on this machine.",
)
@click.option(
    "--ray-strategy",
    type=click.Choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
    envvar="STANDFAST_RUN_RAY_STRATEGY",
    show_envvar=True,
    help="How ranks are spread over the nodes, in Ray's words. By default PACK.",
)
@click.option(
    "--ray-resources",
    metavar="NAME=AMOUNT,...",
    envvar="STANDFAST_RUN_RAY_RESOURCES",
    show_envvar=True,
    help="What Ray reserves for each rank: CPU=4,GPU=1. By default CPU=1.",
)
@click.option(
    "--watch",
    is_flag=True,
    envvar="STANDFAST_RUN_WATCH",
    show_envvar=True,
    help="Watch over a program that does not use standfast, from outside: when a rank is killed,"
    " fails, or stands still for STANDFAST_SILENCE_S (20), all others get SIGTERM, after"
    " --kill-after-s SIGKILL, and end with status 75 and the name of that rank.",
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    envvar="STANDFAST_RUN_RESTARTS",
    show_envvar=True,
    help="How often the group may be formed again after a failure; never after a usage (2),"
    " mismatch (76) or configuration (78) error.",
)
@click.option(
    "--replace",
    is_flag=True,
    envvar="STANDFAST_RUN_REPLACE",
    show_envvar=True,
    help="For programs that go on with group.reform(wait_s=...): start a lost rank again by itself,"
    " as a newcomer to the others, which keep running. Each time counts as one of the --restarts."
    " Where the others end instead, all ranks are started again as usual.",
)
@click.option(
    "--min-ranks",
    type=click.IntRange(min=1),
    metavar="M",
    envvar="STANDFAST_RUN_MIN_RANKS",
    show_envvar=True,
    help="If hosts are lost, go on with fewer ranks, down to M. By default all are needed.",
)
@click.option(
    "--wait-refill-s",
    type=float,
    callback=_from_0,
    metavar="SECONDS",
    default=0.0,
    show_default=True,
    envvar="STANDFAST_RUN_WAIT_REFILL_S",
    show_envvar=True,
    help="How long to wait for lost hosts to come back before going on with fewer, or giving up.",
)
@click.option(
    "--spares",
    type=click.IntRange(min=0),
    metavar="K",
    default=0,
    show_default=True,
    envvar="STANDFAST_RUN_SPARES",
    show_envvar=True,
    help="Keep K processes of the program warm: they run it up to standfast.init(), which has to"
    " come before all that needs a rank, and wait there for the place of a lost one. With hosts: on"
    " K of their places, which are kept free for ranks of lost hosts.",
)
@click.option(
    "--checkpoint",
    metavar="PATH",
    envvar="STANDFAST_RUN_CHECKPOINT",
    show_envvar=True,
    help="The file or directory the program saves to. If neither it nor what ranks beat changes"
    " over 3 generations, the group is not formed again.",
)
@click.option(
    "--timeout-s",
    type=float,
    callback=_above_0,
    metavar="SECONDS",
    envvar="STANDFAST_RUN_TIMEOUT_S",
    show_envvar=True,
    help="Limit of the whole job, restarts included.",
)
@click.option(
    "--grace-s",
    type=float,
    callback=_from_0,
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    envvar="STANDFAST_RUN_GRACE_S",
    show_envvar=True,
    help="How long ranks may take to end by themselves, after a failure or Ctrl-C, before SIGTERM.",
)
@click.option(
    "--kill-after-s",
    type=float,
    callback=_from_0,
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    envvar="STANDFAST_RUN_KILL_AFTER_S",
    show_envvar=True,
    help="How long after SIGTERM ranks get SIGKILL.",
)
@click.option(
    "--json",
    is_flag=True,
    envvar="STANDFAST_RUN_JSON",
    show_envvar=True,
    help="Print one JSON object on stdout at the end; the ranks' stdout goes to stderr.",
)
@click.option(
    "--stdin",
    type=click.Choice(["none", "0", "all"]),
    default="none",
    show_default=True,
    envvar="STANDFAST_RUN_STDIN",
    show_envvar=True,
    help="Who gets the launcher's stdin: no rank, rank 0, or each rank all of it.",
)
@click.option(
    "--log-dir",
    metavar="DIR",
    envvar="STANDFAST_RUN_LOG_DIR",
    show_envvar=True,
    help="Keep each rank's output in files there, too: rank-0.out, rank-0.err, ...",
)
@click.option(
    "--events",
    metavar="FILE|FD",
    envvar="STANDFAST_RUN_EVENTS",
    show_envvar=True,
    help="Append a line of JSON for each event: started, ready, peer_lost, group_failed,"
    " spare_lost, restarting, finished.",
)
@click.option(
    "--on-fault",
    metavar="COMMAND",
    envvar="STANDFAST_RUN_ON_FAULT",
    show_envvar=True,
    help="A shell command to run when a generation has failed; the event is on its stdin and in"
    " STANDFAST_EVENT.",
)
@click.argument("command", nargs=-1, required=True, metavar="PROGRAM [ARGS]...")
@click.pass_context
def run(ctx: click.Context, /, command: tuple[str, ...], **options: Any) -> None:
    """Start N ranks of PROGRAM, prefix their output, and report who failed first and why."""
    from standfast.launch.spec import JobSpec, LaunchError
    from standfast.ray.options import settle_ray

    try:
        plan = settle_ray(options)
        settle_nodes(options, os.environ)
        settle_ranks(options)
        if options["watch"]:
            _check_watch(ranks=options["ranks"], grace_s=options["grace_s"])
        settle_environment(options, os.environ)
        _open_standard_streams()
        ctx.exit(_run(JobSpec(command=command, **options), plan))
    except LaunchError as error:
        _say_launch_error(error, error.status, json=options["json"])
        ctx.exit(error.status)


def _run(spec: JobSpec, plan: RayPlan | None) -> int:
    """Be the job's launcher, or that of a node which serves node 0's."""
    if plan is not None:
        from standfast.ray.stewardship import run_on_ray

        return run_on_ray(spec, plan)
    if spec.node is not None and spec.node.rank > 0:
        from standfast.launch.node import run_node

        return run_node(spec, spec.node)
    from standfast.launch.job import run_job

    return run_job(spec)


def _check_watch(*, ranks: int, grace_s: float) -> None:
    """Refuse what --watch cannot work with."""
    if ranks == 1:
        raise click.UsageError("--watch needs at least 2 ranks: one has nobody to watch over it.")
    if grace_s == 0:
        raise click.UsageError("--grace-s 0 ends all ranks before --watch can tell them why.")


@cli.command(
    epilog="""\b
Exit status:
  0   at least one job runs, and none has failed
  69  no job runs
  75  a job has failed or is being formed again

\b
States: starting (hosts are called), started, ready (every rank of this generation has joined its
group), failed, restarting, finished.""",
)
@click.option("--json", is_flag=True, help="Print a list of objects, one per job.")
@click.pass_context
def status(ctx: click.Context, json: bool) -> None:
    """Tell what the jobs that were started on this machine are doing."""
    from standfast.launch.listing import lines_of, living_jobs

    jobs = living_jobs(os.environ)
    if json:
        from json import dumps

        click.echo(dumps(jobs))
    else:
        click.echo("\n".join(lines_of(jobs)))
    if not jobs:
        ctx.exit(exits.UNAVAILABLE)
    failed = any(job["state"] in ("failed", "restarting") for job in jobs)
    ctx.exit(exits.RETRY if failed else exits.OK)


@cli.command(
    name="hosts",
    short_help="Write a host file, in the form of MLX, Open MPI or Hydra.",
    epilog="""\b
Exit status:
  0   written
  78  the host file is wrong, or the form has no place for what it says

\b
Examples:
  standfast hosts --hosts a,b:2 > hosts.json
  standfast hosts --hostfile hosts.json --format openmpi""",
)
@click.option("--hosts", metavar="HOST[:N],...", help="Hosts, with N ranks on each (1).")
@click.option(
    "--hostfile",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="A file in any of the forms, or a list of addresses; `-` is stdin.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["mlx", "openmpi", "hydra"]),
    default="mlx",
    show_default=True,
    help="Only MLX's JSON has a place for addresses, RDMA devices, a backend and variables.",
)
@click.option(
    "--backend",
    metavar="NAME",
    help="What mlx.launch is to use: ring, jaccl, jaccl-ring, ...; makes an object of the list.",
)
@click.option(
    "--env",
    "envs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A variable for each rank; makes an object of the list.",
)
@click.pass_context
def write_hosts(
    ctx: click.Context,
    hosts: str | None,
    hostfile: str | None,
    form: str,
    backend: str | None,
    envs: tuple[str, ...],
) -> None:
    """Write a host file to stdout.

    MLX's form is a list, or an object if there is a backend or a variable.
    """
    from standfast.errors import ConfigError
    from standfast.launch.options import convert_hosts

    if (hosts is None) == (hostfile is None):
        raise click.UsageError("give either --hosts or --hostfile.")
    try:
        text = convert_hosts(hosts, hostfile, form=form, backend=backend, envs=envs)
    except ConfigError as error:
        click.echo(f"standfast: {error}", err=True)
        ctx.exit(exits.CONFIG)
    click.echo(text, nl=False)


@cli.command(epilog="\b\nExample:\n  standfast explain 75")
@click.argument("code", type=click.IntRange(0, 255))
def explain(code: int) -> None:
    """Say what an exit status means, and what to do about it."""
    click.echo(f"{code}: {exits.meaning(code)}")
    remedy = exits.remedy(code)
    if remedy:
        click.echo(f"what to do: {remedy}")


@cli.command(
    epilog="""\b
Exit status:
  0   at least one port has a link
  69  RDMA is not available: no verbs library, one that is too old, no device, or no link

\b
Example:
  standfast devices --json"""
)
@click.option("--json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def devices(ctx: click.Context, json: bool) -> None:
    """List this machine's RDMA devices: ports, addresses, link layers, speeds."""
    from standfast import rdma
    from standfast.errors import StandfastError

    try:
        listing = rdma.listing()
    except StandfastError as error:
        _say_error(error, json=json)
        ctx.exit(error.exit_code)
    click.echo(listing.json() if json else listing.text())
    if listing.trouble is not None:
        click.echo(f"standfast: {listing.trouble}", err=True)
        ctx.exit(exits.UNAVAILABLE)


@cli.command(
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    options_metavar="--macs N [OPTIONS] --",
    short_help="Run a program on emulated Macs joined by Thunderbolt.",
    epilog="""\b
Exit status: as `standfast run`.

\b
Example:
  standfast emulate --macs 4 --topology ring --cables 2 -- python train.py""",
)
@click.option("--macs", type=click.IntRange(1, 32), metavar="N", required=True, help="How many.")
@click.option(
    "--topology",
    type=click.Choice(["mesh", "ring"]),
    default="mesh",
    show_default=True,
    help="A cable between any two, or between neighbours in a circle.",
)
@click.option(
    "--cables",
    type=click.IntRange(1, 4),
    metavar="N",
    default=1,
    show_default=True,
    help="Between two Macs that are joined.",
)
@click.option(
    "--policy",
    type=click.Choice(["credit", "drop", "absent-completes"]),
    default="credit",
    show_default=True,
    help="What becomes of a send for which nothing is posted: it waits; it is lost; it waits unless"
    " its receiver is gone.",
)
@click.option(
    "--spin", is_flag=True, help="Empty polls never nap: as hardware, if there are cores enough."
)
@click.option(
    "--timeout-s",
    type=float,
    callback=_above_0,
    metavar="SECONDS",
    help="Limit of the whole run.",
)
@click.option(
    "--grace-s",
    type=float,
    callback=_from_0,
    metavar="SECONDS",
    default=3.0,
    show_default=True,
    help="How long the others may take to end by themselves once one has failed, before SIGTERM:"
    " JACCL's ranks do not notice.",
)
@click.argument("command", nargs=-1, required=True, metavar="PROGRAM [ARGS]...")
@click.pass_context
def emulate(ctx: click.Context, /, command: tuple[str, ...], **options: Any) -> None:
    """Run PROGRAM once per emulated Mac, with the environment of a JACCL rank.

    The library that the program loads as librdma.dylib or libibverbs.so.1 joins the processes as
    Apple's would join the Macs. One that fails ends all.
    """
    from standfast.launch.spec import LaunchError
    from standfast.testing.emulate import run_emulated

    _open_standard_streams()
    try:
        ctx.exit(run_emulated(command, **options))
    except LaunchError as error:
        _say_launch_error(error, error.status, json=False)
        ctx.exit(error.status)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the entry point of the console script.

    Ctrl-C ends it as it ends any program (click would make it status 1), unless a command, as `run`
    does, takes the signal into its own hands.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    cli.main(args=None if arguments is None else list(arguments), prog_name="standfast")


def _say_error(error: Any, *, json: bool) -> None:
    click.echo(f"standfast: {error}", err=True)
    if json:
        import msgspec

        click.echo(msgspec.json.encode({"devices": [], "error": error.to_dict()}))


def _say_launch_error(error: Exception, status: int, *, json: bool) -> None:
    click.echo(f"standfast: {error}", err=True)
    if json:
        from standfast.launch.summary import error_summary

        click.echo(error_summary(error, status))


def _open_standard_streams() -> None:
    """Fill descriptors 0, 1 and 2: one that is closed would be given to our first pipe."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
