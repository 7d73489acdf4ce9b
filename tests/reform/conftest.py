"""The nursery that the death tests have."""

from __future__ import annotations

from tests.death.conftest import nursery

__all__ = ["nursery"]
