"""What ranks do in the tests of the torch backend: each function is a scenario.

They are called as scenario(rank, size, folder) in processes of their own, and return what the test
wants to know. assert, here, is the check of a result.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import standfast
import standfast.torch
from tests.torch.values import check_all

VICTIM = 1
STEPS = 12
TIMEOUT = timedelta(seconds=60)


def join(rank: int, size: int, folder: Path, timeout: timedelta = TIMEOUT) -> Any:
    where = f"file://{folder}/store"
    dist.init_process_group(
        "standfast", init_method=where, rank=rank, world_size=size, timeout=timeout
    )
    return dist.group.WORLD


# --- operations -----------------------------------------------------------------------------------


def operations(rank: int, size: int, folder: Path) -> list[str]:
    join(rank, size, folder)
    done = check_all(rank, size)
    dist.barrier()
    dist.destroy_process_group()
    return done


def groups(rank: int, size: int, folder: Path) -> list[Any]:
    """new_group, split_group, objects, a second init after the first."""
    world = join(rank, size, folder)
    pair = dist.new_group([0, 1])
    found: list[Any] = []
    if rank < 2:
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        found.append(x.item())
        assert dist.get_backend(pair) == "standfast"
    halves = world.split_group([r for r in range(size) if r % 2 == rank % 2])
    x = torch.tensor([float(rank)])
    halves.allreduce([x]).wait()
    found.append(x.item())
    halves.shutdown()
    told: list[Any] = [None] * size
    dist.all_gather_object(told, {"rank": rank, "text": "x" * rank})
    assert [each["rank"] for each in told] == list(range(size))
    listed = [{"of": rank}]
    dist.broadcast_object_list(listed, src=size - 1)
    assert listed[0] == {"of": size - 1}
    dist.barrier()
    dist.destroy_process_group()
    join(rank, size, folder / "again")
    dist.barrier()
    dist.destroy_process_group()
    return found


def again(rank: int, size: int, folder: Path) -> Any:
    """After a death the survivors leave, and are a job of their own, in the same processes."""
    join(rank, size, folder)
    die_beside(rank, size, folder)
    told = caught(dist.barrier, folder)
    dist.destroy_process_group()
    new = rank - (rank > VICTIM)
    join(new, size - 1, folder / "again")
    pair = dist.new_group([0, 1])
    x = torch.ones(1)
    if new < 2:
        dist.all_reduce(x, group=pair)
    dist.all_reduce(x)
    dist.barrier()
    dist.destroy_process_group()
    return [told["class"], x.item()]


def limits(rank: int, size: int, folder: Path) -> Any:
    """torch's timeout holds from the first operation on, though the late rank is alive."""
    join(rank, size, folder, timeout=timedelta(seconds=2))
    over = folder / "over"
    if rank != 0:
        while not over.exists():  # job.py has a limit
            time.sleep(0.01)
        return None
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        return [type(error).__name__, dist.group.WORLD.get_error().name]
    finally:
        over.touch()
    return "no error"


# --- training -------------------------------------------------------------------------------------


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1)
    )


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 16, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def train(
    model: Any, rank: int, steps: int = STEPS, before: Callable[[int], None] | None = None
) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        if before is not None:
            before(step)
        x, y = batch(step % 2, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def training(rank: int, size: int, folder: Path) -> dict[str, list[float]]:
    """The same small job with DDP over Gloo and over us."""
    join(rank, size, folder)
    gloo = dist.new_group(backend="gloo")
    found = {}
    for name, group in (("gloo", gloo), ("standfast", dist.group.WORLD)):
        # Each rank begins elsewhere: DDP gives all of them rank 0's weights.
        model = DistributedDataParallel(model_of(rank), process_group=group, bucket_cap_mb=0.001)
        found[name] = train(model, rank)
    dist.destroy_process_group()
    return found


def sharded(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """FSDP2 on the CPU beside the same model, whole; its state through a checkpoint."""
    join(rank, size, folder)
    mesh = init_device_mesh("cpu", (size,))
    whole = model_of(7)
    expected = train(DistributedDataParallel(whole), rank)
    model = model_of(7)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, rank)
    saved = {"model": model.state_dict()}
    checkpoint.save(saved, checkpoint_id=str(folder / "saved"))
    other = model_of(8)
    fully_shard(other, mesh=mesh)
    loaded = {"model": other.state_dict()}
    checkpoint.load(loaded, checkpoint_id=str(folder / "saved"))
    other.load_state_dict(loaded["model"])
    x, _ = batch(99, 0)
    same = bool(torch.allclose(model(x), other(x), atol=1e-6))
    dist.barrier()
    dist.destroy_process_group()
    return {"whole": expected, "sharded": losses, "loaded": same}


def meshes(rank: int, size: int, folder: Path) -> list[float]:
    """DeviceMesh of two dimensions, DTensor, functional collectives."""
    join(rank, size, folder)
    shape = (2, size // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns"))
    rows = mesh["rows"].get_group()
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=rows)
    full = torch.arange(4.0 * size).view(size, 4)
    tensor = DTensor.from_local(full[rank : rank + 1], init_device_mesh("cpu", (size,)), [Shard(0)])
    assert torch.equal(tensor.redistribute(placements=[Replicate()]).to_local(), full)
    y = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    assert torch.equal(y + 0, torch.full((4,), float(size)))
    y = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    assert (y + 0).tolist() == [float(r) for r in range(size) for _ in range(2)]
    y = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, dist.group.WORLD)
    assert (y + 0).tolist() == [size] * 2
    y = functional.all_to_all_single(torch.arange(float(size)), None, None, dist.group.WORLD)
    assert (y + 0).tolist() == [rank] * size
    y = functional.broadcast(torch.tensor([float(rank)]), 1, dist.group.WORLD)
    assert (y + 0).item() == 1
    dist.barrier()
    dist.destroy_process_group()
    return [x.item()]


# --- deaths ---------------------------------------------------------------------------------------


def die(rank: int, folder: Path) -> None:
    """If this rank is the victim: note the time, and be killed."""
    if rank == VICTIM:
        (folder / "killed_ns").write_text(str(time.monotonic_ns()))
        os.kill(os.getpid(), signal.SIGKILL)


def die_beside(rank: int, size: int, folder: Path) -> None:
    """Kill the victim once the others have come here: it must not be in what was before."""
    if rank != VICTIM:
        (folder / f"past{rank}").touch()
        return
    others = [folder / f"past{other}" for other in range(size) if other != VICTIM]
    while not all(path.exists() for path in others):  # job.py has a limit
        time.sleep(0.005)
    die(rank, folder)


def caught(work: Callable[[], object], folder: Path) -> dict[str, Any]:
    """Do something that the victim's death ends; tell how."""
    try:
        work()
    except dist.DistBackendError as error:
        now_ns = time.monotonic_ns()
        killed_ns = int((folder / "killed_ns").read_text())
        return {
            "class": type(error).__name__,
            "ours": isinstance(error, standfast.PeerDied),
            "rank": getattr(error, "global_rank", None),
            "text": str(error),
            "seconds": (now_ns - killed_ns) / 1e9,
        }
    raise AssertionError("nothing was raised")


def dying(rank: int, size: int, folder: Path, work: Callable[[], object]) -> dict[str, Any]:
    """Let the victim die and the others work; then see what the group says of itself."""
    told = caught(work, folder)
    told["state"] = dist.group.WORLD.get_error().name
    dist.destroy_process_group()
    return told


def death_in_all_reduce(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    dist.all_reduce(torch.ones(4))
    die_beside(rank, size, folder)
    return dying(rank, size, folder, lambda: dist.all_reduce(torch.ones(1 << 20)))


def death_in_wait(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    work = None
    if rank != VICTIM:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert not work.is_completed()
    die_beside(rank, size, folder)
    assert work is not None
    return dying(rank, size, folder, work.wait)


def death_in_recv(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    dist.barrier()
    die_beside(rank, size, folder)
    return dying(rank, size, folder, lambda: dist.recv(torch.ones(4), src=VICTIM))


def death_in_recv_any(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    dist.barrier()
    die_beside(rank, size, folder)
    return dying(rank, size, folder, lambda: dist.recv(torch.ones(4)))


def death_in_backward(rank: int, size: int, folder: Path) -> Any:
    """The victim is killed by a hook in its backward pass."""
    join(rank, size, folder)
    plain = model_of(rank)
    step = [0]

    def hook(grad: torch.Tensor) -> None:
        if step[0] == 2:
            die(rank, folder)

    plain[0].weight.register_hook(hook)
    model = DistributedDataParallel(plain, bucket_cap_mb=0.001)

    def count(at: int) -> None:
        step[0] = at

    return dying(rank, size, folder, lambda: train(model, rank, before=count))


def death_in_fsdp(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    model = model_of(7)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))

    def before(step: int) -> None:
        if step == 2:
            die(rank, folder)

    return dying(rank, size, folder, lambda: train(model, rank, before=before))


def death_in_functional(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    dist.barrier()
    die_beside(rank, size, folder)

    def work() -> None:
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 0

    return dying(rank, size, folder, work)


def death_in_mesh(rank: int, size: int, folder: Path) -> Any:
    """In a collective of a part of the ranks: those of the other part have no such error."""
    join(rank, size, folder)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    columns = mesh["columns"].get_group()
    dist.barrier()
    die_beside(rank, size, folder)
    group = columns if rank < size // 2 else dist.group.WORLD
    return dying(rank, size, folder, lambda: dist.all_reduce(torch.ones(4), group=group))


def death_in_checkpoint(rank: int, size: int, folder: Path) -> Any:
    join(rank, size, folder)
    model = model_of(7)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    dist.barrier()
    die_beside(rank, size, folder)
    state = {"model": model.state_dict()}
    path = str(folder / "saved")
    return dying(rank, size, folder, lambda: checkpoint.save(state, checkpoint_id=path))


def death_in_new_group(rank: int, size: int, folder: Path) -> Any:
    """While a part is being formed; the whole job's group knows, so nobody waits for the limit."""
    join(rank, size, folder)
    dist.barrier()
    die_beside(rank, size, folder)
    return dying(rank, size, folder, lambda: dist.new_group(list(range(size))))
