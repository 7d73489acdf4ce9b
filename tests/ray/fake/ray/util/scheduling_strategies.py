"""Any place will do."""

from dataclasses import dataclass
from typing import Any


@dataclass
class PlacementGroupSchedulingStrategy:
    placement_group: Any
    placement_group_bundle_index: int
    placement_group_capture_child_tasks: bool
