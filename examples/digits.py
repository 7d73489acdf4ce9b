"""Train a small network on scikit-learn's digits, data-parallel, with a checkpoint per epoch.

    standfast run -n 4 -- python examples/digits.py --epochs 20
    standfast run -n 4 --restarts 1 -- python examples/digits.py --checkpoint /tmp/digits.npz

Every rank holds the whole network and works on its share of each batch. One sum over all ranks per
step gives every rank the same gradient, so all take the same step and hold the same bits.

Nothing here deals with failures. If a rank dies, `all_sum` raises PeerDied on all others, they end
with exit status 75, and `standfast run --restarts` starts the ranks again, which go on from the
last checkpoint. An interrupted run ends with the same parameters, bit for bit, as an undisturbed
one with as many ranks, because what happens in an epoch follows from seed and epoch alone.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import standfast

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SHAPES = ((64, 64), (64,), (64, 10), (10,))  # weights and biases of two layers
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
TEST_IMAGES = 360
RATE, MOMENTUM = 0.05, 0.9


def load() -> tuple[Floats, Ints, Floats, Ints]:
    """Return training images and labels, test images and labels; pixels scaled to 0..1."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))  # the same split for every seed
    x, y = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    return x[TEST_IMAGES:], y[TEST_IMAGES:], x[:TEST_IMAGES], y[:TEST_IMAGES]


def carve(flat: Floats) -> list[Floats]:
    """Return one view per weight or bias into a flat array: all gradients travel in one sum."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    pieces = np.split(flat[:PARAMETERS], ends[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, SHAPES, strict=True)]


def initial(seed: int) -> Floats:
    """Return the parameters to start from: He's initialisation, biases zero."""
    rng = np.random.default_rng(seed)
    parameters = np.zeros(PARAMETERS, np.float32)
    for view in carve(parameters):
        if view.ndim == 2:
            view[:] = rng.normal(scale=np.sqrt(2 / view.shape[0]), size=view.shape)
    return parameters


def forward(parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Return the hidden layer after its ReLU, and the logarithms of the ten probabilities."""
    w1, b1, w2, b2 = carve(parameters)
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def gradient(parameters: Floats, x: Floats, y: Ints, out: Floats) -> None:
    """Fill out with the gradient of the cross entropy summed over x, and that sum as last element.

    A sum, not a mean: shares of a batch may differ in size, and their sums still add up.
    """
    _, _, w2, _ = carve(parameters)
    w1_grad, b1_grad, w2_grad, b2_grad = carve(out)
    hidden, log_p = forward(parameters, x)
    rows = np.arange(len(y))
    out[PARAMETERS] = -log_p[rows, y].sum()
    error = np.exp(log_p)
    error[rows, y] -= 1
    hidden_error = (error @ w2.T) * (hidden > 0)
    w1_grad[:], b1_grad[:] = x.T @ hidden_error, hidden_error.sum(axis=0)
    w2_grad[:], b2_grad[:] = hidden.T @ error, error.sum(axis=0)


def accuracy(group: standfast.Group, parameters: Floats, x: Floats, y: Ints) -> float:
    """Return the share of images recognised; every rank looks at its part of them."""
    mine = slice(group.rank, None, group.size)
    _, log_p = forward(parameters, x[mine])
    right = np.array([(log_p.argmax(axis=1) == y[mine]).sum()])
    group.all_sum(right, out=right)
    return float(right[0] / len(y))


def save(path: Path, epoch: int, parameters: Floats, velocity: Floats) -> None:
    """Write a checkpoint so that the file is always either the old one or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.savez(file, epoch=epoch, parameters=parameters, velocity=velocity)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def resume(group: standfast.Group, path: Path, parameters: Floats, velocity: Floats) -> int:
    """Restore the last checkpoint, if there is one, and return the number of epochs done.

    Rank 0 reads and sends to all: ranks that each read for themselves could see different files.
    """
    epoch = np.zeros(1, np.int64)
    if group.rank == 0 and path.exists():
        with np.load(path) as saved:
            epoch[0] = saved["epoch"]
            parameters[:], velocity[:] = saved["parameters"], saved["velocity"]
    for array in (epoch, parameters, velocity):
        group.broadcast(array, root=0, out=array)
    return int(epoch[0])


def train(group: standfast.Group, options: argparse.Namespace) -> None:
    """Train for the epochs that are still to be done; rank 0 prints and writes."""
    x, y, x_test, y_test = load()
    parameters, velocity = initial(options.seed), np.zeros(PARAMETERS, np.float32)
    total = np.empty(PARAMETERS + 1, np.float32)  # gradients, then the loss
    done = resume(group, options.checkpoint, parameters, velocity) if options.checkpoint else 0
    if group.rank == 0 and done:
        print(f"resuming after epoch {done} from {options.checkpoint}", flush=True)
    for epoch in range(done + 1, options.epochs + 1):
        order = np.random.default_rng((options.seed, epoch)).permutation(len(x))
        loss = 0.0
        for start in range(0, len(order), options.batch):
            batch = order[start : start + options.batch]
            mine = batch[group.rank :: group.size]
            gradient(parameters, x[mine], y[mine], out=total)
            group.all_sum(total, out=total)
            velocity *= MOMENTUM
            velocity -= RATE / len(batch) * total[:PARAMETERS]
            parameters += velocity
            loss += float(total[PARAMETERS])
            time.sleep(options.slow_ms / 1000)
        score = accuracy(group, parameters, x_test, y_test)
        if group.rank == 0:
            if options.checkpoint:
                save(options.checkpoint, epoch, parameters, velocity)
            print(f"epoch {epoch:3}  loss {loss / len(x):.4f}  accuracy {score:.4f}", flush=True)
    score = accuracy(group, parameters, x_test, y_test)
    if group.rank == 0:
        print(f"final test accuracy {score:.4f} after {options.epochs} epochs", flush=True)


def main() -> None:
    """Read the options, join the group, train."""
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits, data-parallel.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch, resumed from")
    parser.add_argument("--batch", type=int, default=64, help="images per step, of all ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=0, help="pause after each step")
    options = parser.parse_args()
    with standfast.init() as group:
        print(f"rank {group.rank} of {group.size} is process {os.getpid()}", flush=True)
        train(group, options)


if __name__ == "__main__":
    main()
