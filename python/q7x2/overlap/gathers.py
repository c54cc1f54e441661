"""The all-gathers of new weights, and the modules of forward that wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from q7x2._core.collective_queue import CollectiveQueue
from q7x2.overlap.chunk import Chunk
from q7x2.overlap.modules import chunks_needed
from q7x2.overlap.record import Record


class Gathers:
    """All-gathers begin in the order in which forward needs them.

    Chunks have numbers in this order.

    Args:
        window: How many are in progress at once.
        record: Is told when they begin and end.
    """

    def __init__(self, window: int, record: Record) -> None:
        self.chunks: list[Chunk] = []  # empty until all buckets are known
        self.queue = CollectiveQueue(window, record.note_gather)
        self._record = record
        self._needed: dict[nn.Module, list[int]] = {}
        self._pending: set[int] = set()  # all-gathers that have not landed

    def settle(
        self, chunks: Sequence[Chunk], needs: Mapping[nn.Module, Sequence[nn.Parameter]]
    ) -> None:
        """All buckets are known.

        Args:
            chunks: In the order of all-gathers.
            needs: By module, the parameters that it waits for.
        """
        self.chunks = list(chunks)
        self._needed = chunks_needed(
            needs, [[p for _, p in chunk.parameters.values()] for chunk in chunks]
        )

    def begin(self) -> None:
        """A backward begins, or the first step. All of the last step have landed."""
        self.queue.begin([chunk.start_gather for chunk in self.chunks])

    def expect(self, number: int) -> None:
        """The optimizer has stepped on this chunk: forward waits for its new weights."""
        self._pending.add(number)

    def land_needed(self, module: nn.Module) -> None:
        """Wait for the parameters that ``module`` needs, and change them."""
        if self._pending:
            for number in self._needed.get(module, ()):
                if number in self._pending:
                    self._land(number)

    def land_all(self) -> None:
        """Wait for all parameters, and change them; raises what an all-gather raises."""
        for number in sorted(self._pending):
            self._land(number)

    def _land(self, number: int) -> None:
        with self._record.waiting("forward_wait_seconds"):
            self._record.note("needed", number)
            self.queue.wait(number)
            self._record.note("gathered", number)  # its callback may be late
        self.chunks[number].land()
        self._pending.discard(number)

    def clear(self) -> None:
        """Forget all chunks."""
        self.chunks, self._needed = [], {}
