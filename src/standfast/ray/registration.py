"""Makes the backend known to ray.util.collective, in each process that uses it."""

from __future__ import annotations

from standfast.errors import ConfigError

NAME = "STANDFAST"
"""As Ray spells it; programs may write it in any case."""


def register() -> None:
    """Make ``"standfast"`` a backend of ``ray.util.collective`` in this process. Again: nothing.

    Ray asks for that in the driver and in every actor of a group. The driver can have it done in
    all processes: ``ray.init(runtime_env={"worker_process_setup_hook": standfast.ray.register})``.

    Raises:
        ConfigError: there is no Ray here, or one that takes no backends from outside.
    """
    try:
        from ray.util.collective import backend_registry
    except ImportError as error:
        raise ConfigError(
            f"ray.util.collective takes no backend from outside: {error}",
            hint="pip install 'ray>=2.56' numpy, on all nodes",
        ) from error
    if not backend_registry._global_registry.is_registered(NAME):
        from standfast.ray.collective import CollectiveGroup

        backend_registry.register_collective_backend(NAME, CollectiveGroup)
