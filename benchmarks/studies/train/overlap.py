"""What the hooks do while backward computes: timelines, and how much communication they hide."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.studies.train import timeline
from benchmarks.studies.train.timeline import Span
from benchmarks.studies.train.training import with_hooks


def measure(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method, on all ranks."""
    recipe = spec["recipe"]
    for training, attached in with_hooks(spec):
        watch = _Backward(training.ddp)
        attached.trace()
        totals = torch.zeros(3, dtype=torch.float64)
        lines: list[tuple[float, dict[str, Any]]] = []
        for _ in range(recipe["steps"]):
            dist.barrier()
            training.step()
            spans = [Span(e.bucket, e.name, e.begin, e.end, e.lane) for e in attached.take_events()]
            figures, line = _of_step(spans, watch)
            totals += figures
            lines.append((figures[0].item(), line))
        dist.all_reduce(totals)
        total, hidden, could = (totals / dist.get_world_size() / recipe["steps"]).tolist()
        lines.sort(key=lambda each: each[0])
        yield {
            "label": training.label,
            "communication_seconds": total,
            "hidden_seconds": hidden,
            "ideal_seconds": could,
            "timeline": lines[len(lines) // 2][1],  # the step whose communication is the median
        }


class _Backward:
    """When the last step's backward began and ended, and when each gradient was complete."""

    def __init__(self, ddp: torch.nn.Module) -> None:
        self.begin = self.end = 0.0
        for parameter in ddp.parameters():
            parameter.register_post_accumulate_grad_hook(self._done)
        ddp.register_forward_hook(self._forward_done)

    def _done(self, _: torch.Tensor) -> None:
        self.end = time.monotonic()

    def _forward_done(self, *_: Any) -> None:
        self.begin = time.monotonic()


def _of_step(spans: list[Span], watch: _Backward) -> tuple[torch.Tensor, dict[str, Any]]:
    collectives = [span for span in spans if span.name == "collective"]
    ready: dict[int, float] = {}
    for span in spans:  # a bucket's first phase begins as soon as it is complete
        ready[span.bucket] = min(span.begin, ready.get(span.bucket, span.begin))
    figures = [
        timeline.busy(collectives),
        timeline.busy(collectives, watch.end),
        timeline.ideal(timeline.shares(collectives), ready, watch.end),
    ]
    line = {
        "backward": round(watch.end - watch.begin, 6),
        "spans": [
            [
                s.bucket,
                s.name,
                s.lane,
                round(s.begin - watch.begin, 6),
                round(s.end - watch.begin, 6),
            ]
            for s in spans
        ],
    }
    return torch.tensor(figures, dtype=torch.float64), line
