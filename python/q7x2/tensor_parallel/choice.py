"""How many pieces a shard is sent in, and what the overlap of one layer has done so far.

More pieces: the first product begins earlier, and less of the last message is left over. But each
piece costs a message, and small products are slower per row. ``choose`` predicts the time of a
layer for each number of pieces from measured products and the Fabric:

    all-gather      end = product of the own shard
                    for each piece:  end = max(end, its arrival) + product of it for the others
    reduce-scatter  for each piece:  made += product of it for all
                                     end = max(end, made) + message

Whether overlap pays at all is measured in forwards and backwards (_core/overlap_trial.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch.distributed import ProcessGroup

from q7x2._core.overlap_trial import OverlapDecision, OverlapTrial
from q7x2._core.units import bytes_text, percent_text, time_text

CANDIDATES = (1, 2, 4, 8, 16)
DEFAULT = 4  # without a Fabric
_GAIN = 0.02  # the share of the time that more pieces must save
_REPEATS = 3


@dataclass(frozen=True)
class Candidate:
    """A number of pieces per shard, and what is predicted of it.

    Attributes:
        chunks: Pieces.
        product_seconds: Time of one piece of the other shards, or of all, on the slowest rank.
        message_seconds: Time of the collective for one piece of all shards, by the Fabric.
        seconds: Predicted time of the layer's forward.
    """

    chunks: int
    product_seconds: float
    message_seconds: float
    seconds: float


@dataclass
class LayerStats:
    """The overlap of one layer: how it was chosen, and what it has done on this rank.

    ``print`` shows it as text. :class:`ColwiseOverlap` and :class:`RowwiseOverlap` put it into the
    attribute ``overlap`` of a layer.

    Attributes:
        group: The process group of the ranks that share the layer.
        chunks: Pieces that a shard is sent in; 0 before the first forward of a layer that chooses.
        message_bytes: The bytes of the shard that each rank sends to each other rank in a forward.
        candidates: What the choice was made from. Empty if ``chunks`` was given, or if the group
            has no q7x2 backend and therefore no Fabric.
        calls: Forwards and backwards so far.
        seconds: Seconds in them.
        forwards: Forwards so far.
        forward_seconds: Seconds in them. ``candidates[0].seconds`` is the prediction for one.
        waited_seconds: Seconds of those in which this rank waited for messages.
        trial: Finds out whether overlap pays; None if ``chunks`` was given, on devices other than
            the CPU, and with one rank.
    """

    group: ProcessGroup
    chunks: int
    message_bytes: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    forwards: int = 0
    forward_seconds: float = 0.0
    waited_seconds: float = 0.0
    trial: OverlapTrial | None = None
    _step_seconds: float = field(
        default=0.0, init=False
    )  # time of forwards and backwards since a step began
    _step_ends: bool = field(default=False, init=False)  # with the next forward

    @property
    def decisions(self) -> tuple[OverlapDecision, ...]:
        """What trials have found, the last one in force; see :meth:`begin_forward` for steps."""
        return () if self.trial is None else tuple(self.trial.decisions)

    def begin_forward(self) -> bool:
        """Whether the forward that begins overlaps; a collective call when a trial ends.

        A step is what comes until the first forward after a backward: with checkpointing, a layer
        has two forwards in it. Without any backward, each forward is a step.
        """
        if self.trial is None:
            return True
        if self._step_ends or self.calls == self.forwards > 0:
            self.trial.add(self._step_seconds)
            self._step_seconds, self._step_ends = 0.0, False
        return self.trial.overlaps

    def count(self, seconds: float, waited: float, is_forward: bool) -> None:
        """Add a forward or a backward of a layer.

        Args:
            seconds: How long it took.
            waited: The part of ``seconds`` in which it waited for messages.
            is_forward: Whether it was a forward.
        """
        self.calls += 1
        self.seconds += seconds
        self._step_seconds += seconds
        self._step_ends |= not is_forward
        self.forwards += is_forward
        self.forward_seconds += seconds if is_forward else 0.0
        self.waited_seconds += waited

    def __str__(self) -> str:
        lines = [f"{self.group.size()} ranks, {self.chunks or 'not yet chosen'} chunks per shard"]
        if self.message_bytes:
            lines[0] += f" of {bytes_text(self.message_bytes)}"
        lines += [
            f"  {each.chunks:2} chunks: product {time_text(each.product_seconds)}, message "
            f"{time_text(each.message_seconds)}, forward {time_text(each.seconds)} (predicted)"
            for each in self.candidates
        ]
        lines += [f"  {each}" for each in self.decisions[-1:]]
        if self.forwards:
            mean = self.forward_seconds / self.forwards
            lines.append(f"  {self.forwards} forwards, {time_text(mean)} each (measured)")
        lines.append(
            f"  {self.calls} calls in {time_text(self.seconds)}, of which "
            f"{time_text(self.waited_seconds)} "
            f"({percent_text(self.waited_seconds, self.seconds)}) waited for messages"
        )
        return "\n".join(lines)


class Products(NamedTuple):
    """Measured products of a rank.

    Attributes:
        own: Seconds of that of its own shard.
        pieces: Seconds of that of one piece of several shards, by the number of pieces.
    """

    own: float
    pieces: dict[int, float]


def measure(product: Callable[[int, int], object], rows: int, shards: int) -> Products:
    """Products for each number of pieces that a shard of ``rows`` has rows for.

    Args:
        product: Computes with a given number of parts of a given number of rows each.
        rows: Rows of a shard.
        shards: The number of shards whose pieces are multiplied together.
    """
    pieces = {
        chunks: _seconds(product, shards, rows // chunks) for chunks in CANDIDATES if chunks <= rows
    }
    return Products(_seconds(product, 1, rows), pieces)


def _seconds(product: Callable[[int, int], object], parts: int, rows: int) -> float:
    product(parts, rows)
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        product(parts, rows)
        times.append(time.perf_counter() - begin)
    return min(times)


def predict_gather(chunks: int, product: float, message: float, own: float) -> float:
    """Seconds of products that begin when an all-gather has brought their rows.

    Args:
        chunks: Pieces per shard.
        product: Seconds of the product of one piece of all other shards.
        message: Seconds of the all-gather of one piece.
        own: Seconds of the product of a shard.
    """
    end = own
    for index in range(chunks):
        end = max(end, (index + 1) * message) + product
    return end


def predict_scatter(chunks: int, product: float, message: float) -> float:
    """Seconds of products that a reduce-scatter adds up.

    Args:
        chunks: Pieces per shard.
        product: Seconds of the product of one piece of all shards.
        message: Seconds of the reduce-scatter of one piece.
    """
    end = 0.0
    for index in range(chunks):
        end = max(end, (index + 1) * product) + message
    return end


def choose(
    measured: Sequence[Products],
    message: Callable[[int], float],
    message_bytes: int,
    is_gather: bool,
) -> list[Candidate]:
    """The candidates, the fewest pieces first that are within 2 % of the fastest prediction.

    Args:
        measured: What :func:`measure` returned, of each rank.
        message: Seconds of a collective with a given number of bytes per rank.
        message_bytes: Bytes of a shard.
        is_gather: The collective is an all-gather before the products, else a reduce-scatter.
    """
    own = max(each.own for each in measured)
    slowest = {
        chunks: max(each.pieces[chunks] for each in measured)
        for chunks in measured[0].pieces
        if all(chunks in each.pieces for each in measured)
    }
    candidates = []
    for chunks, product in slowest.items():
        seconds = message(-(-message_bytes // chunks))
        end = (
            predict_gather(chunks, product, seconds, own)
            if is_gather
            else predict_scatter(chunks, product, seconds)
        )
        candidates.append(Candidate(chunks, product, seconds, end))
    fastest = min((each.seconds for each in candidates), default=0.0)
    fastest *= 1 + _GAIN
    return sorted(candidates, key=lambda each: (max(fastest, each.seconds), each.chunks))


def message_seconds(group: ProcessGroup, collective: str) -> Callable[[int], float] | None:
    """Seconds of a collective by its bytes per rank, by the Fabric; None without one."""
    from q7x2._core.extension import load
    from q7x2._core.groups import backend_of

    try:
        fabric = backend_of(group, "tensor parallelism").fabric_json
    except ValueError:
        return None
    explain = load().explain

    def seconds(size: int) -> float:
        found: float = explain(collective, size, fabric)[0]["seconds"]
        return found

    return seconds
