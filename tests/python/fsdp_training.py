"""A small model that FSDP2 shards, and its training, for tests of its compressed traffic."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

HOSTS, REPLICAS = ([0, 1], [2, 3]), ([0, 2], [1, 3])


class Block(nn.Module):
    """Rows that the ranks cannot share equally, vectors, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.inner = nn.Linear(64, 63)
        self.outer = nn.Linear(63, 64)
        self.scale = nn.Parameter(torch.full((64,), 0.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.outer(torch.tanh(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def net(seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


class Optional(nn.Module):
    """Its second layer is used now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.first(x)
        return self.second(x) if both else x


def mesh_over(backend: str, ranks: list[int] | None = None) -> DeviceMesh:
    """Of one dimension, with a process group of its own."""
    group = dist.new_group(ranks, backend=backend)
    return DeviceMesh.from_group(group, "cpu")


def two_hosts() -> tuple[DeviceMesh, dist.ProcessGroup]:
    """Of four ranks the two of a host, which share a model, and those with the same shards.

    Over new groups: torch keeps what `init_device_mesh` has derived, also when its groups end.
    """
    hosts, replicas = ([dist.new_group(ranks) for ranks in pairs] for pairs in (HOSTS, REPLICAS))
    rank = dist.get_rank()
    return DeviceMesh.from_group(hosts[rank // 2], "cpu"), replicas[rank % 2]


def sharded(mesh: DeviceMesh, model: Net | None = None, **options: Any) -> Net:
    model = net() if model is None else model
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, torch.tanh(x[:, :8] * x[:, 8:16])


def backward(model: nn.Module, step: int, rank: int | None = None, scale: float = 1.0) -> float:
    x, y = batch(dist.get_rank() if rank is None else rank, step)
    loss = nn.functional.mse_loss(model(x).float(), y)
    (loss * scale).backward()
    return loss.item()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Fused: one operation for all parameters, since each one on a DTensor takes long."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        losses.append(backward(model, step))
        optimizer.step()
    return losses


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of the shards that their ranks have."""
    return _whole({name: p.detach() for name, p in model.named_parameters()})


def whole_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return _whole({n: p.grad for n, p in model.named_parameters() if p.grad is not None})


def _whole(sharded: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What `full_tensor` makes of rows over a mesh of one dimension; with one all-gather for all.

    Each rank has the same number of rows, as long as there are any.
    """
    group = next(iter(sharded.values())).device_mesh.get_group()
    ranks = dist.get_world_size(group)
    padded = []
    for tensor in sharded.values():
        assert tensor.placements == (Shard(0),)
        mine = tensor.to_local()
        missing = -(-len(tensor) // ranks) - len(mine)
        padded.append(torch.cat([mine, mine.new_zeros(missing, *mine.shape[1:])]))
    sent = torch.cat([each.flatten() for each in padded])
    everything = sent.new_empty(ranks * len(sent))
    dist.all_gather_into_tensor(everything, sent, group)
    pieces = everything.view(ranks, -1).split([each.numel() for each in padded], dim=1)
    return {
        name: piece.reshape(ranks * len(each), *each.shape[1:])[: len(sharded[name])]
        for (name, piece), each in zip(zip(sharded, pieces, strict=True), padded, strict=True)
    }


class Gathered:
    """The weights that the modules of a model compute with, as the last forward had them."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        for name, module in model.named_modules():
            if list(module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._keep(name))

    def _keep(self, name: str) -> Callable[[nn.Module, Any], None]:
        def keep(module: nn.Module, _: Any) -> None:
            for parameter, tensor in module.named_parameters(recurse=False):
                self.weights[f"{name}.{parameter}"] = tensor.detach().clone()

        return keep


def own_residuals(hook: q7x2.hooks.Attached) -> dict[str, torch.Tensor]:
    """What this rank keeps of gradients, by parameter."""
    (local,) = hook.state_dict()["local"].values()
    residuals: dict[str, torch.Tensor] = local.get("gradient_residual", {})
    return residuals


def sum_of_residuals(hook: q7x2.hooks.Attached, group: Any = None) -> dict[str, torch.Tensor]:
    """What the mean of all ranks still lacks, by parameter."""
    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, own_residuals(hook), group)
    return {name: sum(each[name].double() for each in everybody) for name in everybody[0]}


def exact_gradients(step: int, ranks: range, weights: dict[str, torch.Tensor]) -> Net:
    """An unsharded model with these weights and the mean gradients of the ranks."""
    model = net()
    model.load_state_dict(weights)
    for rank in ranks:
        backward(model, step, rank, scale=1 / len(ranks))
    return model


class Job:
    """A model, its optimizer and its compression.

    Args:
        attach: Further arguments of `q7x2.attach`.
        fsdp: Of `fully_shard`.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        options: q7x2.Sharded,
        attach: dict[str, Any] | None = None,
        **fsdp: Any,
    ) -> None:
        self.model = sharded(mesh, **fsdp)
        self.hook = q7x2.attach(self.model, options, **(attach or {}))
        self.optimizer = adam(self.model)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "hook": self.hook.state_dict(),
            }
        )

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.hook.load_state_dict(state["hook"])

    def train(self, steps: range) -> list[float]:
        return train(self.model, self.optimizer, steps)

    def weights(self) -> dict[str, torch.Tensor]:
        """Whole, on the CPU, on all ranks of the mesh: what another mesh can be loaded with."""
        return {name: tensor.cpu() for name, tensor in whole_weights(self.model).items()}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, dict(weights), options=options)  # it changes the dict
