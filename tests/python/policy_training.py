"""Small trainings with policies, for tests."""

from __future__ import annotations

from typing import Any

import q7x2
import torch
import torch.distributed as dist
from hook_training import Given, attached


class Script(q7x2.policy.Policy):
    """Decides what it was told, by step, and remembers the facts."""

    def __init__(self, decisions: dict[int, q7x2.policy.Decision]) -> None:
        super().__init__()
        self.decisions = decisions
        self.facts: list[q7x2.policy.Facts] = []

    def decide(self, step: int, facts: q7x2.policy.Facts | None) -> q7x2.policy.Decision:
        if facts is not None:
            self.facts.append(facts)
        return self.decisions[max(s for s in self.decisions if s <= step)]


def treated(**by_name: q7x2.policy.ParameterPolicy) -> q7x2.policy.Decision:
    named = {f"layers.{name[1:]}": policy for name, policy in by_name.items()}
    return q7x2.policy.Decision(named, measures=True)


def given(hook: Any, policy: Any, count: int = 3, **options: Any) -> tuple[Any, Any]:
    return attached(hook, Given(count), attach={"policy": policy}, **options)


def gradients_of(step: int, count: int = 3, rank: int | None = None) -> list[torch.Tensor]:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(64, 64, generator=generator) for _ in range(count)]


def step_of(ddp: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    ddp.zero_grad()
    ddp(gradients).backward()
    return [p.grad for p in ddp.parameters()]


def mean_of(step: int, count: int = 3) -> list[torch.Tensor]:
    ranks = [gradients_of(step, count, rank) for rank in range(dist.get_world_size())]
    return [sum(each) / len(ranks) for each in zip(*ranks, strict=True)]
