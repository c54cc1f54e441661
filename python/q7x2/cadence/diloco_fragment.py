"""A fragment of a model: what its ranks share of it, and its outer gradient on the way.

All tensors of a fragment lie in one vector of float32, first the parameters that go through the
codec, then those that travel whole::

    weights    | coded parameters        | whole parameters |      equal on all ranks
    momentum   | the same                | the same         |      equal on all ranks
    residual   | what is not sent yet    |                         this rank's own

An outer gradient is `weights` minus this rank's parameters. It leaves as two messages, one through
the codec and one whole, and changes nothing until it has arrived: a residual on the way is a copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.extension import load
from q7x2.cadence import diloco_reports as reports
from q7x2.cadence.diloco_options import DiLoCoOptions, Named
from q7x2.cadence.diloco_reports import Report
from q7x2.cadence.diloco_shards import local
from q7x2.collectives.coded import all_reduce


@dataclass
class Trip:
    """How long the messages of an outer gradient took; times of ``time.monotonic()``, in seconds.

    Callbacks write ``done``, one time for each message, perhaps after the messages have been waited
    for: then it is the waiting's end that counts.
    """

    sent: float = field(default_factory=time.monotonic)
    done: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def end(self, messages: int) -> None:
        """All messages have been waited for."""
        last = max(self.done) if len(self.done) == messages else time.monotonic()
        self.seconds = last - self.sent


@dataclass
class Flight:
    """An outer gradient on the way, or one that has arrived and is not applied yet.

    Attributes:
        sums: What is summed over the ranks: the fragment, the inner optimizer's state, the slots.
        residual: Replaces the fragment's once the outer gradient is applied; None: no codec.
        arrives: The step at which it is applied.
        works: Those of messages that have not been waited for.
        refused: Why a message could not be sent.
    """

    sums: Tensor
    residual: Tensor | None
    arrives: int
    works: list[Any] = field(default_factory=list)
    refused: RuntimeError | None = None
    trip: Trip = field(default_factory=Trip)

    def send(self, message: Callable[[], Any]) -> None:
        """Begin with a message; a failure counts when it is waited for."""
        try:
            work = message()
        except RuntimeError as error:
            self.refused = self.refused or error
            return
        done = self.trip.done
        work.get_future().add_done_callback(lambda _: done.append(time.monotonic()))
        self.works.append(work)

    def land(self) -> None:
        """Wait for all messages; raises what the first one that failed raises.

        Once they have arrived, another call does nothing.
        """
        errors = [] if self.refused is None else [self.refused]
        for work in self.works:
            try:
                work.wait()
            except RuntimeError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if self.works:
            self.trip.end(len(self.works))
            self.works.clear()


class Fragment:
    """Some parameters of a model, which are synchronised together.

    Args:
        index: Its number, the same on all ranks.
        parameters: The parameters, by name.
        options: How outer gradients travel, and what is done with them.

    Attributes:
        version: Outer steps so far.
        due: The step at which the next outer gradient leaves; None: not in this interval.
        contributes: False until the first outer step of a rank that has joined.
    """

    def __init__(self, index: int, parameters: Named, options: DiLoCoOptions) -> None:
        self.index = index
        self.coded: Named = [each for each in parameters if not options.is_whole(each[0])]
        whole = [each for each in parameters if options.is_whole(each[0])]
        self.parameters: Named = [*self.coded, *whole]
        self._coded_numel = sum(local(p).numel() for _, p in self.coded)
        self._options = options
        self.weights = torch.cat([local(p).detach().float().flatten() for _, p in self.parameters])
        self.momentum = torch.zeros_like(self.weights) if options.outer.momentum else None
        self.residual = self.weights.new_zeros(self._coded_numel) if self.coded else None
        self.flight: Flight | None = None
        self.version = 0
        self.due: int | None = None
        self.contributes = True

    @property
    def may_be_late(self) -> bool:
        """Outer gradients may be on the way between two steps."""
        return self._options.overlap > 0

    @property
    def message_bytes(self) -> int:
        """Bytes of an outer gradient's messages, without the slots; an estimate with a codec."""
        whole = 4 * (self.weights.numel() - self._coded_numel)
        if not self._coded_numel:
            return whole
        bits: float = load().Codec(self._options.codec).bits
        return whole + round(bits * self._coded_numel / 8)

    def start(
        self, group: ProcessGroup, report: Report, inner_state: Sequence[Tensor], arrives: int
    ) -> None:
        """Send this rank's outer gradient; all ranks do, in the same order.

        Args:
            inner_state: State of the inner optimizer, to be averaged as well.
            arrives: The step at which it is to be applied.
        """
        numel = self.weights.numel()
        extra = sum(tensor.numel() for tensor in inner_state)
        sums = self.weights.new_empty(numel + extra + reports.WIDTH * group.size())
        self.write_difference(sums[:numel])
        offset = numel
        for tensor in inner_state:
            sums[offset : offset + tensor.numel()] = tensor.flatten()
            offset += tensor.numel()
        if not report.contributes:
            sums[:offset] = 0
        reports.write(sums[offset:], group.rank(), report)
        residual = None if self.residual is None else self.residual * self._options.residual_decay
        self.flight = Flight(sums, residual, arrives)
        codec = self._options.codec
        if codec is not None and self._coded_numel:
            self.flight.send(
                lambda: all_reduce(
                    sums[: self._coded_numel],
                    codec=codec,
                    group=group,
                    async_op=True,
                    residual=residual,
                    seed=(self._options.random_seed + self.index) % 2**64,
                    step=self.version,
                    edges=self._options.edges,
                )
            )
        whole = sums[self._coded_numel :]
        self.flight.send(lambda: dist.all_reduce(whole, group=group, async_op=True))

    def write_difference(self, out: Tensor) -> None:
        """Write shared weights minus parameters; the weights are rounded to the dtypes first."""
        shared, difference = views(self.weights, self.parameters), views(out, self.parameters)
        for name, p in self.parameters:
            mine = local(p)
            torch.sub(shared[name].to(p.dtype).float(), mine.float(), out=difference[name])

    def reports(self, world_size: int) -> list[Report]:
        """What all ranks said with the outer gradient that has arrived."""
        assert self.flight is not None
        return reports.read(self.flight.sums[-reports.WIDTH * world_size :])

    def check_finite(self, world_size: int) -> None:
        """Raises FloatingPointError if a sum has Inf or NaN; all ranks have the same sums."""
        assert self.flight is not None
        if not torch.isfinite(self.flight.sums[: -reports.WIDTH * world_size]).all():
            raise FloatingPointError(
                f"the outer gradient of fragment {self.index} has Inf or NaN on some rank; the "
                f"outer step is not taken"
            )

    def apply(
        self, contributors: int, inner_rate: float, inner_state: Sequence[Tensor], blend: float
    ) -> None:
        """Take the outer step with what has arrived."""
        assert self.flight is not None
        flight, numel = self.flight, self.weights.numel()
        extra = sum(tensor.numel() for tensor in inner_state)
        means = flight.sums[: numel + extra].div_(max(1, contributors))
        self._options.outer.apply(self.weights, means[:numel], self.momentum, inner_rate)
        self.write_parameters(blend)
        offset = numel
        for tensor in inner_state:
            tensor.copy_(means[offset : offset + tensor.numel()].view(tensor.shape))
            offset += tensor.numel()
        if flight.residual is not None:
            self.residual = flight.residual
        self.flight = None
        self.version += 1
        self.contributes = True

    def write_parameters(self, blend: float) -> None:
        """Parameters = blend * parameters + (1 - blend) * shared weights."""
        shared = views(self.weights, self.parameters)
        for name, p in self.parameters:
            if blend:
                local(p).lerp_(shared[name].to(p.dtype), 1 - blend)
            else:
                local(p).copy_(shared[name])

    def roll_back(self, step: int) -> None:
        """Forget what is on the way, and send the outer gradient again at ``step``."""
        self.flight, self.due = None, step


def views(flat: Tensor, parameters: Named) -> dict[str, Tensor]:
    """Views of a vector in the shapes of the parameters, which lie in it one behind the other."""
    tensors, offset = {}, 0
    for name, p in parameters:
        mine = local(p)
        tensors[name] = flat[offset : offset + mine.numel()].view(mine.shape)
        offset += mine.numel()
    return tensors


def split(parameters: Named, count: int) -> list[Named]:
    """Parameters in their order, in ``count`` parts of about as many elements, none empty.

    Those of shards are split as the whole model is, so that all ranks of a replica split alike.
    """
    total = sum(p.numel() for _, p in parameters)
    parts: list[list[tuple[str, Tensor]]] = [[] for _ in range(count)]
    before, index = 0, 0
    for position, (name, p) in enumerate(parameters):
        left = len(parameters) - position
        is_full = before * count >= total * (index + 1)
        if parts[index] and (is_full or left == count - index - 1) and index + 1 < count:
            index += 1
        parts[index].append((name, p))
        before += p.numel()
    return list(parts)
