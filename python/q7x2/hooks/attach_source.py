"""``attach_source``: a hook at work on whatever hands gradients over, and what users get for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from q7x2.hooks.attached import Attached
from q7x2.hooks.residuals import MeasuredRunner
from q7x2.hooks.runner import make_runner, part_of, place_in
from q7x2.hooks.sources import DDPSource
from q7x2.policy.driver import PolicyDriver, check_same_policies

if TYPE_CHECKING:
    import torch

    from q7x2.hooks.options import HookOptions
    from q7x2.hooks.sources import GradientSource
    from q7x2.policy.policy import Policy


def attach_source(
    source: GradientSource,
    hook: HookOptions,
    *,
    scaler: Any,
    threads: int,
    optimizer: torch.optim.Optimizer | None,
    policies: Sequence[Policy],
) -> Attached:
    """See :func:`q7x2.attach`."""
    parameters = source.parameters
    rank, world_size = place_in(source.group)
    made = make_runner(
        hook,
        source.group,
        parameters,
        threads=threads,
        device=source.device,
        may_skip=scaler is not None,
    )
    names = [name for name, _ in parameters]
    runner = MeasuredRunner(made, type(hook).__name__, names, is_first=rank == 0)
    check_same_policies(policies, source.group)
    driver = PolicyDriver(policies, parameters) if policies else None
    if driver is not None:
        driver.check(runner)
        driver.start(runner, 0)
    source.connect(made, hook)
    kind = Attached if type(source) is DDPSource else AttachedModule
    attached = kind(
        runner,
        hook,
        parameters,
        rank=rank,
        world_size=world_size,
        scaler=scaler,
        part=part_of(source.group),
        threads=threads,
    )
    if isinstance(attached, AttachedModule):
        attached._source = source
    attached._model = source.model
    attached._follow(source.model, optimizer)
    if driver is not None:
        attached._obey(source.model, driver)
    elif runner.samples:
        attached._sample(source.model)
    return attached


class AttachedModule(Attached):
    """A hook at work on a module without DistributedDataParallel; made by :func:`attach`."""

    _source: GradientSource

    def detach(self) -> None:
        """Average gradients without compression from now on, and drop the state.

        A plain module keeps its buckets, and ``replicate()`` goes on by itself.
        """
        super().detach()
        self._source.release()

    def rebind(self, ddp: Any) -> None:
        """Raise TypeError: only DistributedDataParallel and FSDP2 shards can change their ranks.

        Attach a hook to a new module, and give it the state of this one.
        """
        raise TypeError(
            f"rebind is for a DistributedDataParallel or a model of fully_shard, got a hook on "
            f"{type(self._model).__name__}: attach a new hook, and load_state_dict this one's state"
        )

    def join(self, throw_on_early_termination: bool = False) -> AbstractContextManager[Any]:
        from torch.distributed.algorithms.join import Join

        from q7x2.hooks.module_join import JoinableModule
        from q7x2.hooks.module_reducer import ModuleReducer

        if not isinstance(self._source, ModuleReducer):
            return super().join(throw_on_early_termination)
        if self._source.joinable is None:
            self._source.joinable = JoinableModule(self._source)
        return Join([self._source.joinable], throw_on_early_termination=throw_on_early_termination)

    def _unreduced(self) -> AbstractContextManager[None]:
        return self._source.unreduced()

    def _mean(self, loss: float) -> float:
        import torch
        import torch.distributed as dist

        total = torch.tensor([loss], dtype=torch.float64, device=self._source.device)
        dist.all_reduce(total, group=self._source.group)
        return total.item() / dist.get_world_size(self._source.group)
