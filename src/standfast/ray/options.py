"""The options of `standfast run --on ray`: brought together, or refused."""

from __future__ import annotations

from typing import Any

import click

from standfast.ray.plan import ONE_CPU, RayPlan, hosts_of, parse_resources

ROOM_S = 30.0


def settle_ray(options: dict[str, Any]) -> RayPlan | None:
    """Take Ray's options out of the others; None without --on ray.

    With it the places of the plan become the job's hosts, and take the place of --hosts.

    Raises:
        click.UsageError: what was asked for does not fit together.
    """
    on = options.pop("on")
    given = {name: options.pop(name) for name in RAY_ONLY}
    if on is None:
        unfit = [name for name, value in given.items() if value is not None]
        if unfit:
            raise click.UsageError(f"{_flag(unfit[0])} needs --on ray.")
        return None
    for name in ("hosts", "hostfile"):
        if options[name]:
            raise click.UsageError(f"--on ray and {_flag(name)}: only one of them can be right.")
    if options["ssh"] != "ssh" or options["python"] is not None:
        raise click.UsageError("--on ray needs neither --ssh nor --python: its actors have both.")
    if options["ranks"] is None:
        raise click.UsageError("say how many ranks: -n N.")
    places = options["ranks"] + options["spares"]
    options["hosts"] = hosts_of(places)
    return RayPlan(
        places=places,
        strategy=given["ray_strategy"] or "PACK",
        resources=_resources(given["ray_resources"]),
        address=given["ray_address"],
        room_s=ROOM_S + options["wait_refill_s"],
    )


RAY_ONLY = ("ray_address", "ray_strategy", "ray_resources")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _resources(text: str | None) -> dict[str, float]:
    if text is None:
        return dict(ONE_CPU)
    try:
        return parse_resources(text)
    except ValueError as error:
        raise click.UsageError(f"--ray-resources: {error}.") from error
