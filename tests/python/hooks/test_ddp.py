"""DistributedDataParallel: as one process on the whole batch, whatever its options."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from plain_model import Plain, batch, loss_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import FEW, assert_bits, assert_close, assert_same_on_all_ranks


class Net(nn.Module):
    """Several layers, one of them used only on demand, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 64)
        self.extra = nn.Linear(64, 64)
        self.last = nn.Linear(64, 4)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        x = self.norm(torch.relu(self.first(x)))
        x = torch.relu(self.second(x))
        if extra:
            x = torch.relu(self.extra(x))
        return self.last(x)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.01},
    ],
    ids=lambda o: "-".join(o) or "default",
)
@pytest.mark.ranks(*FEW)
def test_ddp_trains_as_one_process_on_the_whole_batch(world_size: int, options: dict) -> None:
    me = dist.get_rank()
    alone = Plain()
    ddp = DDP(copy.deepcopy(alone), **options)
    ours = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        ours.zero_grad()
        loss_of(ddp, batch(me, step)).backward()
        reference.zero_grad()
        sum(loss_of(alone, batch(r, step)) / world_size for r in range(world_size)).backward()
        pairs = zip(ddp.module.parameters(), alone.parameters(), strict=True)
        for i, (mine, wanted) in enumerate(pairs):
            assert_close(mine.grad, wanted.grad, (step, i), rtol=1e-5, atol=1e-6)
        assert_same_on_all_ranks([p.grad for p in ddp.parameters()], step)
        ours.step()
        reference.step()
    assert_same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.ranks(2)
def test_ddp_unused_parameters(world_size: int) -> None:
    """The unused layer differs between ranks; where no rank used it, it has no gradient."""
    me = dist.get_rank()
    ddp = DDP(Net(), find_unused_parameters=True)
    loss_of(ddp, batch(me, 0), extra=me == 0).backward()
    assert ddp.module.extra.weight.grad is not None
    assert_same_on_all_ranks([ddp.module.extra.weight.grad, ddp.module.first.weight.grad])
    ddp.zero_grad(set_to_none=True)
    loss_of(ddp, batch(me, 1), extra=False).backward()
    assert ddp.module.extra.weight.grad is None
    assert_same_on_all_ranks([ddp.module.first.weight.grad])


@pytest.mark.ranks(2)
def test_ddp_no_sync_accumulates(world_size: int) -> None:
    me = dist.get_rank()
    alone = Plain()
    ddp = DDP(copy.deepcopy(alone))
    with ddp.no_sync():
        loss_of(ddp, batch(me, 0)).backward()
    loss_of(ddp, batch(me, 1)).backward()
    for step in range(2):
        sum(loss_of(alone, batch(r, step)) / world_size for r in range(world_size)).backward()
    for mine, wanted in zip(ddp.parameters(), alone.parameters(), strict=True):
        assert_close(mine.grad, wanted.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(*FEW)
def test_ddp_starts_from_rank_zero_and_broadcasts_buffers() -> None:
    torch.manual_seed(dist.get_rank())
    ddp = DDP(Net())
    assert_same_on_all_ranks(list(ddp.parameters()))
    for step in range(2):
        loss_of(ddp, batch(dist.get_rank(), step)).backward()
    ddp(batch(0, 5)[0])
    assert_same_on_all_ranks([ddp.module.norm.running_mean])


@pytest.mark.ranks(2)
def test_ddp_in_bfloat16() -> None:
    ddp = DDP(Plain().bfloat16())
    x, y = batch(dist.get_rank(), 0)
    nn.functional.mse_loss(ddp(x.bfloat16()), y.bfloat16()).backward()
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()])


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook"])
@pytest.mark.ranks(2)
def test_ddp_with_torch_hooks(hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    ddp = DDP(Plain())
    ddp.register_comm_hook(None, getattr(default_hooks, hook))
    for step in range(2):
        loss_of(ddp, batch(dist.get_rank(), step)).backward()
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()], hook)


@pytest.mark.ranks(2)
def test_ddp_join_with_uneven_inputs(world_size: int) -> None:
    ddp = DDP(Plain())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join():
        for step in range(2 + 3 * dist.get_rank()):
            optimizer.zero_grad()
            loss_of(ddp, batch(dist.get_rank(), step)).backward()
            optimizer.step()
    assert_same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.ranks(2)
def test_ddp_in_a_subgroup_each() -> None:
    group = [dist.new_group([r]) for r in range(2)][dist.get_rank()]
    torch.manual_seed(dist.get_rank())
    alone = Plain()
    ddp = DDP(copy.deepcopy(alone), process_group=group)
    for model in (alone, ddp):
        loss_of(model, batch(dist.get_rank(), 0)).backward()
    for ours, expected in zip(ddp.parameters(), alone.parameters(), strict=True):
        assert_bits(ours.grad, expected.grad)  # not averaged with the other rank's


@pytest.mark.ranks(2)
def test_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = DDP(Plain())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(ddp, batch(dist.get_rank(), step)).backward()
        optimizer.step()
    assert_same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.ranks(2)
def test_sync_batch_statistics_by_hand() -> None:
    """torch's autograd-aware collectives, as SyncBatchNorm and sequence parallelism use them."""
    import torch.distributed.nn.functional as dist_nn

    x = torch.full((4,), float(dist.get_rank() + 1), requires_grad=True)
    total = dist_nn.all_reduce(x * 2)
    total.sum().backward()
    assert_bits(total.detach(), torch.full((4,), 6.0))
    assert_bits(x.grad, torch.full((4,), 4.0))


@pytest.mark.ranks(2)
def test_sharded_data_sampler_and_object_broadcast() -> None:
    """A seed chosen on rank 0 reaches everybody; the sampler's parts cover the data once."""
    from torch.utils.data import DistributedSampler

    seed = [torch.initial_seed() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(seed)
    sampler = DistributedSampler(range(10), seed=seed[0] % 1000)
    parts: list = [None, None]
    dist.all_gather_object(parts, list(sampler))
    assert sorted(parts[0] + parts[1]) == list(range(10))
