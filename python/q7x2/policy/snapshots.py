"""Snapshots of a training in the host's memory, and the way back to the last good one."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any


class Snapshots:
    """Keeps the last good states of whatever has ``state_dict`` and ``load_state_dict``.

    A state can look good although the training has begun to diverge. So if the training diverges
    again before a new snapshot was taken, it goes back to the one before, if there is one.

    Args:
        objects: By name.
        keep: Snapshots that are kept.
    """

    def __init__(self, objects: dict[str, Any], keep: int) -> None:
        self.objects = objects
        self.roll_backs = 0  # since the last snapshot
        self._kept: deque[dict[str, Any]] = deque(maxlen=keep)

    def take(self, hook: dict[str, Any]) -> None:
        """Remember the objects' states, and that of the hook."""
        states = {name: _on_host(each.state_dict()) for name, each in self.objects.items()}
        self._kept.append({"hook": _on_host(hook), "objects": states})
        self.roll_backs = 0

    def restore(self) -> dict[str, Any]:
        """Give the objects their states back, and return the hook's."""
        if self.roll_backs > 0 and len(self._kept) > 1:
            self._kept.pop()
        self.roll_backs += 1
        snapshot = self._kept[-1]
        for name, state in snapshot["objects"].items():
            self.objects[name].load_state_dict(copy.deepcopy(state))
        hook: dict[str, Any] = copy.deepcopy(snapshot["hook"])
        return hook


def _on_host(state: Any) -> Any:
    """A copy that shares nothing with ``state``, with tensors in the host's memory."""
    import torch

    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        copied = copy.copy(state)  # also of subclasses, whose constructors differ
        for key, value in state.items():
            copied[key] = _on_host(value)
        return copied
    if isinstance(state, (list, tuple)) and not hasattr(state, "_fields"):
        return type(state)(_on_host(value) for value in state)
    return copy.deepcopy(state)
