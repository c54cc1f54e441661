"""Hooks between the replicas of a model that FSDP2 shards: two hosts of two ranks each."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_training import Optional, two_hosts
from hook_training import assert_states_equal, backward
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close

HOOKS = {
    "dense": q7x2.Allreduce(),
    "int8": q7x2.Quantize("int8"),
    "topk": q7x2.TopK(0.25, start_iter=0),
    "onebit": q7x2.OneBit(start_iter=0),
    "batched": q7x2.PowerSGD(rank=4, batched=True, start_iter=0),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 63)
        self.outer = nn.Linear(63, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(Block(), Block(), nn.Linear(64, 8))


def sharded() -> tuple[nn.Module, dist.ProcessGroup]:
    """Sharded over the ranks of a host, replicated over the hosts."""
    mesh, replicas = two_hosts()
    whole = model()
    for block in list(whole)[:2]:
        fully_shard(block, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole, replicas


@pytest.mark.ranks(4)
def test_gradients_are_those_of_all_ranks() -> None:
    for name in HOOKS:
        check_gradients(name)


def check_gradients(name: str) -> None:
    fsdp, replicas = sharded()
    hook = q7x2.attach(fsdp, HOOKS[name], replica_group=replicas)
    plain = DDP(model())
    owed: dict[str, Any] = {}
    for step in range(3):
        for each in (fsdp, plain):
            each.zero_grad()
            backward(each, step)
        for (parameter, p), q in zip(fsdp.named_parameters(), plain.parameters(), strict=True):
            whole = p.grad.full_tensor()
            others = [torch.empty_like(whole) for _ in range(2)]
            dist.all_gather(others, whole, group=replicas)
            assert_bits(others[0], others[1], (name, step, parameter))
            if name == "dense":
                assert_close(whole, q.grad, (name, step, parameter), rtol=1e-5, atol=1e-7)
            elif parameter == "0.inner.weight":
                owed.setdefault(parameter, []).append(whole - q.grad)
    assert hook.steps == 3, name
    assert hook.stats.buckets == 9, name
    if name != "dense":
        assert hook.stats.message_bytes < hook.stats.gradient_bytes / 2
    if name != "dense":  # what was held back was sent later: errors do not add up
        differences = owed["0.inner.weight"]
        norm = plain.module[0].inner.weight.grad.norm()
        assert 0 < sum(differences).norm() < 2 * norm
        (local,) = hook.state_dict()["local"].values()
        assert set(local["residual"]) == {"root", "0", "1"}
        state = hook.state_dict()
        backward(fsdp, 3)
        hook.load_state_dict(state)
        for kind, tensors in hook.state_dict()["local"].items():
            for module, tensor in tensors["residual"].items():
                assert_bits(tensor, state["local"][kind]["residual"][module], module)


@pytest.mark.ranks(4, fresh=True)  # torch keeps equal meshes, with the names of their groups
def test_replicas_must_be_given_and_be_ours_to_reduce() -> None:
    fsdp, replicas = sharded()
    with pytest.raises(ValueError, match="needs replica_group for an FSDP2 model"):
        q7x2.attach(fsdp, q7x2.Allreduce())
    with pytest.raises(ValueError, match="replica_group is for FSDP2"):
        q7x2.attach(DDP(model()), q7x2.Allreduce(), replica_group=replicas)
    with pytest.raises(ValueError, match="FSDP2's shards are none: expected batched=True"):
        q7x2.attach(fsdp, q7x2.PowerSGD(rank=4), replica_group=replicas)


@pytest.mark.ranks(4)
def test_a_step_ends_with_its_backward() -> None:
    """Whichever modules took part in it; FSDP says of none of them that it is the last."""
    for case in ("frozen", "together", "unused"):
        check_steps(case)


def check_steps(case: str) -> None:
    mesh, replicas = two_hosts()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Optional()
    if case == "frozen":
        model.first.requires_grad_(False)
    if case == "together":
        fully_shard([model.first, model.second], mesh=mesh)
    else:
        fully_shard(model.first, mesh=mesh)
        fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    hook = q7x2.attach(model, q7x2.TopK(0.1, start_iter=0), replica_group=replicas)
    for step in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        model(x, both=case != "unused" or step == 1).square().sum().backward()
        assert hook.steps == step + 1, case
    assert hook.stats.skipped_steps == 0, case
    (local,) = hook.state_dict()["local"].values()
    assert any(residual.any() for residual in local["residual"].values())


@pytest.mark.ranks(4)
def test_a_distributed_checkpoint_holds_every_shards_state(shared: str) -> None:
    fsdp, replicas = sharded()
    hook = q7x2.attach(fsdp, HOOKS["batched"], replica_group=replicas)
    for step in range(2):
        backward(fsdp, step)
    dcp.save({"hook": hook}, checkpoint_id=f"{shared}/checkpoint")
    again, replicas = sharded()
    fresh = q7x2.attach(again, HOOKS["batched"], replica_group=replicas)
    dcp.load({"hook": fresh}, checkpoint_id=f"{shared}/checkpoint")
    assert_states_equal(fresh.state_dict(), hook.state_dict())
    states = [None] * 4
    dist.all_gather_object(states, hook.state_dict())
    assert len({key for state in states for key in state["local"]}) == 4
    with pytest.raises(q7x2.hooks.HookStateError, match="expected the state of shard_"):
        fresh.load_state_dict(states[(dist.get_rank() + 1) % 4])
