"""What is trained: a byte-level GPT on source code, a CNN on scikit-learn's digits."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import ROOT

sys.path.append(str(ROOT / "examples"))
from corpus import Sampler, Text, sources, standard_library
from gpt import GPT, GPTConfig

Recipe = dict[str, Any]
Batch = tuple[Tensor, Tensor]

_HELD_OUT_SEED = 2**31  # of the windows of text: the same in all trainings
_FALLS = 0.3  # of a training: the end of a trapezoid


class Task(ABC):
    """A model, its data and its optimizer, as `recipe` has them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @abstractmethod
    def model(self) -> nn.Module: ...

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer: ...

    @abstractmethod
    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """One rank's, without end."""

    @abstractmethod
    def held_out(self, rank: int, world_size: int) -> Batch:
        """One rank's part of what is never trained on."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    @abstractmethod
    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        """[sum of losses, right answers, answers]; right ones are 0 where nobody asks for them."""

    @torch.no_grad()
    def mean_score(
        self, model: nn.Module, batch: Batch, group: dist.ProcessGroup | None = None
    ) -> tuple[float, float]:
        """Loss and share of right answers over the batches of all ranks of a group."""
        total = self.score(model, batch)
        dist.all_reduce(total, group=group)
        loss, right, count = total.tolist()
        return loss / count, right / count

    def learning_rate(self, step: int) -> float:
        """The rate of a step as a share of the recipe's.

        It warms up. In a whole training it then falls to 0: along a cosine, or, if the recipe's
        schedule is "trapezoid", in a straight line over the last 30 % of the steps.
        """
        warm_up = min(1.0, (step + 1) / self.recipe["warmup"])
        if not self.recipe.get("whole_training"):
            return warm_up
        done = step / self.recipe["steps"]
        if self.recipe.get("schedule") == "trapezoid":
            return warm_up * min(1.0, (1 - done) / _FALLS)
        return warm_up * 0.5 * (1 + cos(pi * step / self.recipe["steps"]))


@cache
def _text(name: str) -> Text:
    if name == "torch headers":  # C++, on every machine that can run this
        return sources(Path(torch.__file__).parent / "include", ".h")
    return standard_library()


class Bytes(Task):
    """The GPT of the demo, on the standard library of Python, or on the recipe's text."""

    @property
    def _text(self) -> Text:
        return _text(self.recipe.get("text", "standard library"))

    def model(self) -> nn.Module:
        r = self.recipe
        return GPT(
            GPTConfig(layers=r["layers"], heads=r["heads"], dim=r["dim"], context=r["context"])
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.recipe["lr"], betas=(0.9, 0.95), fused=True)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        r = self.recipe
        sampler = Sampler(self._text.train, r["context"], r["batch"], rank, world_size, seed)
        while True:
            yield sampler.next()

    def held_out(self, rank: int, world_size: int) -> Batch:
        r = self.recipe
        text, windows = self._text.validation, r["held_out"] // world_size
        return Sampler(text, r["context"], windows, rank, world_size, _HELD_OUT_SEED).next()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(*batch)
        return loss

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        count = batch[1].numel()
        return torch.tensor([self.loss(model, batch).item() * count, 0, count])


@cache
def _digits() -> tuple[Batch, Batch]:
    """Images of 8 x 8 and their digits, shuffled once; a fifth is held out."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)[order]
    targets = torch.from_numpy(data.target).long()[order]
    kept = len(order) * 4 // 5
    return (images[:kept], targets[:kept]), (images[kept:], targets[kept:])


class Digits(Task):
    """Two convolutions and two dense layers; SGD with momentum."""

    def model(self) -> nn.Module:
        width = self.recipe["width"]
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, 10),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.recipe["lr"], momentum=0.9)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        (images, targets), _ = _digits()
        generator = torch.Generator().manual_seed(seed)
        share = self.recipe["batch"]
        while True:
            order = torch.randperm(len(targets), generator=generator)
            for batch in order.split(share * world_size)[: len(order) // (share * world_size)]:
                mine = batch[rank * share : (rank + 1) * share]
                yield images[mine], targets[mine]

    def held_out(self, rank: int, world_size: int) -> Batch:
        _, (images, targets) = _digits()
        return images[rank::world_size], targets[rank::world_size]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        answers = model(batch[0])
        losses = F.cross_entropy(answers, batch[1], reduction="sum")
        right = (answers.argmax(1) == batch[1]).sum()
        return torch.tensor([losses.item(), right.item(), len(batch[1])])


TASKS: dict[str, type[Task]] = {"gpt": Bytes, "digits": Digits}
