"""Whether overlap pays: steps with and without it are timed in turns, and the faster way is taken.

    with overlap | without | the faster one ... | both again | ...

Overlap hides messages behind computation. But both need the processor, and many small messages
cost more than one. So overlap can be slower, and only a measurement shows it. All ranks take the
same way in the same step: they compare the medians of the slowest rank. Trials are rare, because
the steps of the slower way cost time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from q7x2._core.extension import load
from q7x2._core.units import time_text

_WARM_UP, _STEPS = 2, 5  # steps of each way in a trial
_EVERY, _MOST = 1000, 16_000  # steps from a trial to the next: twice as many if nothing changes
_GAIN = 0.02  # the share of the time that a return to overlap must save


@dataclass(frozen=True)
class OverlapDecision:
    """What a trial has found, the same on all ranks.

    Attributes:
        step: The step after which it was decided, counted from the first one that can overlap.
        overlap_seconds: The slowest rank's median time of a step with overlap.
        plain_seconds: The same for a step without overlap.
        overlaps: The next steps overlap.
    """

    step: int
    overlap_seconds: float
    plain_seconds: float
    overlaps: bool

    def __str__(self) -> str:
        way = "with" if self.overlaps else "without"
        return (
            f"step {self.step}: {way} overlap, because a step takes "
            f"{time_text(self.overlap_seconds)} with it and {time_text(self.plain_seconds)} "
            "without"
        )


class OverlapTrial:
    """Decides between two ways from the times of steps.

    Args:
        group: The ranks that must go the same way.
        what: Names what is tried, in the log.
    """

    def __init__(self, group: ProcessGroup, what: str) -> None:
        self._group, self._what = group, what
        self._times: dict[bool, list[float]] = {}
        self._steps = 0
        self._every = _EVERY
        self._left = 0  # steps until the next trial
        self.overlaps = True
        """The way of the next step."""
        self.decisions: list[OverlapDecision] = []
        """The last is in force; before the first one, both ways are tried."""

    def add(self, seconds: float) -> None:
        """Add the time of one more step; the next one begins. All ranks call it equally often.

        It is a collective call when a trial ends, so no other collective of the group may come
        between on some ranks only.
        """
        self._steps += 1
        if self._left > 0:
            self._left -= 1
            return
        times = self._times.setdefault(self.overlaps, [])
        times.append(seconds)
        if len(times) < _WARM_UP + _STEPS:
            return
        if len(self._times) == 2:
            self._decide()
        else:
            self.overlaps = not self.overlaps

    def _decide(self) -> None:
        mine = [median(self._times[way][_WARM_UP:]) for way in (True, False)]
        overlap, plain = _slowest(mine, self._group)
        did_overlap = self.decisions[-1].overlaps if self.decisions else True
        self.overlaps = overlap < (plain if did_overlap else (1 - _GAIN) * plain)
        is_new = not self.decisions or self.overlaps != did_overlap
        self._every = _EVERY if is_new else min(2 * self._every, _MOST)
        self._left = self._every
        self._times.clear()
        decision = OverlapDecision(self._steps, overlap, plain, self.overlaps)
        self.decisions.append(decision)
        log_info(f"{self._what}, {decision}")


class TimedSteps:
    """Times steps of a training, each from its first forward to that of the next, for a trial."""

    def __init__(self, trial: OverlapTrial) -> None:
        self.trial = trial
        self._begin = 0.0
        self._is_over = False

    def end_step(self) -> None:
        """The optimizer steps."""
        self._is_over = True

    def begin_forward(self) -> None:
        """A forward begins, which need not be the first one of a step."""
        if not self._is_over:
            return
        now, self._is_over = time.monotonic(), False
        begin, self._begin = self._begin, now
        self.trial.add(now - begin)


def may_try(is_given: bool, device: torch.device, group: ProcessGroup) -> bool:
    """Whether the times of steps say which way is faster, and there is a choice.

    Args:
        is_given: The user has said how to overlap.
        device: On others than the CPU, a step's time on the host is not that of its work.
        group: See :class:`OverlapTrial`.
    """
    return not is_given and device.type == "cpu" and group.size() > 1


def log_info(text: str) -> None:
    """A line on stderr if ``Q7X2_LOG`` is info or debug."""
    load().log_info(text)


def _slowest(mine: list[float], group: ProcessGroup) -> list[float]:
    times = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX, group=group)
    slowest: list[float] = times.tolist()
    return slowest
