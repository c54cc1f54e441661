"""``MicroBatches``: each rank's share of the global batch, by how fast it computes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from q7x2._core.agreement import check_agreement
from q7x2._core.groups import resolve_group
from q7x2._core.option_checks import check_factor, check_positive, check_whole
from q7x2._core.renamed import renamed


@dataclass(frozen=True)
class MicroBatchEvent:
    """The shares of the ranks changed.

    Attributes:
        step: The number of steps before it.
        shares: The number of micro-batches of each rank from then on.
    """

    step: int
    shares: tuple[int, ...]


@renamed(every="compare_every")
class MicroBatches:
    """Slow ranks compute fewer micro-batches of a step, and the gradient stays the exact mean.

    Ranks measure how long a micro-batch takes. Every ``compare_every`` steps they tell each other,
    and divide the ``total`` micro-batches of a step so that the slowest rank ends as early as
    possible. A micro-batch may be a single sample.

    >>> ddp = DistributedDataParallel(model)
    >>> batches = q7x2.cadence.MicroBatches(total=32)
    >>> for step in range(steps):
    ...     for index in range(batches.mine):
    ...         x, y = micro_batch(step, batches.first + index)
    ...         is_last = index == batches.mine - 1
    ...         with nullcontext() if is_last else ddp.no_sync():
    ...             with batches.timed():
    ...                 loss = loss_of(ddp(x), y)
    ...             (loss * batches.weight).backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     batches.step()

    All ranks make it together, and call :meth:`step` equally often. It works over any backend.

    Args:
        total: Micro-batches of a step, of all ranks together; at least ``least`` per rank.
        least: Micro-batches of each rank, at least.
        compare_every: Steps between two comparisons of times.
        change: Shares change only if the slowest rank's time would become shorter by this share;
            at least 0 and less than 1.
        group: The default group if None.

    Raises:
        ValueError: An option is out of range, or ranks have different options.
    """

    def __init__(
        self,
        total: int,
        *,
        least: int = 1,
        compare_every: int = 20,
        change: float = 0.1,
        group: ProcessGroup | None = None,
    ) -> None:
        group = resolve_group(group)
        check_whole("least", least, 1)
        check_whole("total", total, least * group.size())
        check_whole("compare_every", compare_every, 1)
        check_factor("change", change)
        options = {"total": total, "least": least, "compare_every": compare_every, "change": change}
        check_agreement("MicroBatches", options, group)
        self._group, self._rank = group, group.rank()
        self._total, self._least, self._change = total, least, change
        self._compare_every = compare_every
        self._shares = tuple(shares_of(total, [1.0] * group.size(), least))
        self._steps, self._seconds, self._timed_steps = 0, 0.0, 0
        self._is_timed = False
        self.history = [MicroBatchEvent(0, self._shares)]

    @property
    def shares(self) -> tuple[int, ...]:
        """Micro-batches of each rank; their sum is ``total``."""
        return self._shares

    @property
    def mine(self) -> int:
        """Micro-batches of this rank."""
        return self._shares[self._rank]

    @property
    def first(self) -> int:
        """The index of this rank's first micro-batch, from 0 to ``total``."""
        return sum(self._shares[: self._rank])

    @property
    def weight(self) -> float:
        """What the mean loss of each micro-batch is multiplied by before its backward.

        The mean of the ranks' gradients, which DDP computes, is then the mean over all samples. If
        a rank computes all its micro-batches in one backward, multiply by ``mine * weight``.
        """
        return len(self._shares) / self._total

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure what happens inside, which must not wait for other ranks.

        Only ratios count, so the forward alone is enough. DDP's backward waits for other ranks.
        Work on a GPU goes on behind it: use :meth:`record` with times of events.
        """
        begin = time.monotonic()
        yield
        self.record(max(time.monotonic() - begin, 1e-9))

    def record(self, seconds: float) -> None:
        """Add a measured time of this rank's micro-batches; several add up.

        Args:
            seconds: The time of all micro-batches that it covers.

        Raises:
            ValueError: It is not positive.
        """
        check_positive("seconds", seconds)
        self._seconds += seconds
        self._is_timed = True

    def step(self) -> None:
        """End a step. Every ``compare_every``-th call compares times, and is a collective call.

        If some rank has measured nothing since the last comparison, shares stay.
        """
        self._steps += 1
        self._timed_steps += self._is_timed
        self._is_timed = False
        if self._steps % self._compare_every == 0:
            self._compare()

    def state_dict(self) -> dict[str, Any]:
        """Steps, shares and history, equal on all ranks. Times since the last comparison are not
        in it."""
        history = [[event.step, list(event.shares)] for event in self.history]
        return {"steps": self._steps, "shares": list(self._shares), "history": history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave, on as many ranks, with an equal ``total``.

        Args:
            state: The dict, the same on all ranks.

        Raises:
            ValueError: It has another number of ranks or another ``total``. Nothing has changed
                then.
        """
        shares = tuple(state["shares"])
        if len(shares) != len(self._shares) or sum(shares) != self._total:
            raise ValueError(
                f"the state has {sum(shares)} micro-batches of {len(shares)} ranks, expected "
                f"{self._total} of {len(self._shares)}"
            )
        self._steps, self._shares = int(state["steps"]), shares
        self.history = [MicroBatchEvent(step, tuple(each)) for step, each in state["history"]]
        self._seconds, self._timed_steps, self._is_timed = 0.0, 0, False

    def _compare(self) -> None:
        """Change the shares if that is worth it; all ranks have the same times, so decide alike."""
        times = torch.zeros(len(self._shares), dtype=torch.float64)
        if self._timed_steps:
            times[self._rank] = self._seconds / (self._timed_steps * self.mine)
        self._seconds, self._timed_steps = 0.0, 0
        dist.all_reduce(times, group=self._group)
        seconds = times.tolist()
        if min(seconds) <= 0:
            return
        shares = shares_of(self._total, seconds, self._least)
        if _longest(shares, seconds) < (1 - self._change) * _longest(self._shares, seconds):
            self._shares = tuple(shares)
            self.history.append(MicroBatchEvent(self._steps, self._shares))


def shares_of(total: int, seconds: Sequence[float], least: int = 1) -> list[int]:
    """Divide ``total`` micro-batches so that the last rank ends as early as possible.

    Args:
        seconds: The time of a micro-batch on each rank, more than 0.
        least: Micro-batches of each rank, at least; ``total`` is enough for that.
    """
    ranks = range(len(seconds))
    speed = sum(1 / each for each in seconds)
    # What each rank gets in any case: it would be done with that before the last one.
    shares = [max(least, int(total / (each * speed))) for each in seconds]
    while sum(shares) > total:
        above = [rank for rank in ranks if shares[rank] > least]
        shares[max(above, key=lambda rank: (shares[rank] * seconds[rank], rank))] -= 1
    while sum(shares) < total:
        shares[min(ranks, key=lambda rank: ((shares[rank] + 1) * seconds[rank], rank))] += 1
    return shares


def _longest(shares: Sequence[int], seconds: Sequence[float]) -> float:
    return max(share * each for share, each in zip(shares, seconds, strict=True))
