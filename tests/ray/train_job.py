"""A Ray Train job whose torch backend is standfast; one worker is killed once. For Ray's Python.

    python train_job.py FOLDER WORKERS

Each worker writes what it saw into the folder. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

VICTIM = 1
STEPS, KILLED_AT, SAVED_AT = 8, 5, 3


def train(config: dict[str, str]) -> None:
    """Fit a line with DDP; a checkpoint before the death, from which the second try goes on."""
    import torch.distributed as dist

    folder = Path(config["folder"])
    context = ray.train.get_context()
    rank = context.get_world_rank()
    assert dist.get_backend() == "standfast"
    data = torch.arange(64, dtype=torch.float32).view(64, 1) / 64
    loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(data, 3 * data), 8))
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    first = load(model)
    for step in range(first, STEPS):
        if first == 0 and step == KILLED_AT and rank == VICTIM:
            ray.train.get_all_reported_checkpoints()  # when Ray has it for certain
            os.kill(os.getpid(), signal.SIGKILL)
        loss = torch.zeros(())
        try:
            for inputs, wanted in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                loss.backward()
                optimizer.step()
        except dist.DistBackendError as error:
            told = {**error.to_dict(), "step": step}
            (folder / f"death-{rank}.json").write_text(json.dumps(told))
            raise
        report(model, step, float(loss), rank)
    summary = {"first": first, "loss": float(loss), "group": str(dist.group.WORLD.standfast_group)}
    (folder / f"end-{rank}.json").write_text(json.dumps(summary))


def load(model: Any) -> int:
    """Take a checkpoint over, if there is one; return the first step."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as path:
        state = torch.load(Path(path) / "state.pt")
    model.module.load_state_dict(state["model"])
    return int(state["step"]) + 1


def report(model: Any, step: int, loss: float, rank: int) -> None:
    """Tell Ray; save a checkpoint once."""
    if step != SAVED_AT:
        ray.train.report({"loss": loss})
        return
    with tempfile.TemporaryDirectory() as path:
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "step": step}, Path(path) / "state.pt")
            ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint(path))
        else:
            ray.train.report({"loss": loss})


def register() -> None:
    """Do what an installed standfast has done by its entry point when torch is imported."""
    import standfast.torch  # noqa: F401


def main(folder: str, workers: int) -> None:
    """Train on a cluster of its own, with one failure allowed."""
    installed = any(each.name == "standfast" for each in entry_points(group="torch.backends"))
    hook = None if installed else {"worker_process_setup_hook": register}
    ray.init(
        num_cpus=workers + 1,
        include_dashboard=False,
        object_store_memory=80 << 20,
        logging_level="error",
        log_to_driver=False,
        runtime_env=hook,
    )
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        torch_config=TorchConfig(backend="standfast"),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            storage_path=folder,
            name="fit",
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    )
    result = trainer.fit()
    print(json.dumps({"installed": installed, "loss": result.metrics["loss"]}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
