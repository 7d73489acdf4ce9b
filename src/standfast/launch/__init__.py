"""The launcher behind `standfast run`: starts local ranks, watches them, tells how it ended.

Intent and liveness are kept apart: `spec.py` holds what the user asked for and never changes;
`generation.py` holds what runs at the moment. Decisions (`classify`, `status`, `plan`, `lines`,
`block`, `summary`, `environment`) are pure; `job`, `generation`, `output` and `process` only carry
them out, in one thread. docs/design/launcher.md tells the rest.
"""
