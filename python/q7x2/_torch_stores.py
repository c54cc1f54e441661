"""Rank 0 serves the store of the default group without waiting for the other ranks first.

With ``env://`` and ``tcp://``, and without torchrun, rank 0 serves the store itself. torch's store
then waits until every rank is connected, and says "2/3 clients joined" when one never comes: no
rank learns which. The ranks of a q7x2 group wait for each other anyway, and name who is missing. So
for such a group the store does not wait, and no rank counts itself there, which would cost it a
round trip. Other groups are made as if q7x2 were not installed.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from importlib import import_module
from typing import Any

_NAME = "q7x2"
_waits_itself: ContextVar[bool] = ContextVar("q7x2_waits_itself", default=False)


def serve_without_waiting() -> None:
    """Teach this to torch.distributed. A second call has no effect."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    # The package has a function of the module's name.
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    if hasattr(c10d.init_process_group, "serves_without_waiting"):
        return
    init: Any = _with_a_hint(c10d.init_process_group)
    init.serves_without_waiting = True
    c10d.init_process_group = dist.init_process_group = init
    rendezvous.TCPStore = _with_a_choice(rendezvous.TCPStore)


def _with_a_hint(init: Any) -> Any:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def with_a_hint(*args: Any, **options: Any) -> Any:
        try:
            backend = signature.bind(*args, **options).arguments.get("backend")
        except TypeError:
            backend = None  # torch says what is wrong
        token = _waits_itself.set(_is_all_q7x2(backend))
        try:
            return init(*args, **options)
        finally:
            _waits_itself.reset(token)

    return with_a_hint


def _with_a_choice(make: Any) -> Any:
    @functools.wraps(make, updated=())
    def with_a_choice(*args: Any, **options: Any) -> Any:
        if _waits_itself.get():
            options.setdefault("wait_for_workers", False)
        return make(*args, **options)

    return with_a_choice


def _is_all_q7x2(backend: Any) -> bool:
    """Whether every device of ``backend``, as ``init_process_group`` takes it, has q7x2."""
    names = [each.rpartition(":")[2] for each in str(backend or "").lower().split(",")]
    return all(name == _NAME for name in names)
