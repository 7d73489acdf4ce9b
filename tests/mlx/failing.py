"""What ranks do in the tests in which one of them is lost."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map

import standfast
import standfast.mlx
from standfast.errors import StandfastError

STEPS = 1000000


def die() -> None:
    """Be gone, without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def failed(group: Any, evaluate: Any) -> tuple[str, StandfastError]:
    """Return the text that an evaluation raised, and the structure."""
    try:
        evaluate()
    except RuntimeError as error:
        assert type(error) is RuntimeError  # noqa: PT017 - in a rank, where pytest is not
        failure = group.last_failure()
        assert failure is not None
        return str(error), failure
    raise AssertionError("no error")


def work_until_lost(arguments: dict[str, Any], victim: int, how: str) -> dict[str, Any]:
    """Work; the victim dies after some steps; return what the others see, and that they live on."""
    group = standfast.mlx.init(**arguments)
    x = mx.ones(100000)
    if group.rank() == victim:
        for _ in range(5):
            mx.eval(mx.distributed.all_sum(x, group=group))
        die()

    def evaluate() -> None:
        for _ in range(STEPS):
            x_new = mx.distributed.all_sum(x, group=group) / group.size()
            if how == "eval":
                mx.eval(x_new)
            elif how == "item":
                x_new.sum().item()
            elif how == "async":
                mx.async_eval(x_new)
                mx.synchronize()
            else:
                memoryview(x_new)

    text, failure = failed(group, evaluate)
    again, _ = failed(group, lambda: mx.eval(mx.distributed.all_sum(x, group=group)))
    assert mx.array_equal(mx.ones(3) + 1, mx.full(3, 2.0)).item()  # MLX itself goes on
    told = standfast.mlx.last_failure(group)
    assert told is not None
    return {
        "text": text,
        "again": again,
        "failure": failure.to_dict(),
        "told": str(told),
        "healthy": group.healthy(),
    }


def lost_in(arguments: dict[str, Any], operation: str) -> dict[str, Any]:
    """Rank 1 aborts the group instead of the operation in which rank 0 waits for it."""
    group = standfast.mlx.init(**arguments)
    mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))
    if group.rank() == 1:
        time.sleep(0.5)
        group.abort("enough of this")
        group.close()
        return {}
    x = mx.ones((4, 3), dtype=mx.float32)
    makers: dict[str, Callable[[], Any]] = {
        "all_sum": lambda: mx.distributed.all_sum(x, group=group),
        "all_max": lambda: mx.distributed.all_max(x, group=group),
        "all_min": lambda: mx.distributed.all_min(x, group=group),
        "all_gather": lambda: mx.distributed.all_gather(x, group=group),
        "recv": lambda: mx.distributed.recv((4, 3), mx.float32, 1, group=group),
    }
    text, failure = failed(group, lambda: mx.eval(makers[operation]()))
    return {"text": text, "failure": failure.to_dict()}


def uncaught(victim: int) -> None:
    """Nobody catches: the rank ends with the status of a lost peer."""
    group = standfast.mlx.init()
    for step in range(STEPS):
        if step == 3 and group.rank() == victim:
            die()
        mx.eval(mx.distributed.all_sum(mx.ones(10), group=group))


def lost_behind_the_lock(arguments: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 dies while rank 0 is in foreign code that keeps the GIL."""
    group = standfast.mlx.init(**arguments)
    mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))
    if group.rank() == 1:
        time.sleep(0.5)
        die()
    x = mx.distributed.all_sum(mx.ones(5), group=group)
    mx.async_eval(x)
    ctypes.PyDLL(None).usleep(7_000_000)
    text, failure = failed(group, lambda: mx.eval(x))
    return {"text": text, "failure": failure.to_dict()}


def leave_with_work_under_way(waits_s: float) -> None:
    """Rank 1 is gone; rank 0 hands work to MLX that can't be done, and comes to its end."""
    group = standfast.mlx.init()
    mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))
    if group.rank() == 1:
        time.sleep(waits_s)
        die()
    mx.async_eval([mx.distributed.all_sum(mx.ones(50000), group=group) for _ in range(20)])


def after_the_end(arguments: dict[str, Any]) -> list[str]:
    """A closed group, and an aborted one, are errors with words too."""
    group = standfast.mlx.init(**arguments)
    part = group.split(0)
    assert group.standfast.size == part.size()
    part.close()
    texts = []
    try:
        mx.eval(mx.distributed.all_sum(mx.ones(2), group=part))
    except RuntimeError as error:
        texts.append(str(error))
    mx.eval(mx.distributed.all_sum(mx.ones(2), group=group))
    if group.rank() == 0:
        time.sleep(0.5)  # an operation that finds the group over at its very end raises, too
        group.abort("enough of this")
    text, failure = failed(group, lambda: mx.eval(mx.distributed.all_sum(mx.ones(2), group=group)))
    assert isinstance(failure, standfast.GroupAborted)
    return [*texts, text]


# --- a training -----------------------------------------------------------------------------------

BATCHES = 30
LOST_AT = 12


def model_of() -> Any:
    """The same small network on every rank."""
    mx.random.seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batch_of(step: int, rank: int, size: int) -> tuple[Any, Any]:
    """This rank's share of a step's 24 examples: y = the sum of x."""
    x = mx.random.normal((24, 8), key=mx.random.key(step))
    share = slice(24 * rank // size, 24 * (rank + 1) // size)
    return x[share], x.sum(axis=1, keepdims=True)[share]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Mean squared error of this rank's share."""
    return nn.losses.mse_loss(model(x), y)


def taken_from(root: int, model: Any, group: Any) -> Any:
    """Give every rank the root's weights."""
    gathered = tree_map(
        lambda w: mx.distributed.all_gather(w[None], group=group)[root], model.parameters()
    )
    model.update(gathered)
    mx.eval(model.parameters())
    return model


def train(arguments: dict[str, Any], victim: int) -> dict[str, Any]:
    """Train; the victim dies in the middle; the others form the group again and go on."""
    group = standfast.mlx.init(**arguments)
    model = model_of()
    optimizer = optim.SGD(learning_rate=0.05)
    gradient = nn.value_and_grad(model, loss_of)
    step, sizes, losses, lost = 0, {}, {}, []
    while step < BATCHES:
        if step == LOST_AT and group.rank() == victim and group.size() == arguments["size"]:
            die()
        try:
            value, grads = gradient(model, *batch_of(step, group.rank(), group.size()))
            grads = nn.average_gradients(grads, group=group)
            value = mx.distributed.all_sum(value, group=group) / group.size()
            mx.eval(value, grads)
        except RuntimeError:
            failure = group.last_failure()
            assert isinstance(failure, standfast.PeerDied)
            lost.append(failure.rank)
            # One rank may have applied a step at whose very end the other met the failure.
            group = group.reform(state=step.to_bytes(8, "big"))
            steps = [int.from_bytes(state, "big") for state in group.standfast.states]
            step, model = max(steps), taken_from(steps.index(max(steps)), model, group)
            continue
        optimizer.update(model, grads)
        mx.eval(model.parameters())
        sizes[step], losses[step] = group.size(), value.item()
        step += 1
    weights = mx.concatenate([leaf.flatten() for _, leaf in tree_flatten(model.parameters())])
    every = mx.distributed.all_gather(weights[None], group=group)
    equal = bool(mx.all(every == weights).item())
    group.close()
    return {"sizes": sizes, "losses": losses, "lost": lost, "equal": equal}
