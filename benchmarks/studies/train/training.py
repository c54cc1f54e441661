"""One method's replica of the model on one rank."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from q7x2.hooks import Attached
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.train.methods import BY_LABEL, NOTHING_SENT, Method
from benchmarks.studies.train.tasks import TASKS, Task

_ONE_BUCKET_MB = 1024.0
_NIC = Path("/sys/class/net/eth0/statistics")


@dataclass
class Step:
    """Of one rank.

    Attributes:
        reduced_seconds: Until the gradients were reduced.
        seconds: Until the optimizer had changed the weights.
    """

    loss: float
    reduced_seconds: float
    seconds: float


def sent() -> Tensor:
    """[bytes, packets] that left this virtual host so far; zeros where there is none."""
    if not _NIC.exists():
        return torch.zeros(2, dtype=torch.float64)
    names = ("tx_bytes", "tx_packets")
    return torch.tensor([int((_NIC / name).read_text()) for name in names], dtype=torch.float64)


class Groups:
    """A process group for each backend, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, ProcessGroup] = {}

    def of(self, backend: str) -> ProcessGroup:
        if backend not in self._made:
            if backend == NOTHING_SENT:
                importlib.import_module("torch.testing._internal.distributed.fake_pg")
            self._made[backend] = dist.new_group(backend=backend)
        return self._made[backend]


class Replica:
    """A model on this rank, and what it is trained with.

    All ranks make it together, and step together. Equal seeds give equal weights and batches.

    Args:
        model: What gives the loss of a batch.
        optimizer: Its learning rate is the largest of the training.
    """

    def __init__(
        self,
        label: str,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int,
    ) -> None:
        self.label, self.task, self.model, self.optimizer = label, task, model, optimizer
        self._rate = optimizer.param_groups[0]["lr"]
        self.steps = 0
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._batches = task.batches(rank, world_size, seed)
        self._spare = task.batches(rank, world_size, seed + 1_000_000)
        self._held_out = task.held_out(rank, world_size)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for p in self.model.parameters()]

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def forward(self) -> Tensor:
        """The loss of the next batch."""
        return self.task.loss(self.model, next(self._batches))

    def update(self) -> None:
        """Changes the weights by the gradients."""
        self.optimizer.step()

    def step(self) -> Step:
        start = time.monotonic()
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * self.task.learning_rate(self.steps)
        loss = self.forward()
        loss.backward()
        reduced = time.monotonic() - start
        self.update()
        self.optimizer.zero_grad()
        self.steps += 1
        return Step(loss.item(), reduced, time.monotonic() - start)

    def compute(self) -> float:
        """Seconds of a forward and a backward without communication."""
        raise NotImplementedError

    def evaluated(self) -> nn.Module:
        """The model that is scored."""
        return self.model

    def score(self) -> tuple[float, float]:
        """Loss and share of right answers on what is held out, of all ranks."""
        model = self.evaluated().eval()
        scores = self.task.mean_score(model, self._held_out)
        model.train()
        return scores

    def close(self) -> None:
        """Ends what trains beside this process."""


class Training(Replica):
    """DDP with a hook."""

    def __init__(
        self, method: Method, task: str, recipe: dict[str, Any], groups: Groups, seed: int
    ) -> None:
        made = TASKS[task](recipe)
        torch.manual_seed(seed)
        self.method = method
        self.ddp = DistributedDataParallel(
            made.model(),
            process_group=groups.of(method.backend),
            bucket_cap_mb=_ONE_BUCKET_MB if method.one_bucket else recipe["bucket_mb"],
        )
        self.attached = method.add(self.ddp, not recipe.get("whole_training"))
        if method.optimizer:
            optimizer = method.optimizer(self.ddp, recipe)
        else:
            optimizer = made.optimizer(self.ddp.parameters())
        super().__init__(method.label, made, self.ddp, optimizer, seed)

    def reduce(self) -> None:
        """A step that leaves the weights as they are."""
        self.forward().backward()
        self.optimizer.zero_grad()

    def compute(self) -> float:
        start = time.monotonic()
        with self.ddp.no_sync():
            self.task.loss(self.ddp, next(self._spare)).backward()
        seconds = time.monotonic() - start
        self.optimizer.zero_grad()
        return seconds

    def evaluated(self) -> nn.Module:
        module: nn.Module = self.ddp.module
        return module

    def message_bytes(self) -> int:
        """That the hook has put into all-reduces so far; 0 where nobody counts them."""
        return self.attached.stats.message_bytes if self.attached else 0


def with_hooks(spec: dict[str, Any]) -> Iterator[tuple[Training, Attached]]:
    """A training of each method of a job, with its hook of q7x2, after the warm-up."""
    recipe, groups = spec["recipe"], Groups()
    for label in spec["labels"]:
        training = Training(BY_LABEL[label], "gpt", recipe, groups, spec["seed"])
        if training.attached is None:
            raise ValueError(f"{label} has no hook of q7x2")
        for _ in range(recipe["warm_up"]):
            training.step()
        yield training, training.attached


R = TypeVar("R", bound=Replica)


def alternate(trainings: list[R], turn: int) -> list[R]:
    """All of them; who comes first changes from turn to turn."""
    first = turn % len(trainings)
    return trainings[first:] + trainings[:first]


def sent_by_a_barrier(count: int = 20) -> Tensor:
    """[bytes, packets]"""
    dist.barrier()
    before = sent()
    for _ in range(count):
        dist.barrier()
    return (sent() - before) / count
