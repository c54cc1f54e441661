"""CPU time of hooks for a model of 25 million parameters, and what they do without the GIL."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from q7x2.hooks import Attached

from benchmarks.harness import timing
from benchmarks.studies.train.training import Training, with_hooks


def measure(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method, on all ranks; the figures are means over the ranks."""
    recipe = spec["recipe"]
    for training, attached in with_hooks(spec):
        before = attached.stats
        with_hook, alone = [], []
        for _ in range(recipe["steps"]):
            alone.append(_cpu_seconds(training.compute))
            with_hook.append(_cpu_seconds(training.reduce))
        after = attached.stats
        steps = after.steps - before.steps
        phases = {
            phase: (seconds - before.cpu_seconds.get(phase, 0.0)) / steps
            for phase, seconds in after.cpu_seconds.items()
        }
        names = sorted(phases)
        *by_phase, process, compute = timing.mean(
            [*(phases[name] for name in names), median(with_hook) - median(alone), median(alone)]
        )
        events, beside = _while_the_gil_is_held(training, attached, recipe["held_seconds"])
        yield {
            "label": training.label,
            "parameters": training.parameters,
            "cpu_seconds": dict(zip(names, by_phase, strict=True)),
            "process_cpu_seconds": process,
            "compute_cpu_seconds": compute,
            "events": events,
            "events_while_the_gil_was_held": beside,
        }


def _cpu_seconds(call: Callable[[], object]) -> float:
    """Of all threads of this process."""
    dist.barrier()
    start = time.process_time()
    call()
    return time.process_time() - start


def _while_the_gil_is_held(
    training: Training, attached: Attached, seconds: float
) -> tuple[int, int]:
    """Phases and collectives after another thread took the GIL, and those that ended under it.

    A thread takes the GIL as soon as backward has let go of it, and sleeps in C without giving it
    back: Python can run nowhere in the process meanwhile. The graph is retained, since autograd
    itself takes the GIL to free the tensors that Python made.
    """
    held: list[float] = []

    def hold() -> None:
        time.sleep(0.02)  # until the other thread is in backward
        held.append(time.monotonic())
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL keeps the GIL
        held.append(time.monotonic())

    loss = training.forward()
    attached.trace()
    dist.barrier()
    holder = threading.Thread(target=hold)
    holder.start()
    loss.backward(retain_graph=True)
    holder.join()
    training.optimizer.zero_grad()
    attached.trace(False)
    events = attached.take_events()
    late = [e for e in events if e.end >= held[0]]
    beside = [e for e in late if e.end <= held[1]]
    counts = torch.tensor([len(late), len(beside)])
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])
