"""DiLoCo of models that FSDP2 shards: two replicas, each of two ranks."""

from __future__ import annotations

import copy
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from diloco_training import WEIGHTS_ONLY, backward, flat, skip_codecs, train
from fsdp_training import net
from hook_training import batch
from pairs import nightly
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from values import assert_bits, assert_close, assert_same_on_all_ranks

METHODS: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 3},
    "averaged momentum": {"sync_every": 3, "outer": WEIGHTS_ONLY, "inner_state": "average"},
    "streaming": {"sync_every": 6, "fragments": 3, "overlap": 2},
    "int4": {"sync_every": 4, "fragments": 2, "overlap": 1, "codec": "int4"},
}
FOUR_RANKS = pytest.mark.ranks(4)


def _mesh() -> tuple[DeviceMesh, dist.ProcessGroup]:
    """This rank's replica, and the ranks that hold the same shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return mesh["shards"], mesh.get_group("replicas")


def _sharded(mesh: DeviceMesh, seed: int = 0) -> nn.Module:
    model = net(seed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _made(
    model: nn.Module, group: dist.ProcessGroup | None, **options: Any
) -> tuple[nn.Module, q7x2.cadence.DiLoCo]:
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)  # few calls of DTensor
    return model, q7x2.cadence.DiLoCo(model, inner, group=group, **options)


def _local(model: nn.Module) -> list[torch.Tensor]:
    """This rank's shards, in the memory of the parameters."""
    with torch.no_grad():
        return [p.to_local() for p in model.parameters()]


def _shards(model: nn.Module) -> torch.Tensor:
    return flat(_local(model))


def _assert_replicas_equal(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    both = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(both, tensor, group=group)
    assert_bits(both[0], both[1], "shards of two replicas")


@pytest.mark.parametrize(
    "method",
    ["averaged momentum", "streaming", nightly("diloco", "averaged momentum is DiLoCo and more")],
)
@FOUR_RANKS
def test_a_sharded_model_learns_what_a_plain_one_does(method: str) -> None:
    """A plain model of the same replica takes the batches of both ranks at once."""
    mesh, group = _mesh()
    model, diloco = _made(_sharded(mesh), group, **METHODS[method])
    plain, reference = _made(net(), group, **METHODS[method])
    first = dist.get_rank() // 2 * 2
    for step in range(8):
        train(model, diloco, range(step, step + 1))
        batches = [batch(rank, step, torch.float32) for rank in (first, first + 1)]
        losses = [nn.functional.mse_loss(plain(x), y) for x, y in batches]
        torch.stack(losses).mean().backward()
        reference.step()
        reference.zero_grad()
    assert diloco.stats.outer_steps == reference.stats.outer_steps > 0
    expected = dict(plain.named_parameters())
    for name, p in model.named_parameters():
        assert_close(p.full_tensor(), expected[name].detach(), name, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@FOUR_RANKS
def test_replicas_share_bits(method: str) -> None:
    if "codec" in METHODS[method]:
        skip_codecs("int4")
    mesh, group = _mesh()
    model, diloco = _made(_sharded(mesh, seed=dist.get_rank() // 2), group, **METHODS[method])
    _assert_replicas_equal(_shards(model), group)  # those of the first replica
    train(model, diloco, range(9))
    assert diloco.stats.outer_steps > 0
    _assert_replicas_equal(flat(diloco.shared_weights.values()), group)


@FOUR_RANKS
def test_a_bad_number_in_one_shard_stops_all() -> None:
    mesh, group = _mesh()
    model, diloco = _made(_sharded(mesh), group, sync_every=3)
    train(model, diloco, range(5))
    before = diloco.shared_weights
    backward(model, 5, dist.get_rank())
    if dist.get_rank() == 1:
        _local(model)[0][0] = torch.nan
    with pytest.raises(FloatingPointError, match="Inf or NaN"):
        diloco.step()
    for name, weight in diloco.shared_weights.items():
        assert_bits(weight, before[name], name)


def _groups(**options: Any) -> dist.ProcessGroup:
    """New ones of the ranks that hold the same shards."""
    even, odd = (dist.new_group(ranks, **options) for ranks in ([0, 2], [1, 3]))
    return odd if dist.get_rank() % 2 else even


@FOUR_RANKS
def test_a_message_that_fails_in_one_shard_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 cannot send, so rank 3 waits for it in vain, and their neighbours hear of it."""
    mesh, _ = _mesh()
    model, diloco = _made(_sharded(mesh), _groups(timeout=timedelta(seconds=2)), sync_every=3)
    train(model, diloco, range(5))
    before = diloco.shared_weights
    backward(model, 5, dist.get_rank())
    told = "another rank of this replica" if dist.get_rank() % 2 == 0 else ""
    with monkeypatch.context() as patch:
        if dist.get_rank() == 1:
            whole = dist.all_reduce
            patch.setattr(dist, "all_reduce", partial(_refuse_asynchronous, whole))
        with pytest.raises(RuntimeError, match=told):
            diloco.step()
    diloco.zero_grad()
    for name, weight in diloco.shared_weights.items():
        assert_bits(weight, before[name], name)
    dist.barrier()
    group = _groups()
    diloco.rebind(group)
    outer_steps = diloco.stats.outer_steps
    train(model, diloco, range(6, 12))
    assert diloco.stats.outer_steps > outer_steps
    _assert_replicas_equal(flat(diloco.shared_weights.values()), group)


def _refuse_asynchronous(call: Any, *tensors: Any, async_op: bool = False, **options: Any) -> Any:
    if async_op:
        raise RuntimeError("lost")
    return call(*tensors, **options)


@FOUR_RANKS
def test_measured_intervals_are_those_of_all_shards() -> None:
    mesh, group = _mesh()
    model, diloco = _made(
        _sharded(mesh), group, sync_every=q7x2.policy.FollowBandwidth(least=2, most=9)
    )
    for step in range(12):
        train(model, diloco, range(step, step + 1))
        intervals: list[Any] = [None] * 4
        dist.all_gather_object(intervals, diloco.interval)
        assert len(set(intervals)) == 1


@FOUR_RANKS
def test_resumes_with_the_same_bits() -> None:
    mesh, group = _mesh()
    model, diloco = _made(_sharded(mesh), group, **METHODS["streaming"])
    train(model, diloco, range(7))  # an outer gradient is on the way
    kept = [shard.clone() for shard in _local(model)]
    inner, state = copy.deepcopy(diloco.inner.state_dict()), diloco.state_dict()
    train(model, diloco, range(7, 11))

    other, resumed = _made(_sharded(mesh, seed=9), group, **METHODS["streaming"])
    for shard, tensor in zip(_local(other), kept, strict=True):
        shard.copy_(tensor)
    resumed.inner.load_state_dict(inner)
    resumed.load_state_dict(state)
    train(other, resumed, range(7, 11))
    assert_bits(_shards(other), _shards(model), "weights")


@FOUR_RANKS
def test_ranks_of_a_host_may_share_each_step_by_ddp() -> None:
    mesh, group = _mesh()
    model, diloco = _made(net(), group, sync_every=3)
    ddp = DistributedDataParallel(model, process_group=mesh.get_group())
    for step in range(12):
        backward(ddp, step, dist.get_rank())
        diloco.step()
        diloco.zero_grad()
    assert diloco.stats.outer_steps == 4
    assert_same_on_all_ranks([flat(p.detach() for p in model.parameters())])


@FOUR_RANKS
def test_ranks_of_one_replica_are_no_group_for_outer_steps() -> None:
    mesh, _ = _mesh()
    with pytest.raises(ValueError, match="one of each replica; rank"):
        _made(_sharded(mesh), None, sync_every=3)
    model = _sharded(mesh)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if dist.get_backend() == "q7x2":
        with pytest.raises(ValueError, match="got shards"):
            q7x2.cadence.DiLoCo(model, inner, sync_every=3, quorum=q7x2.cadence.QuorumOptions())
