"""A rank of run(function): fetches the call, makes it, delivers its result.

    python -P -m standfast.ray.call

An exception stays uncaught: its traceback is in the rank's output, and standfast tells the peers.
"""

from __future__ import annotations

import os
import pickle
import sys

from standfast.ray.exchange import deliver, fetch

EXCHANGE = "STANDFAST_RAY_EXCHANGE"
"""Where the call and its results are exchanged; set by api.py, read here."""


def main() -> None:
    """Make the call."""
    variable = os.environ.pop(EXCHANGE)  # what the function starts has no business with it
    launcher = os.environ["SSH_CONNECTION"].split()[0]
    rank, generation = (int(os.environ[f"STANDFAST_{name}"]) for name in ("RANK", "GENERATION"))
    folders, call = pickle.loads(fetch(launcher, variable))
    sys.path += [folder for folder in folders if folder not in sys.path]
    function, args, kwargs = pickle.loads(call)
    result = function(*args, **kwargs)
    from ray import cloudpickle  # the classes of results may live in the caller's __main__

    data = cloudpickle.dumps(result)
    deliver(launcher, variable, rank=rank, generation=generation, data=data)


if __name__ == "__main__":
    main()
