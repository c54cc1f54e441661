"""Kinds of models that every rank holds whole, for tests of hooks without DDP."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from hook_training import Net, local, net, net_of_fsdp
from torch import nn
from torch.distributed._composable.replicate import replicate as replicate_on_ddp
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_on_fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits

# Trials of algorithms would round the messages of two models differently.
STEADY = {"Q7X2_ALGO": "ring", "Q7X2_REFINE": "0"}
KINDS = ("plain", "composable", "fsdp")


def mesh() -> DeviceMesh:
    """Over a new group: torch keeps meshes whose groups have ended."""
    return DeviceMesh.from_group(dist.new_group(), "cpu", mesh_dim_names=("replicate",))


def made(kind: str, model: nn.Module, cap_mb: float = 25.0) -> tuple[nn.Module, dict[str, Any]]:
    """A model that all ranks hold whole, and what `attach` needs to know of it."""
    if kind == "plain":
        return model, {"group": dist.group.WORLD, "bucket_cap_mb": cap_mb}
    if kind == "composable":
        return replicate_on_ddp(model, bucket_cap_mb=cap_mb), {}
    return replicate_on_fsdp(model, mesh=mesh()), {}


def start(kind: str) -> Net:
    return net_of_fsdp() if kind == "fsdp" else net()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, DDP) else model
    return {
        name: local(p.grad).clone() for name, p in inner.named_parameters() if p.grad is not None
    }


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [local(p.detach()).clone() for p in model.parameters()]


def assert_same(one: Any, other: Any, why: object = None) -> None:
    assert one.keys() == other.keys(), why
    for name in one:
        assert_bits(one[name], other[name], (why, name))


def everywhere(tensor: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return found
