"""Train as digits.py does, but survive: a lost rank costs one step, and nobody else starts again.

    standfast run -n 4 --restarts 3 -- python examples/digits.py --checkpoint /tmp/digits.npz
    standfast run -n 4 --restarts 3 --replace -- python examples/survive.py --wait-s 30

The first line is the one way: all ranks end, the launcher starts all of them anew, and they go on
from the last checkpoint. The second is the other: survivors keep what they have in memory, form the
group again with ``reform()``, and go on with the step that failed. The launcher starts a newcomer
in the lost rank's place (``--spares 1``: it has started one before, which has its imports done); it
gets the state from the rank that is furthest. Without a launcher, start a newcomer with
STANDFAST_JOIN set to the addresses that rank 0 prints.

All ranks do the same after every forming, the first one too, whatever their history: they compare
what they hold, and take what the furthest has. So nobody waits for a message that nobody sends.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
from digits import MOMENTUM, PARAMETERS, RATE, accuracy, gradient, initial, load

import standfast


class Training:
    """All that a rank would lose: parameters, velocity, and how many steps made them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.x, self.y, self.x_test, self.y_test = load()
        self.steps_per_epoch = -(-len(self.x) // options.batch)
        self.steps = 0
        self.parameters = initial(options.seed)
        self.velocity = np.zeros(PARAMETERS, np.float32)

    def state(self) -> bytes:
        """Return what the others are to know of it."""
        return self.steps.to_bytes(8, "big")

    def level(self, group: standfast.Group) -> None:
        """Take the state of the rank that is furthest. All ranks call it after every forming.

        A step counts for a rank once it has the sum of all gradients. Where a rank died in that
        sum, some may have it and others not: they are one step apart.
        """
        steps = [int.from_bytes(state, "big") for state in group.states]
        furthest = max(range(group.size), key=lambda rank: steps[rank])
        if len(set(steps)) > 1:
            for array in (self.parameters, self.velocity):
                group.broadcast(array, root=furthest, out=array)
            self.steps = steps[furthest]

    def run(self, group: standfast.Group) -> None:
        """Train to the end, or until a peer is lost: then this has the last whole step."""
        total = np.empty(PARAMETERS + 1, np.float32)
        self.level(group)
        while self.steps < self.options.epochs * self.steps_per_epoch:
            batch = self.batch()
            mine = batch[group.rank :: group.size]
            gradient(self.parameters, self.x[mine], self.y[mine], out=total)
            group.all_sum(total, out=total)
            self.velocity *= MOMENTUM
            self.velocity -= RATE / len(batch) * total[:PARAMETERS]
            self.parameters += self.velocity
            self.steps += 1
            if group.rank == 0 and self.steps % self.steps_per_epoch == 0:
                print(f"epoch {self.steps // self.steps_per_epoch} is done", flush=True)
            time.sleep(self.options.slow_ms / 1000)
        score = accuracy(group, self.parameters, self.x_test, self.y_test)
        if group.rank == 0:
            print(f"final test accuracy {score:.4f} with {group.size} ranks", flush=True)

    def batch(self) -> np.ndarray:
        """Return the images of the next step: they follow from seed and step alone."""
        epoch, number = divmod(self.steps, self.steps_per_epoch)
        order = np.random.default_rng((self.options.seed, epoch + 1)).permutation(len(self.x))
        return order[number * self.options.batch :][: self.options.batch]


def introduce(group: standfast.Group) -> None:
    """Say who is here, and where a newcomer has to ask."""
    was = "new" if group.old_rank is None else f"rank {group.old_rank} before"
    print(
        f"rank {group.rank} of {group.size}, {was}, generation {group.generation} "
        f"of {group.id}, process {os.getpid()}",
        flush=True,
    )
    if group.rank == 0:
        print(f"STANDFAST_JOIN={','.join(group.addresses())}", flush=True)


def main() -> None:
    """Join the group, or another generation of it, and train; form it again if a peer is lost."""
    parser = argparse.ArgumentParser(description="Train on digits, and survive lost ranks.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="images per step, of all ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=0, help="pause after each step")
    parser.add_argument("--wait-s", type=float, default=0, help="wait so long for newcomers")
    parser.add_argument("--min-size", type=int, help="go on with so few ranks")
    options = parser.parse_args()
    training = Training(options)
    group = standfast.init(state=training.state())
    while True:
        introduce(group)
        try:
            training.run(group)
            break
        except standfast.PeerError as lost:
            print(f"rank {group.rank} lost rank {lost.rank}: {lost.cause}", flush=True)
        group = group.reform(
            min_size=options.min_size, wait_s=options.wait_s, state=training.state()
        )
    group.close()


if __name__ == "__main__":
    main()
