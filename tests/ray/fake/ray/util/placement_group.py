"""Groups that are there at once, or never."""

import os
from typing import Any


class PlacementGroup:
    def wait(self, timeout_seconds: float) -> bool:
        return os.environ.get("FAKE_RAY") != "no room"


def placement_group(bundles: list[dict[str, float]], strategy: str) -> Any:
    return PlacementGroup()
