"""Measures the first steps of a training, from which the chunks of the others are chosen.

These steps are DDP's own, with all-reduces. In every second one the all-reduces begin when backward
has computed everything. So there are steps in which computation and messages have the machine for
themselves, and steps in which they share it:

    apart      | forward | backward          |   all-reduces   | step |
    together   | forward | backward, slower      |             | step |
                               |  all-reduces, slower          |

The difference says by how much each slows the other down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from q7x2.overlap.model import BucketCosts, StepCosts

_MOST_SLOWDOWN = 4.0  # what a disturbed measurement could seem to show is not believed
_TRIES = 5


@dataclass
class _Step:
    """The moments of one step; those of modules and buckets count from its forward on."""

    begin: float = 0.0  # its first forward: some accumulate gradients
    forward: float = 0.0
    forward_end: float = 0.0
    called: dict[nn.Module, float] = field(default_factory=dict)
    ready: list[float] = field(default_factory=list)
    is_apart: bool = False
    messages_end: float = 0.0
    step: float = 0.0
    step_end: float = 0.0
    end: float = 0.0  # the next step's first forward


class StepMeter:
    """Is told what happens in steps, and keeps those in which the optimizer stepped."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._step = _Step()
        self._held: list[Callable[[], None]] = []

    def begin_forward(self) -> None:
        """A forward with gradients begins."""
        now = time.monotonic()
        if self._step.step_end:
            self._step.end = now
            self._steps.append(self._step)
        is_first = not self._step.forward or bool(self._step.ready)
        self._step = _Step(begin=now if is_first else self._step.begin, forward=now)
        self._held.clear()  # from a backward that an exception ended

    def call(self, module: nn.Module) -> None:
        """``module`` begins its forward."""
        self._step.called.setdefault(module, time.monotonic() - self._step.forward)

    def end_forward(self) -> None:
        """The forward of the model has ended."""
        self._step.forward_end = time.monotonic()

    def reduce(
        self, start: Callable[[], Any], is_last: bool, is_apart: bool
    ) -> torch.futures.Future[Any]:
        """A bucket is ready. Returns a future of what the Work that ``start`` makes has reduced.

        Args:
            start: Begins the all-reduce.
            is_last: This bucket is the last one of backward.
            is_apart: All-reduces of this backward begin at its end.
        """
        step = self._step
        step.ready.append(time.monotonic() - step.forward_end)
        step.is_apart = is_apart
        future: torch.futures.Future[Any] = torch.futures.Future()

        def begin() -> None:
            start().get_future().add_done_callback(lambda done: _reduced(step, done, future))

        self._held.append(begin)
        if is_last or not is_apart:
            held, self._held = self._held, []
            for each in held:
                each()
        return future

    def begin_step(self) -> None:
        """The optimizer begins its step."""
        self._step.step = time.monotonic()

    def end_step(self) -> None:
        """The optimizer has ended its step."""
        if self._step.ready:
            self._step.step_end = time.monotonic()

    def costs(
        self,
        buckets: Sequence[BucketCosts],
        needs: dict[nn.Module, list[nn.Parameter]],
        names: dict[nn.Parameter, str],
        small_step: float,
        group: ProcessGroup,
    ) -> StepCosts | None:
        """The same on all ranks; None if a rank has not measured both kinds of steps.

        A collective call.

        Args:
            buckets: Those of the steps, without what has been measured.
            needs: What each module needs.
            names: Those of the parameters, in the same order on all ranks.
            small_step: See :class:`StepCosts`.
            group: A group of all ranks.
        """
        steps = [step for step in self._steps if len(step.ready) == len(buckets)]
        apart = [step for step in steps if step.is_apart]
        together = [step for step in steps if not step.is_apart]
        if not _over_ranks([float(bool(apart and together))], min, group)[0]:
            return None
        forward = median([s.forward_end - s.forward for s in steps])
        needed = dict.fromkeys(names, forward)
        for module, parameters in needs.items():
            called = median([s.called.get(module, 0.0) for s in steps])
            for p in parameters:
                needed[p] = min(needed[p], called)
        ready = [median(moments) for moments in zip(*(s.ready for s in apart), strict=True)]
        own = {
            "forward": forward,
            "step": median([s.step_end - s.step for s in steps]),
            "small_step": small_step,
            "other": median([_other(s) for s in steps]),
            "shared": median([s.ready[-1] - s.ready[0] for s in together]),
            "ddp": median([s.end - s.begin for s in together]),
        }
        # The last rank to begin sees how long messages take, and others how long they wait for it.
        tails = [median([_tail(s) for s in some]) for some in (apart, together)]
        of_all = _over_ranks([*own.values(), *ready, *needed.values()], max, group)
        wire, tail, latency = _over_ranks([*tails, _latency(group)], min, group)
        slowest = dict(zip(own, of_all, strict=False))
        rest = of_all[len(own) :]
        ready, moments = rest[: len(ready)], rest[len(ready) :]
        forward = slowest["forward"]
        at = {
            name: min(moment, forward) for name, moment in zip(names.values(), moments, strict=True)
        }
        made = [
            replace(bucket, ready=when, needed=tuple(at[name] for name in bucket.names))
            for bucket, when in zip(buckets, ready, strict=True)
        ]
        slowdown = slowdowns(ready[-1] - ready[0], slowest["shared"], wire, tail)
        return StepCosts(
            forward=forward,
            buckets=tuple(made),
            step=slowest["step"],
            small_step=slowest["small_step"],
            other=slowest["other"],
            wire=wire,
            latency=latency,
            compute_slowdown=slowdown[0],
            wire_slowdown=slowdown[1],
            ddp=slowest["ddp"],
        )


def slowdowns(alone: float, shared: float, wire: float, tail: float) -> tuple[float, float]:
    """By which factors computation and messages are slower together, from 1 to 4.

    Args:
        alone: Seconds from the first to the last bucket of a backward without messages.
        shared: The same with messages.
        wire: Seconds of the messages without computation.
        tail: Seconds of messages that were left at the end of backward, with computation before.
    """
    carried = wire - tail  # during backward
    if carried <= 0.05 * wire or shared <= 0:
        return 1.0, 1.0  # they hardly met
    busy = shared if tail > 0.05 * wire else min(shared, carried)
    computed = alone - (shared - busy)  # while messages were carried
    compute = busy / computed if computed > 0 else _MOST_SLOWDOWN
    return _believed(compute), _believed(busy / carried)


def _believed(factor: float) -> float:
    return min(max(factor, 1.0), _MOST_SLOWDOWN)


def _reduced(step: _Step, done: Any, future: torch.futures.Future[Any]) -> None:
    step.messages_end = time.monotonic()
    try:
        future.set_result(done.value()[0])
    except Exception as error:  # DDP raises it in the training's thread
        future.set_exception(error)


def _tail(step: _Step) -> float:
    """How long messages took after backward had computed everything."""
    return max(0.0, step.messages_end - step.forward_end - step.ready[-1])


def _other(step: _Step) -> float:
    """What is neither forward, backward, messages nor the optimizer."""
    backward_end = max(step.messages_end, step.forward_end + step.ready[-1])
    return (step.forward - step.begin) + (step.step - backward_end) + (step.end - step.step_end)


def _latency(group: ProcessGroup) -> float:
    """Seconds of an all-gather of one number per rank."""
    number, numbers = torch.zeros(1), torch.zeros(group.size())
    times = []
    for _ in range(_TRIES):
        begin = time.monotonic()
        dist.all_gather_into_tensor(numbers, number, group=group)
        times.append(time.monotonic() - begin)
    return median(times)


def _over_ranks(
    mine: Sequence[float], of: Callable[[Sequence[float]], float], group: ProcessGroup
) -> list[float]:
    row = torch.tensor(mine, dtype=torch.float64)
    rows = row.new_empty(group.size() * len(mine))
    dist.all_gather_into_tensor(rows, row, group=group)
    return [of(column) for column in rows.view(group.size(), -1).T.tolist()]
