"""FSDP2 with and without compressed traffic.

All methods compute in bf16 (``param_dtype``) and hand bf16 gradients to the reduce-scatter. A new
method is a new line of SHARDED_METHODS.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import q7x2
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.studies.train.methods import NOTHING_SENT
from benchmarks.studies.train.tasks import TASKS
from benchmarks.studies.train.training import Groups, Replica

_POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


@dataclass(frozen=True)
class ShardedMethod:
    """Attributes:
    options: None: FSDP2 as it is.
    """

    label: str
    backend: str
    options: q7x2.Sharded | None = None


_INT8_INT4 = q7x2.Sharded(weights="int8", gradients="int4:g=128")
_ROTATED = q7x2.Sharded(weights="int8", gradients="hadamard+int4:g=128")
_INT8_INT8 = q7x2.Sharded(weights="int8", gradients="int8")

FSDP_GLOO = "FSDP2 bf16, Gloo"
FSDP_Q7X2 = "FSDP2 bf16, q7x2"
COMPRESSED = "int8 differences, int4"
SHARDED_METHODS = (
    ShardedMethod(FSDP_GLOO, "gloo"),
    ShardedMethod(FSDP_Q7X2, "q7x2"),
    ShardedMethod("FSDP2 bf16, nothing sent", NOTHING_SENT),
    ShardedMethod("int8 differences, int8", "q7x2", _INT8_INT8),
    ShardedMethod(COMPRESSED, "q7x2", _INT8_INT4),
    ShardedMethod("int8 differences, hadamard+int4", "q7x2", _ROTATED),
    ShardedMethod("int8 differences, int4, Gloo", "gloo", _INT8_INT4),
)
SHARDED_BY_LABEL = {method.label: method for method in SHARDED_METHODS}


class ShardedTraining(Replica):
    """FSDP2, each block on its own."""

    def __init__(
        self, method: ShardedMethod, recipe: dict[str, Any], groups: Groups, seed: int
    ) -> None:
        task = TASKS["gpt"](recipe)
        torch.manual_seed(seed)
        model = task.model()
        self._alone = copy.deepcopy(model).to(torch.bfloat16)
        mesh = DeviceMesh.from_group(groups.of(method.backend), "cpu")
        blocks = model.blocks
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=_POLICY)
        fully_shard(model, mesh=mesh, mp_policy=_POLICY)
        if method.options is not None:
            q7x2.attach(model, method.options)
        super().__init__(method.label, task, model, task.optimizer(model.parameters()), seed)

    def compute(self) -> float:
        """Seconds of a forward and a backward of the same model, on this rank alone."""
        start = time.monotonic()
        self.task.loss(self._alone, next(self._spare)).backward()
        seconds = time.monotonic() - start
        self._alone.zero_grad()
        return seconds
