"""The entry point that ``import torch`` runs: makes the name "q7x2" known to torch.distributed.

It registers a function and loads nothing else. An exception here would break ``import torch`` for
every program of the environment, so a failure is a warning now and an error when the backend is
used.
"""

from __future__ import annotations

import warnings
from typing import Any


def _create_backend(dist_backend_opts: Any, options: Any) -> Any:
    """Called by torch.distributed for each process group; the first call loads UCX and q7x2."""
    from q7x2._extension import load

    return load().create_backend(dist_backend_opts, options)


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
    except Exception as error:
        warnings.warn(f"q7x2 could not register its backend: {error!r}", stacklevel=2)
