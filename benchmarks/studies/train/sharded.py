"""FSDP2 with and without compressed traffic: steps in turns, and losses of whole trainings.

All methods compute in bf16 (``param_dtype``) and hand bf16 gradients to the reduce-scatter. A new
method is a new line of SHARDED_METHODS.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.studies.train.methods import NOTHING_SENT
from benchmarks.studies.train.tasks import TASKS
from benchmarks.studies.train.training import Groups, alternate, sent

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


class ShardedTraining:
    """All ranks make it together, and step together. Equal seeds give equal weights and batches."""

    def __init__(
        self, method: ShardedMethod, recipe: dict[str, Any], groups: Groups, seed: int
    ) -> None:
        self.method = method
        self.task = TASKS["gpt"](recipe)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(seed)
        self.model = self.task.model()
        self._alone = copy.deepcopy(self.model).to(torch.bfloat16)
        mesh = DeviceMesh.from_group(groups.of(method.backend), "cpu")
        blocks = self.model.blocks
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=_POLICY)
        fully_shard(self.model, mesh=mesh, mp_policy=_POLICY)
        if method.options is not None:
            q7x2.attach(self.model, method.options)
        self.optimizer = self.task.optimizer(self.model.parameters())
        self._rate = self.optimizer.param_groups[0]["lr"]
        self.steps = 0
        self._batches = self.task.batches(rank, world_size, seed)
        self._spare = self.task.batches(rank, world_size, seed + 1_000_000)
        self._held_out = self.task.held_out(rank, world_size)

    def step(self) -> tuple[float, float]:
        """The loss, and seconds until the gradients were reduced."""
        start = time.monotonic()
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * self.task.learning_rate(self.steps)
        loss = self.task.loss(self.model, next(self._batches))
        loss.backward()
        reduced = time.monotonic() - start
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return loss.item(), reduced

    def compute(self) -> float:
        """Seconds of a forward and a backward of the same model, on this rank alone."""
        start = time.monotonic()
        self.task.loss(self._alone, next(self._spare)).backward()
        seconds = time.monotonic() - start
        self._alone.zero_grad()
        return seconds

    @torch.no_grad()
    def score(self) -> float:
        """The loss on what is held out, of all ranks."""
        self.model.eval()
        total = self.task.score(self.model, self._held_out)
        self.model.train()
        dist.all_reduce(total)
        loss, _, count = total.tolist()
        return float(loss / count)


def measure_speed(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method: seconds of each step, of the slowest rank, and its bytes."""
    recipe, groups = spec["recipe"], Groups()
    trainings = [
        ShardedTraining(SHARDED_BY_LABEL[label], recipe, groups, spec["seed"])
        for label in spec["labels"]
    ]
    taken: dict[str, list[tuple[float, float]]] = {t.method.label: [] for t in trainings}
    moved: dict[str, list[Tensor]] = {t.method.label: [] for t in trainings}
    barrier = _sent_by_a_barrier()
    for turn in range(recipe["warm_up"] + recipe["steps"]):
        dist.barrier()
        compute = trainings[0].compute()
        for training in alternate(trainings, turn):
            dist.barrier()
            before = sent()
            _, reduced = training.step()
            dist.barrier()  # what a rank still had to send leaves before it
            moved[training.method.label].append(sent() - before - barrier)
            taken[training.method.label].append((compute, reduced))
        if dist.get_rank() == 0:
            print(f"at step {turn}", flush=True)
    for training in trainings:
        label = training.method.label
        slowest = torch.tensor(taken[label][recipe["warm_up"] :]).double()
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        link = torch.stack(moved[label][recipe["warm_up"] :])
        dist.all_reduce(link)
        mean = link.mean(0) / dist.get_world_size()
        yield {
            "label": label,
            "compute": [round(each, 6) for each in slowest[:, 0].tolist()],
            "reduced": [round(each, 6) for each in slowest[:, 1].tolist()],
            "bytes": mean[0].item(),
            "packets": mean[1].item(),
            "parameters": sum(p.numel() for p in training.model.parameters()),
        }


def _sent_by_a_barrier(count: int = 20) -> Tensor:
    dist.barrier()
    before = sent()
    for _ in range(count):
        dist.barrier()
    return (sent() - before) / count


def measure_losses(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method as its training is done, on all ranks."""
    recipe, groups = spec["recipe"], Groups()
    for label in spec["labels"]:
        training = ShardedTraining(SHARDED_BY_LABEL[label], recipe, groups, spec["seed"])
        held_out = []
        for _ in range(recipe["steps"] // recipe["every"]):
            for _ in range(recipe["every"]):
                training.step()
            held_out.append(round(training.score(), 5))
        yield {
            "label": label,
            "every": recipe["every"],
            "held_out": held_out,
            "final_loss": sum(held_out[-recipe["last"] :]) / recipe["last"],
        }
