"""What ``advise`` measures: computing alone, reductions alone, and real steps."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q7x2._core.groups import end_group
from q7x2.optim.advise_model import Computing, Reducing, buckets_of

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

    from q7x2.hooks.options import HookOptions

_LEAST_BUCKET = 1 << 20  # bytes, of the buckets that are measured
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def cores_per_rank(group: ProcessGroup) -> float:
    """Cores of this machine, for each of the group's ranks on it; the least of all ranks.

    Containers and virtual hosts that share a kernel share its cores, whatever they are named.
    """
    from q7x2._core.exchange import gather

    mine = _BOOT.read_text() if _BOOT.exists() else os.uname().nodename
    everybody = gather((mine, len(os.sched_getaffinity(0))), tuple[str, int], group)
    return float(
        min(cores / sum(boot == other for other, _ in everybody) for boot, cores in everybody)
    )


def measure_computing(
    model: nn.Module, step: Callable[[nn.Module], Any], group: ProcessGroup, repeats: int
) -> Computing:
    """Run ``step`` on all ranks at the same time; the last gradients stay in ``model``."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    ready = [0.0] * len(parameters)

    def note(position: int) -> Callable[[torch.Tensor], None]:
        def noted(_: torch.Tensor) -> None:
            ready[position] = time.monotonic()

        return noted

    hooks = [
        p.register_post_accumulate_grad_hook(note(i))  # type: ignore[no-untyped-call]
        for i, p in enumerate(parameters)
    ]
    rows = []
    try:
        for _ in range(repeats + 1):
            model.zero_grad(set_to_none=True)
            _meet(group)
            begin, cpu = time.monotonic(), time.process_time()
            step(model)
            _finish(parameters[0])
            end = time.monotonic()
            # A parameter without a gradient is ready when the backward ends, as in DDP.
            times = [at - begin if at >= begin else end - begin for at in ready]
            rows.append([end - begin, time.process_time() - cpu, *times])
    finally:
        for hook in hooks:
            hook.remove()
    medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    seconds, cpu_seconds, *times = _slowest(medians, group)
    sizes = [p.numel() * p.element_size() for p in parameters]
    return Computing(seconds, times, sizes, cpu_seconds)


def measure_reducing(
    gradients: Sequence[tuple[str, torch.Tensor]],
    hook: HookOptions,
    group: ProcessGroup,
    repeats: int,
) -> Reducing:
    """Reduce ``gradients`` with ``hook``, in one bucket and in many."""
    sizes = [g.numel() * g.element_size() for _, g in gradients]
    total = sum(sizes)
    few = buckets_of(sizes, total)
    cap = max(total // 8, _LEAST_BUCKET)
    many = buckets_of(sizes, cap)
    caps = {len(few): total + 1}
    if len(many) > len(few):
        caps[len(many)] = cap
    measured = {count: _reduce(gradients, hook, group, cap, repeats) for count, cap in caps.items()}
    first = (len(few), measured[len(few)][0])
    last = (len(many), measured[len(many)][0]) if len(many) in measured else first
    return Reducing.through(first, last, total, measured[len(few)][1])


def measure_step(
    model: nn.Module,
    step: Callable[[nn.Module], Any],
    hook: HookOptions,
    bucket_cap_mb: float,
    group: ProcessGroup,
    repeats: int,
) -> float:
    """Seconds of real steps of ``model`` with ``hook``, on the slowest rank."""
    from torch.nn.parallel import DistributedDataParallel

    from q7x2._attach import attach

    parameter = next(model.parameters())
    with _groups_of_its_own(parameter.device):
        ddp = DistributedDataParallel(
            model,
            process_group=group,
            bucket_cap_mb=bucket_cap_mb,
            init_sync=False,  # weights stay as they are
        )
        attached = attach(ddp, hook)
        seconds = []
        for warm_up in (True, True, *[False] * repeats):
            ddp.zero_grad(set_to_none=True)
            _meet(group)
            begin = time.monotonic()
            step(ddp)
            _finish(parameter)
            if not warm_up:
                seconds.append(time.monotonic() - begin)
        attached.detach()
        del ddp, attached
    return _slowest([statistics.median(seconds)], group)[0]


def _reduce(
    gradients: Sequence[tuple[str, torch.Tensor]],
    hook: HookOptions,
    group: ProcessGroup,
    cap: int,
    repeats: int,
) -> tuple[float, float]:
    """Seconds of a reduction on the slowest rank, and CPU seconds of the hook's thread."""
    from torch.nn.parallel import DistributedDataParallel

    from q7x2._attach import attach

    names, tensors = [name for name, _ in gradients], [tensor for _, tensor in gradients]
    with _groups_of_its_own(tensors[0].device):
        model = _given(names, tensors)
        ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap / (1 << 20))
        attached = attach(ddp, hook)
        seconds = []
        for warm_up in (True, True, *[False] * repeats):  # buckets change after the first step
            _meet(group)
            begin = time.monotonic()
            with ddp.no_sync():
                ddp().backward()
            _finish(tensors[0])
            between = time.monotonic()
            ddp.zero_grad(set_to_none=True)
            _meet(group)
            again = time.monotonic()
            ddp().backward()
            _finish(tensors[0])
            end = time.monotonic()
            ddp.zero_grad(set_to_none=True)
            if warm_up:
                before = sum(attached.stats.cpu_seconds.values())
            else:
                seconds.append(max(0.0, (end - again) - (between - begin)))
        cpu = (sum(attached.stats.cpu_seconds.values()) - before) / repeats
        attached.detach()
        del ddp, attached
    slowest, cpu = _slowest([statistics.median(seconds), cpu], group)
    return slowest, cpu


@contextmanager
def _groups_of_its_own(device: torch.device) -> Iterator[None]:
    """Process groups that hooks make in here end with it."""
    import torch.distributed as dist

    groups = dist.distributed_c10d._world.pg_map
    before = set(groups)
    yield
    for lane in [group for group in groups if group not in before]:  # in the order of all ranks
        end_group(lane, device)


def _given(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> nn.Module:
    """A model whose gradients are ``tensors``, with almost nothing to compute."""
    import torch
    from torch import nn

    class GiveGradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
            return parameters[0].new_zeros(())

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            return tuple(tensor.clone() for tensor in tensors)

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names = [name.replace(".", "/") for name in names]
            for name, tensor in zip(self.names, tensors, strict=True):
                self.register_parameter(name, nn.Parameter(torch.zeros_like(tensor)))

        def forward(self) -> torch.Tensor:
            result: torch.Tensor = GiveGradients.apply(*self.parameters())  # type: ignore[no-untyped-call]
            return result

    return Given()


def _finish(tensor: torch.Tensor) -> None:
    """Wait for the device, if there is one."""
    import torch

    if tensor.device.type != "cpu":
        torch.accelerator.synchronize(tensor.device)


def _meet(group: ProcessGroup) -> None:
    import torch.distributed as dist

    dist.barrier(group)


def _slowest(values: Sequence[float], group: ProcessGroup) -> list[float]:
    """The largest of each, over the ranks."""
    from q7x2._core.exchange import gather

    everybody = gather(list(values), list[float], group)
    return [max(column) for column in zip(*everybody, strict=True)]
