"""Uneven inputs of a plain module: ranks that have no more inputs go along with zeros.

``torch.distributed.algorithms.Join`` counts, before each forward, the ranks that still have inputs.
A rank that has none then takes part in the collectives of that step. Means are over all ranks, with
or without inputs. In the end all ranks get the parameters and buffers of the last one to finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

if TYPE_CHECKING:
    from q7x2.hooks.module_reducer import ModuleReducer


class JoinableModule(Joinable):
    """What ``Join`` takes for a plain module with a hook.

    Args:
        reducer: The module's gradients.
    """

    def __init__(self, reducer: ModuleReducer) -> None:
        super().__init__()
        self.reducer = reducer
        reducer.before_forward.append(self._before_forward)

    def join_hook(self, **options: Any) -> JoinHook:
        """What a rank without inputs does.

        Raises:
            ValueError: ``divide_by_initial_world_size`` is False.
        """
        if not options.get("divide_by_initial_world_size", True):
            raise ValueError(
                "divide_by_initial_world_size=False divides gradients by the number of ranks that "
                "still have inputs, which a hook does not know: expected True"
            )
        return _Shadow(self)

    @property
    def join_device(self) -> torch.device:
        return self.reducer.device

    @property
    def join_process_group(self) -> Any:
        return self.reducer.group

    def reduced(self, value: int, op: Any = dist.ReduceOp.SUM) -> int:
        """A whole number, reduced over the ranks."""
        flag = torch.tensor([value], dtype=torch.int64, device=self.reducer.device)
        dist.all_reduce(flag, op, group=self.reducer.group)
        return int(flag.item())

    def _before_forward(self) -> None:
        if self._join_config.enable:
            Join.notify_join_context(self)
            self.reduced(int(self.reducer.syncs))


class _Shadow(JoinHook):
    def __init__(self, module: JoinableModule) -> None:
        self._module = module

    def main_hook(self) -> None:
        if self._module.reduced(0):
            self._module.reducer.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        module = self._module
        rank = dist.get_rank(module.reducer.group)
        last = module.reduced(rank if is_last_joiner else -1, dist.ReduceOp.MAX)
        module.reducer.broadcast(last)
