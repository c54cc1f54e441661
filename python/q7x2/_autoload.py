"""The entry point that ``import torch`` runs: makes the name "q7x2" known to torch.distributed.

It registers a function and loads nothing else. An exception here would break ``import torch`` for
every program of the environment, so a failure is a warning now and an error when the backend is
used.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from q7x2._backend import create_backend
from q7x2._torch_groups import teach_torch
from q7x2._torch_stores import serve_without_waiting

_inherited_world: Any = None
"""In a forked child: the default process group that it has a copy of."""


def _remember_world() -> None:
    import torch.distributed as dist

    global _inherited_world
    _inherited_world = dist.group.WORLD


def _create_backend(dist_backend_opts: Any, options: Any) -> Any:
    """Called by torch.distributed for each process group; the first call loads UCX and q7x2."""
    import torch.distributed as dist

    # Its store's connection is the parent's: whatever the child sends there confuses the parent.
    if dist.is_initialized() and dist.group.WORLD is _inherited_world:
        raise dist.DistBackendError(
            "the process group of the parent cannot be used in a forked child; call "
            "destroy_process_group() there, which leaves the parent's group alone, and then "
            "init_process_group() with a store of its own"
        )
    if os.environ.get("Q7X2_CONFIG"):
        from q7x2._core import config_file

        config_file.apply()
    if os.environ.get("Q7X2_ATTACH"):
        from q7x2._attach_all import follow_models

        follow_models()
    return create_backend(dist_backend_opts, options, in_job=True)


def register() -> None:
    """Register the backend with torch.distributed unless it is registered already. Never raises."""
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return  # a torch without c10d: the backend's users get torch's own error
        if "Q7X2" not in dist.Backend._plugins:
            dist.Backend.register_backend(
                "q7x2", _create_backend, extended_api=True, devices=["cpu", "cuda"]
            )
            os.register_at_fork(after_in_child=_remember_world)
            teach_torch()
            serve_without_waiting()
    except Exception as error:
        warnings.warn(f"q7x2 could not register its backend: {error!r}", stacklevel=2)
