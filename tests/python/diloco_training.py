"""A model that DiLoCo trains, for tests: methods, steps, and what they compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import batch, net
from torch import nn
from values import assert_same_on_all_ranks

WEIGHTS_ONLY = q7x2.cadence.OuterSGD(lr=1, momentum=0)
SPARSE = "topk:0.025:reselect+int2:minmax:g=64"

# The table of docs/cadence.md, with short intervals.
METHODS: dict[str, dict[str, Any]] = {
    "local sgd": {"sync_every": 3, "outer": WEIGHTS_ONLY},
    "averaged momentum": {"sync_every": 3, "outer": WEIGHTS_ONLY, "inner_state": "average"},
    "post-local": {"sync_every": q7x2.policy.PostLocal(4, 3), "outer": WEIGHTS_ONLY},
    "slowmo": {
        "sync_every": 3,
        "outer": q7x2.cadence.OuterSGD(lr=1, momentum=0.5, nesterov=False, divide_by_rate=True),
    },
    "diloco": {"sync_every": 3},
    "streaming": {"sync_every": 6, "fragments": 3, "overlap": 2},
    "int4": {"sync_every": 6, "fragments": 2, "codec": "int4", "full_precision": ["*.bias"]},
    "sparse": {
        "sync_every": 3,
        "outer": WEIGHTS_ONLY,
        "codec": SPARSE,
        "residual_decay": 0.95,
    },
}
COMPRESSED = {name: options for name, options in METHODS.items() if "codec" in options}


def skip_codecs(method: str) -> None:
    """Skip the test if the method needs a codec and the backend has none."""
    if method in COMPRESSED and dist.get_backend() == "gloo":
        pytest.skip("gloo has no codecs")


def made(
    model: nn.Module | None = None, lr: float = 1e-3, **options: Any
) -> tuple[nn.Module, q7x2.cadence.DiLoCo]:
    """Return a model and its DiLoCo over AdamW."""
    model = net() if model is None else model
    return model, q7x2.cadence.DiLoCo(
        model, torch.optim.AdamW(model.parameters(), lr=lr), **options
    )


def backward(model: nn.Module, step: int, rank: int) -> None:
    dtype = next(model.parameters()).dtype
    x, y = batch(rank, step, dtype)
    nn.functional.mse_loss(model(x).float(), y.float()).backward()


def train(
    model: nn.Module, diloco: q7x2.cadence.DiLoCo, steps: range, rank: int | None = None
) -> None:
    for step in steps:
        backward(model, step, dist.get_rank() if rank is None else rank)
        diloco.step()
        diloco.zero_grad()


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all numbers of the tensors, one after the other."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def assert_replicas_equal(diloco: q7x2.cadence.DiLoCo, model: nn.Module | None = None) -> None:
    """Compare the shared weights of all ranks, and those of the model if it is given."""
    assert_same_on_all_ranks([flat(diloco.shared_weights.values())])
    if model is not None:
        assert_same_on_all_ranks([flat(model.parameters())])


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def flattened(tree: Any, path: tuple[str, ...] = ()) -> dict[Any, torch.Tensor]:
    """Return the tensors of nested dictionaries by the keys that lead to them."""
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    return {k: v for key in tree for k, v in flattened(tree[key], (*path, key)).items()}
