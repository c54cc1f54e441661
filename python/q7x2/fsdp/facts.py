"""What policies learn of a step of an FSDP2 model: norms, errors of codecs, times."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2._core.extension import load
from q7x2._core.random_keys import key_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_NORMS = 3  # columns before those of the candidates: |g|^2, |e|^2, [g != 0]


class FactTable:
    """One row per parameter: what this rank has measured of it in this step.

    Args:
        count: Number of parameters.
        candidates: Codecs whose errors are measured.
        scale: The loss scale, by which gradients and residuals are divided.
    """

    def __init__(self, count: int, candidates: Sequence[str], scale: float) -> None:
        self.rows = torch.zeros(count, _NORMS + len(candidates), dtype=torch.float64)
        self.seen: set[int] = set()
        self._codecs = [load().Codec(name) for name in candidates]
        self._scale = scale

    def measure(
        self, number: int, gradient: torch.Tensor, residual: torch.Tensor | None, key: int
    ) -> None:
        """Take down what this rank contributes to the mean of one parameter.

        Args:
            gradient: Float32, on the CPU, one row per rank that gets a part of it.
            residual: The same of what the step before has held back.
            key: The key of the codecs' random numbers.
        """
        square = _square(gradient)
        row = [square, _square(residual), float(square != 0)]
        if self._codecs:
            sent = gradient.contiguous() if residual is None else gradient + residual
            row += [_square(_lost(codec, sent, key)) for codec in self._codecs]
        made = torch.tensor(row, dtype=torch.float64)
        made[:2] /= self._scale**2
        made[_NORMS:] /= self._scale**2
        self.rows[number] += made
        self.seen.add(number)

    def add(
        self, number: int, gradient: float, residual: float, uses: float, errors: Sequence[float]
    ) -> None:
        """Take down what another hook has measured."""
        self.rows[number] += torch.tensor([gradient, residual, uses, *errors], dtype=torch.float64)
        self.seen.add(number)


def _square(tensor: torch.Tensor | None) -> float:
    if tensor is None:
        return 0.0
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64).item()) ** 2


def _lost(codec: Any, rows: torch.Tensor, key: int) -> torch.Tensor:
    """What the codec would hold back, if each row were a message."""
    lost = torch.zeros_like(rows)
    count = rows.shape[1]
    messages = torch.empty(len(rows) * codec.max_bytes(count), dtype=torch.uint8)
    codec.encode(
        rows.view(-1),
        messages,
        lost.view(-1),
        block=count,
        shared_key=key,
        rounding_key=key_of(key),
    )
    return lost


class WireClock:
    """Seconds between steps, and those in which collectives of a step were under way."""

    def __init__(self) -> None:
        self.last = (0.0, 0.0)  # seconds of the last step, and of its messages; 0: unknown
        self._lock = threading.Lock()
        self._begin = 0.0
        self._wire = 0.0
        self._under_way = 0
        self._since = 0.0

    def begin_step(self) -> None:
        now = time.monotonic()
        with self._lock:
            if self._under_way > 0:  # the end of a collective may be noticed late
                self._wire += now - self._since
                self._since = now
            if self._begin > 0:
                self.last = now - self._begin, self._wire
            self._begin, self._wire = now, 0.0

    def watch(self, work: Any) -> bool:
        """A collective was started. Whether its end is noticed; else `end` must be called.

        Args:
            work: A future, or a c10d Work. A Work may have no future.
        """
        with self._lock:
            self._under_way += 1
            if self._under_way == 1:
                self._since = time.monotonic()
        try:
            future = work.get_future() if isinstance(work, dist.Work) else work
        except RuntimeError:
            return False
        future.add_done_callback(self.end)
        return True

    def end(self, _: Any = None) -> None:
        """A collective has ended."""
        with self._lock:
            self._under_way -= 1
            if self._under_way == 0:
                self._wire += time.monotonic() - self._since


def summed(
    values: torch.Tensor, groups: Sequence[ProcessGroup], device: torch.device
) -> torch.Tensor:
    """The sums over all ranks, equal on all of them, bit for bit.

    Args:
        values: Float64, of one dimension, on the CPU.
        groups: The shards' process group, and that of the replicas, if there are any.
        device: Where the tensors of the groups' collectives must be.
    """
    shards, *replicas = groups
    total = values.to(device, copy=True)
    dist.all_reduce(total, group=shards)
    for group in replicas:
        # Another process group per shard may add in another order. So each rank adds by itself.
        parts = [torch.empty_like(total) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, total, group=group)
        total = torch.zeros_like(total)
        for part in parts:
            total += part
    return total.cpu()


def ranks_in(groups: Sequence[ProcessGroup]) -> int:
    count = 1
    for group in groups:
        count *= dist.get_world_size(group)
    return count
