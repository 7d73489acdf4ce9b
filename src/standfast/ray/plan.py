"""What is asked of Ray, as plain values: places, resources, strategy. Pure.

A place is a bundle of the placement group with room for one rank. The launcher knows it as a host
by the name of "ray-2"; on which node it is, Ray decides, and may decide anew after a loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from standfast.launch.placement import Host

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
PREFIX = "ray-"
ONE_CPU = {"CPU": 1.0}
OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resources that an actor's options have names of their own for."""


@dataclass(frozen=True, slots=True)
class RayPlan:
    """A job's wishes.

    Fields:
        places: bundles of the placement group, one rank each, spares included.
        strategy: one of STRATEGIES.
        resources: what each place has, in Ray's words: {"CPU": 1, "GPU": 1}.
        address: of the cluster; None: RAY_ADDRESS, else the one that runs on this machine.
        room_s: how long Ray may take to find room for all places, before the job is given up.
    """

    places: int
    strategy: str = "PACK"
    resources: Mapping[str, float] = field(default_factory=lambda: dict(ONE_CPU))
    address: str | None = None
    room_s: float = 30.0

    def to_json(self) -> str:
        """Return it as the steward's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RayPlan:
        """Read what to_json() wrote."""
        return cls(**json.loads(text))

    def bundles(self) -> list[dict[str, float]]:
        """Return the placement group's bundles."""
        return [dict(self.resources) for _ in range(self.places)]

    def words(self) -> str:
        """Return "4 places of {CPU: 1} (PACK)"."""
        number = f"{self.places} place{'' if self.places == 1 else 's'}"
        return f"{number} of {resource_words(self.resources)} ({self.strategy})"


def parse_resources(text: str) -> dict[str, float]:
    """Read "CPU=1,GPU=0.5,accelerator=1"; a place without CPU has none.

    Raises:
        ValueError: the message names the part that is none.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if not name or not equals or not 0 < amount < math.inf:
            raise ValueError(f"{part.strip() or 'nothing'!r} is no NAME=AMOUNT above 0")
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = amount
    return found


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of an actor that takes a whole bundle."""
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    options |= {OWN_OPTIONS[name]: n for name, n in resources.items() if name in OWN_OPTIONS}
    others = {name: n for name, n in resources.items() if name not in OWN_OPTIONS}
    return {**options, "resources": others} if others else options


def resource_words(resources: Mapping[str, float]) -> str:
    """Return "{CPU: 1, GPU: 0.5}"."""
    return "{" + ", ".join(f"{name}: {n:g}" for name, n in resources.items()) + "}"


def hosts_of(places: int) -> tuple[Host, ...]:
    """Return the places as the launcher's hosts."""
    return tuple(Host(f"{PREFIX}{place}") for place in range(places))


def place_of(host: str) -> int:
    """Return the number of a place by its name as a host."""
    return int(host.removeprefix(PREFIX))
