"""Backwards: whether one runs in this thread, its end, and whether it reduces gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def is_backward_running() -> bool:
    """Whether this thread runs a node of a backward, or one of its callbacks."""
    return bool(torch._C._current_graph_task_id() != -1)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Run ``call`` when the innermost backward of this thread has ended, unless it fails.

    Checkpointing with ``use_reentrant=True`` runs backwards within a backward.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)


@contextmanager
def without_gradient_sync(model: Any) -> Iterator[None]:
    """In it, a backward of a model of FSDP2 or ``replicate()`` leaves gradients on their rank."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
