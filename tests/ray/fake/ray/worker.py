"""An actor's process: calls come on stdin, results go to stdout."""

import importlib
import os
import pickle
import sys

if os.environ.get("FAKE_RAY") == "actors die":
    os._exit(1)
actor = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
calls, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while True:
    try:
        method, args = pickle.load(calls)
    except EOFError:
        break
    pickle.dump(getattr(actor, method)(*args), results)
    results.flush()
