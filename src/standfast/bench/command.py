"""The command `standfast bench`: reads options, and hands them to those who measure.

It works in two places: where it starts the ranks itself, and as each rank of a job that runs
already (`standfast run --hosts a,b -- standfast bench`), where rank 0 writes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from standfast import exits
from standfast.bench import options as opts

FAILED_CHECK = exits.FAILURE


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="[OPTIONS]",
    short_help="Measure the collectives, beside other libraries and the machine's limits.",
    epilog="""\b
OP is one of all_reduce (the default), all_gather, reduce_scatter, broadcast, all_to_all, gather,
scatter, send_recv, ping_pong (2 ranks), barrier; all: every one. Columns are nccl-tests':
  size    bytes of the larger buffer of one rank; count: elements that one rank gives or gets
  time    of one call on rank 0, calls following each other without a pause: the median (nccl-tests:
          the mean, --time mean)
  algbw   size / time; busbw: algbw times the share that must cross each link, as nccl-tests has it
  #wrong  elements that differ from a second computation, over all ranks

\b
Exit status: 0, or 1 if a result was wrong; otherwise as `standfast run`.

\b
Examples:
  standfast bench                                     all_reduce, 8 B to 64 MiB, 2 ranks here
  standfast bench all_gather -g 4 -b 1K -e 1M -f 4 --fabric tcp
  standfast bench --compare openmpi,gloo,mlx -b 8 -e 64M -f 8
  standfast run --hosts a,b -- standfast bench        over hosts""",
)
@click.argument("ops", type=opts.OPS, default=None, required=False, metavar="[OP[,OP...]]")
@click.option(
    "-g",
    "--ranks",
    type=click.IntRange(2, 512),
    metavar="N",
    help="How many ranks to start here; 2 by default. In a job that runs already: all it has.",
)
@click.option("-b", "--minbytes", type=opts.Bytes(), default="8", show_default=True)
@click.option("-e", "--maxbytes", type=opts.Bytes(), default="64M", show_default=True)
@click.option("-f", "--stepfactor", type=float, metavar="X", help="Between sizes; 2 by default.")
@click.option("-i", "--stepbytes", type=opts.Bytes(), help="Between sizes, in place of a factor.")
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Timed calls per row. By default as many as --budget-s has time for, 8 to 50000.",
)
@click.option(
    "-w",
    "--warmup-iters",
    type=click.IntRange(0, 10_000_000),
    metavar="N",
    help="Calls before those; by default a twentieth of them, 2 at least.",
)
@click.option("-d", "--datatype", type=opts.DTYPES, default="float32", show_default=True)
@click.option("-o", "--redop", type=opts.REDUCTIONS, default="sum", show_default=True)
@click.option("-r", "--root", type=click.IntRange(0), default=0, show_default=True)
@click.option("-c/-C", "--check/--no-check", default=True, show_default=True)
@click.option(
    "--fabric", type=opts.FABRIC, default="auto", show_default=True, help="auto, shm, tcp, verbs."
)
@click.option(
    "--topology", type=opts.TOPOLOGY, default="auto", show_default=True, help="auto, mesh, ring."
)
@click.option(
    "--memory",
    type=click.Choice(["plain", "shared"]),
    default="plain",
    show_default=True,
    help="Arrays of NumPy, or of standfast.empty(), which ranks of a host read in place.",
)
@click.option("--emulate", is_flag=True, help="Ranks are emulated Macs: verbs without hardware.")
@click.option(
    "--time",
    type=click.Choice(["median", "mean", "min"]),
    default="median",
    show_default=True,
    help="Which time of the calls the table shows; --json has all.",
)
@click.option(
    "--compare",
    metavar="NAME[=PYTHON],...",
    help="Measure these libraries in the same run, in turn: openmpi, mpich, gloo, mlx. PYTHON is"
    " one that has the library; by default this one. What is not installed is left out.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="Rounds of --compare.",
)
@click.option(
    "--budget-s",
    type=click.FloatRange(0, 600, min_open=True),
    default=0.3,
    show_default=True,
    metavar="SECONDS",
    help="Time per row.",
)
@click.option(
    "--again",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="How often a row is repeated while other work takes more than --noise-max-pct.",
)
@click.option(
    "--noise-max-pct",
    type=click.FloatRange(0),
    default=15.0,
    show_default=True,
    metavar="PERCENT",
    help="Of one core.",
)
@click.option(
    "--limits", is_flag=True, help="What this machine allows, and our share of it; no other table."
)
@click.option(
    "--model",
    type=click.Path(dir_okay=False),
    metavar="FILE.inc",
    help="For work on the core: measure where one algorithm overtakes another, and write the table"
    " that goes into it.",
)
@click.option("--json", is_flag=True, help="Print one JSON object on stdout instead of the table.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw busbw against size."
)
@click.pass_context
def bench(ctx: click.Context, /, **options: Any) -> None:
    """Measure the collectives here or in a running job, and check what they compute."""
    from standfast.errors import StandfastError

    options["ops"] = options["ops"] or ("all_reduce",)
    is_rank = False
    try:
        _need_what_is_asked_for(options)
        is_rank = _in_a_job(options)
        ctx.exit(_inside(options) if is_rank else _outside(options))
    except StandfastError as error:
        if is_rank:
            raise  # the peers and the launcher are told as of any rank
        click.echo(f"standfast: {error}", err=True)
        ctx.exit(error.exit_code)


def _in_a_job(options: dict[str, Any]) -> bool:
    from standfast import identity

    return options["ranks"] is None and identity.is_given(os.environ)


def _need_what_is_asked_for(options: dict[str, Any]) -> None:
    """Refuse early what cannot work in the end, for want of a package or a directory.

    Raises:
        ConfigError: names it, and how to install a package.
    """
    import importlib.util

    from standfast.errors import ConfigError

    for name in ("plot", "model"):
        if options[name] and not Path(options[name]).resolve().parent.is_dir():
            raise ConfigError(f"--{name} {options[name]}: there is no such directory")
    needed = {"numpy": "standfast bench"}
    if "bfloat16" in options["datatype"]:
        needed["ml_dtypes"] = "-d bfloat16"
    if options["plot"]:
        needed["matplotlib"] = "--plot"
    for module, what in needed.items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"{what} needs {module}, which {sys.executable} does not have",
                hint=f"{sys.executable} -m pip install {module}",
            )


def _how(options: dict[str, Any]) -> Any:
    from standfast.bench.rank import How

    return How(
        calls=options["iters"],
        warm_up=options["warmup_iters"],
        budget_s=options["budget_s"],
        check=options["check"],
        again=options["again"],
        noise_max_pct=options["noise_max_pct"],
    )


def _inside(options: dict[str, Any]) -> int:
    """Be a rank of the job that runs already."""
    from standfast.bench import inside, outside

    for name in ("compare", "limits", "model", "emulate"):
        if options[name]:
            raise click.UsageError(f"--{name} starts jobs of its own: not as a rank of a job.")
    if len(options["fabric"]) > 1 or len(options["topology"]) > 1:
        raise click.UsageError("a running job has one fabric and one topology: name one of each.")
    sizes = opts.settle_sizes(options)
    size, results = inside.measure(
        lambda ranks: opts.settle_cells(options, sizes, ranks),
        _how(options),
        fabric=options["fabric"][0],
        topology=options["topology"][0],
        memory=options["memory"],
        write=_no_rows if options["json"] else click.echo,
        time_key=_time_key(options),
    )
    if not results:
        return exits.OK  # rank 0 has them
    return _conclude(options, results, outside.document(size, _time_key(options), results))


def _outside(options: dict[str, Any]) -> int:
    """Start the ranks."""
    from standfast.bench import backends, outside
    from standfast.bench.jobs import JobFailed, Launch

    _handle_signals()
    ranks = options["ranks"] or 2
    if options["limits"]:
        return _limits(options)
    if options["model"]:
        return _model(options)
    sizes = opts.settle_sizes(options)
    task = outside.Task(
        cells=opts.settle_cells(options, sizes, ranks),
        ranks=ranks,
        how=_how(options),
        launch=Launch(environ=dict(os.environ)),
        time_key=_time_key(options),
        runs=options["runs"],
    )
    if options["emulate"]:
        if options["fabric"] not in (("auto",), ("verbs",)):
            raise click.UsageError("--emulate is for --fabric verbs: nothing else is emulated.")
        options["fabric"] = ("verbs",)
    ours = [
        backends.ours(fabric, topology, memory=options["memory"], emulate=options["emulate"])
        for fabric in options["fabric"]
        for topology in options["topology"]
    ]
    write = _no_rows if options["json"] else click.echo
    bar = _to_stderr if sys.stderr.isatty() else None
    try:
        if options["compare"]:
            if len(ours) > 1:
                raise click.UsageError("--compare needs one fabric and one topology.")
            named = backends.peers(options["compare"], fabric=options["fabric"][0])
            here = [*ours, *(peer for peer in named if _is_here(peer))]
            results = outside.compare(task, here, write, bar)
        else:
            results = outside.show(task, ours, write, bar)
    except JobFailed as error:
        click.echo(f"standfast: {error}", err=True)
        return error.status
    return _conclude(options, results, outside.document(ranks, task.time_key, results))


def _limits(options: dict[str, Any]) -> int:
    """Measure the machine, and ourselves on two ranks beside it."""
    import json as json_text

    from standfast import _core
    from standfast.bench import backends, limits, outside, table
    from standfast.bench.jobs import JobFailed, Launch

    found = limits.measure(_core.measure_limit)
    write = _no_rows if options["json"] else click.echo
    for line in limits.lines(found):
        write(line)
    results: list[Any] = []
    for fabric, cells in limits.cells().items():
        task = outside.Task(cells, 2, _how(options), Launch(environ=dict(os.environ)))
        try:
            ours = list(outside.told(task, backends.ours(fabric, "auto")))
        except JobFailed as error:
            click.echo(f"standfast: {error}", err=True)
            return error.status
        results += ours
        for line in limits.share_lines(ours, fabric, found, time_key=_time_key(options)):
            write(line)
    for line in table.noise_lines(results, options["noise_max_pct"]):
        write(line)
    if options["json"]:
        click.echo(json_text.dumps({"limits": limits.to_dict(found), "results": results}))
    return FAILED_CHECK if _wrong(results) else exits.OK


def _model(options: dict[str, Any]) -> int:
    """Measure the algorithms, and write the core's table."""
    import platform

    from standfast.bench import model, outside
    from standfast.bench.jobs import JobFailed, Launch

    launch = Launch(environ=dict(os.environ))
    bar = _to_stderr if sys.stderr.isatty() else None
    try:
        results = outside.algorithms(_how(options), launch, options["runs"], bar)
    except JobFailed as error:
        click.echo(f"standfast: {error}", err=True)
        return error.status
    rows = model.rows(results, time_key=_time_key(options))
    machine = f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})"
    Path(options["model"]).write_text(model.text(rows, machine=machine), encoding="utf-8")
    if options["json"]:
        click.echo(outside.document(0, _time_key(options), results))
    return FAILED_CHECK if _wrong(results) else exits.OK


def _wrong(results: list[Any]) -> int:
    from standfast.bench import table

    return table.wrong_values(results)


def _is_here(peer: Any) -> bool:
    absence = peer.absence()
    if absence:
        click.echo(f"standfast: {peer.name} is left out: {absence}", err=True)
    return not absence


def _conclude(options: dict[str, Any], results: list[Any], document: str) -> int:
    """Write what comes after the rows; return the exit status."""
    from standfast.bench import table

    if options["json"]:
        click.echo(document)
    else:
        lines = table.footer(results, time_key=_time_key(options))
        lines += table.noise_lines(results, options["noise_max_pct"])
        click.echo("\n".join(lines))
    if options["plot"]:
        from standfast.bench import plot

        plot.draw(results, Path(options["plot"]), time_key=_time_key(options))
    return FAILED_CHECK if table.wrong_values(results) else exits.OK


def _time_key(options: dict[str, Any]) -> str:
    return f"{options['time']}_us"


def _no_rows(_line: str) -> None:
    """Drop the table's lines where JSON is asked for."""


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _handle_signals() -> None:
    """Let SIGINT and SIGTERM end the ranks first, and this process then as they always do."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)


def _interrupted(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(exits.SIGNAL_BASE + number)
