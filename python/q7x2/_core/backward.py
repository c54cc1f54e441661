"""The backward that runs in this thread: whether there is one, and its end."""

from __future__ import annotations

from collections.abc import Callable

import torch


def is_backward_running() -> bool:
    """Whether this thread runs a node of a backward, or one of its callbacks."""
    return bool(torch._C._current_graph_task_id() != -1)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Run ``call`` when the innermost backward of this thread has ended, unless it fails.

    Checkpointing with ``use_reentrant=True`` runs backwards within a backward.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)
