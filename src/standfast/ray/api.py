"""run(): a function or a program as ranks on Ray, from Python.

It starts `standfast run --on ray` and waits for it: one launcher decides how groups are formed
again, whoever asked for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from standfast.errors import ConfigError
from standfast.ray.call import EXCHANGE
from standfast.ray.exchange import Exchange
from standfast.ray.failures import failure_of
from standfast.ray.plan import ONE_CPU, STRATEGIES, parse_resources
from standfast.ray.stewardship import LIFELINE

FLAGS = ("restarts", "spares", "wait_refill_s", "min_ranks", "timeout_s", "grace_s", "checkpoint")
LEAVE_S = 30.0


def run(
    program: Callable[..., Any] | Sequence[str],
    *,
    ranks: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    strategy: str = "PACK",
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    env: Mapping[str, str] | None = None,
    events: str | None = None,
    log_dir: str | None = None,
    **options: Any,
) -> list[Any]:
    """Run ranks on a Ray cluster, form their group again after failures, and return their results.

    Each rank is a process of its own, started by an actor in a bundle of one placement group. It
    finds its identity in its environment: `standfast.init()` needs no arguments. Output comes on
    stderr, each line with its rank.

    Args:
        program: a function, which each rank calls with `args` and `kwargs`, pickled by Ray's
            cloudpickle; its module must be in the caller's `sys.path`, on all nodes. Or the words
            of a command, such as ["python", "-m", "train"].
        ranks: how many; each has a bundle, so on as many nodes as `strategy` says.
        args: positional arguments of the function.
        kwargs: named arguments of the function.
        strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD", as Ray defines them.
        resources: of each rank, in Ray's words, e.g. {"CPU": 1, "GPU": 1}; {"CPU": 1} by default.
        address: of the cluster; by default that of this driver, RAY_ADDRESS, or this machine's.
        env: variables for the ranks besides those that the launcher sets.
        events: a file to which the launcher appends a line of JSON per event.
        log_dir: a directory for each rank's output.
        options: as those of `standfast run`: restarts, spares, min_ranks, wait_refill_s, timeout_s,
            grace_s, checkpoint.

    Returns:
        What the function returned, by rank, on the ranks of the last generation; for a command a
        list of zeros.

    Raises:
        RayJobFailed: rank, host and cause of the first failure, the status and the whole report.
        ConfigError: an argument is wrong, or there is no Ray.
        KeyboardInterrupt: the launcher was interrupted, and has ended all ranks.
    """
    command = command_line(program, ranks, strategy, resources, options)
    ray = _connected(address)
    gcs = ray.get_runtime_context().gcs_address
    with contextlib.ExitStack() as stack:
        environ = {**os.environ, **(env or {})}
        if callable(program):
            function = ray.cloudpickle.dumps((program, tuple(args), dict(kwargs or {})))
            call = pickle.dumps((_folders(), function))
            exchange = Exchange(ray.util.get_node_ip_address(), ranks, call)
            stack.callback(exchange.close)
            environ[EXCHANGE] = exchange.variable()
        command += ["--ray-address", gcs]
        for flag, text in (("--events", events), ("--log-dir", log_dir)):
            command += [flag, text] if text is not None else []
        command += [word for name in env or () for word in ("--env", name)]
        command += ["--", *_words(program)]
        status, report = _launch(command, environ)
    if status != 0:
        raise failure_of(status, report)
    last = report["generations"][-1]
    if callable(program):
        return exchange.values(len(last["ranks"]), last["generation"])
    return [0] * len(last["ranks"])


def command_line(
    program: Callable[..., Any] | Sequence[str],
    ranks: int,
    strategy: str,
    resources: Mapping[str, float] | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Return the launcher's command line up to what only a cluster can tell. Pure.

    Raises:
        ConfigError: an argument is wrong.
    """
    unknown = sorted(options.keys() - set(FLAGS))
    if unknown:
        raise ConfigError(f"run() has no option {', '.join(unknown)}; there are {', '.join(FLAGS)}")
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy!r} is none of {', '.join(STRATEGIES)}")
    if not callable(program) and (isinstance(program, str) or not program):
        raise ConfigError(f"program={program!r} is neither a function nor a list of words")
    text = ",".join(f"{name}={amount:g}" for name, amount in (resources or ONE_CPU).items())
    try:
        parse_resources(text)
    except ValueError as error:
        raise ConfigError(f"resources={resources!r}: {error}") from error
    command = [sys.executable, "-P", "-m", "standfast", "run", "--on", "ray", "--json"]
    command += ["-n", str(ranks), "--ray-strategy", strategy, "--ray-resources", text]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def _folders() -> list[str]:
    """Return where this process finds modules: ranks look there, too, if there are such folders."""
    return [os.path.abspath(folder) for folder in sys.path]


def _words(program: Callable[..., Any] | Sequence[str]) -> list[str]:
    if callable(program):
        return [sys.executable, "-P", "-m", "standfast.ray.call"]
    return [str(word) for word in program]


def _connected(address: str | None) -> Any:
    """Return the ray module, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"there is no Ray in {sys.executable}: {error}",
            hint="pip install 'ray>=2.40', here and on all nodes",
        ) from error
    if not ray.is_initialized():
        where = address or os.environ.get("RAY_ADDRESS") or "auto"
        try:
            ray.init(address=where, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"no Ray cluster at {where}: {error}", hint="start one with `ray start --head`"
            ) from error
    return ray


def _launch(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Run the launcher to its end; return its status and its report.

    The steward holds the other end of a pipe of ours: if this process is lost, so are the ranks.
    """
    lifeline, ours = os.pipe()
    with open(ours, "wb"):
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**environ, LIFELINE: str(lifeline)},
            pass_fds=(lifeline,),
            start_new_session=True,  # Ctrl-C is ours: a second signal would cut its grace short
        )
        os.close(lifeline)
        try:
            text, _ = launcher.communicate()
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            launcher.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(LEAVE_S)
            launcher.kill()
            launcher.wait()
            raise
    lines = text.splitlines()
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return launcher.returncode, report
