"""How many pieces a shard is sent in, and what the overlap of one layer has done so far.

More pieces: the first product begins earlier, and less of the last message is left over. But each
piece costs a message, and small products are slower per row. ``choose`` predicts the time of a
layer for each number of pieces from measured products and the Fabric:

    end = product of the own shard
    for each piece:  end = max(end, piece's arrival) + products of this piece of the other shards
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch.distributed import ProcessGroup

from q7x2._units import bytes_text, percent_text, time_text

CANDIDATES = (1, 2, 4, 8, 16)
DEFAULT = 4  # without a Fabric
_GAIN = 0.05  # the share of the time that more pieces must save: they cost processor time as well
_REPEATS = 3


@dataclass(frozen=True)
class Candidate:
    """A number of pieces per shard, and what is predicted of it.

    Attributes:
        chunks: Pieces.
        product_seconds: Of one piece, measured on the slowest rank.
        message_seconds: In which all ranks have exchanged one piece each, by the Fabric.
        seconds: Of the layer's forward, predicted.
    """

    chunks: int
    product_seconds: float
    message_seconds: float
    seconds: float


@dataclass
class TensorOverlap:
    """The overlap of one layer: how it was chosen, and what it has done on this rank.

    ``print`` shows it as text. :class:`q7x2.ColwiseOverlap` and :class:`q7x2.RowwiseOverlap` put it
    into the attribute ``overlap`` of a layer.

    Attributes:
        group: Of the ranks that share the layer.
        chunks: Pieces that a shard is sent in; 0 before the first forward of a layer that chooses.
        message_bytes: Of the shard that each rank sends to each other rank in a forward.
        candidates: What the choice was made from. Empty if ``chunks`` was given, or if the group
            has no q7x2 backend and therefore no Fabric.
        calls: Forwards and backwards so far.
        seconds: Seconds in them.
        waited_seconds: Seconds of those in which this rank waited for messages.
    """

    group: ProcessGroup
    chunks: int
    message_bytes: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0

    def count(self, seconds: float, waited: float) -> None:
        """Add a forward or backward."""
        self.calls += 1
        self.seconds += seconds
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
        lines.append(
            f"  {self.calls} calls in {time_text(self.seconds)}, of which "
            f"{time_text(self.waited_seconds)} "
            f"({percent_text(self.waited_seconds, self.seconds)}) waited for messages"
        )
        return "\n".join(lines)


def measure(product: Callable[[int], object], rows: int) -> dict[int, float]:
    """Seconds of a product by number of pieces, for those that a shard of ``rows`` has rows for.

    Args:
        product: Computes with its argument's number of rows.
        rows: Of a shard.
    """
    times: dict[int, float] = {}
    for chunks in CANDIDATES:
        if chunks <= rows:
            product(rows // chunks)
            times[chunks] = min(_seconds(product, rows // chunks) for _ in range(_REPEATS))
    return times


def _seconds(product: Callable[[int], object], rows: int) -> float:
    begin = time.perf_counter()
    product(rows)
    return time.perf_counter() - begin


def predict(chunks: int, product: float, own: float, message: float, ranks: int) -> float:
    """Seconds of a forward.

    Args:
        chunks: Pieces per shard.
        product: Seconds of the product of one piece.
        own: Seconds of the product of a shard.
        message: Seconds in which all ranks exchange one piece each.
        ranks: Of the group.
    """
    end = own
    for index in range(chunks):
        end = max(end, (index + 1) * message) + (ranks - 1) * product
    return end


def choose(
    measured: Sequence[dict[int, float]], message: Callable[[int], float], message_bytes: int
) -> list[Candidate]:
    """The candidates, the fewest pieces first that are within 5 % of the fastest prediction.

    Args:
        measured: What :func:`measure` returned, of each rank.
        message: Seconds in which all ranks exchange so many bytes each.
        message_bytes: Of a shard.
    """
    slowest = {
        chunks: max(times[chunks] for times in measured)
        for chunks in measured[0]
        if all(chunks in times for times in measured)
    }
    candidates = []
    for chunks, product in slowest.items():
        seconds = message(-(-message_bytes // chunks))
        end = predict(chunks, product, slowest[1], seconds, len(measured))
        candidates.append(Candidate(chunks, product, seconds, end))
    fastest = min((each.seconds for each in candidates), default=0.0)
    fastest *= 1 + _GAIN
    return sorted(candidates, key=lambda each: (max(fastest, each.seconds), each.chunks))


def message_seconds(group: ProcessGroup) -> Callable[[int], float] | None:
    """Seconds in which all ranks exchange so many bytes each, by the Fabric; None without one."""
    from q7x2._extension import load
    from q7x2._groups import backend_of

    try:
        fabric = backend_of(group, "tensor parallelism").fabric_json
    except ValueError:
        return None
    explain = load().explain

    def seconds(size: int) -> float:
        found: float = explain("all_gather", size, fabric, -1, "direct")[0]["seconds"]
        return found

    return seconds
