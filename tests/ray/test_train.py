"""Ray Train with TorchConfig(backend="standfast"): a worker killed, and training goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.ray.real import missing, run

REASON = missing("ray.train.torch")
WORKERS, VICTIM = 3, 1
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(240),
]


def test_a_worker_is_killed(tmp_path: Path) -> None:
    """Survivors' backward passes raise PeerDied; Ray's second try goes on from the checkpoint."""
    told = run(Path(__file__).with_name("train_job.py"), tmp_path, WORKERS)
    assert told["installed"] or not os.environ.get("EXPECT_INSTALLED")
    deaths = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("death-*.json")}
    assert sorted(deaths) == ["death-0.json", "death-2.json"]
    for death in deaths.values():
        assert (death["type"], death["global_rank"], death["step"]) == ("PeerDied", VICTIM, 5)
        assert death["host"]
        assert death["message"].startswith(f"rank {VICTIM} on {death['host']} died")
    ends = [json.loads((tmp_path / f"end-{rank}.json").read_text()) for rank in range(WORKERS)]
    assert [end["first"] for end in ends] == [4] * WORKERS
    assert all("standfast.Group world" in end["group"] for end in ends)
    assert told["loss"] < 0.1
