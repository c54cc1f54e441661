"""What forward overlap has done: its figures, and when things happened in some steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from q7x2.overlap.chunk import Chunk
from q7x2.overlap.options import OverlapStats
from q7x2.overlap.timeline import ForwardTimeline, TimelineRecorder


class Record:
    """Counts everything, and records some steps if their times were predicted."""

    def __init__(self) -> None:
        self.stats = OverlapStats()
        self._timeline: ForwardTimeline | None = None
        self._recorder: TimelineRecorder | None = None  # while it has steps to record

    @property
    def timeline(self) -> ForwardTimeline | None:
        """What was predicted, and what was measured; None: nothing was predicted."""
        return self._timeline if self._recorder is None else self._recorder.timeline

    @property
    def is_recording(self) -> bool:
        """These are steps that are recorded."""
        return self._recorder is not None

    def predict(self, timeline: ForwardTimeline | None) -> None:
        """What the first steps have predicted, if they have."""
        self._timeline = timeline

    def begin(self, chunks: int) -> None:
        """The number of chunks is known: record, if there is something to compare with."""
        self.count(chunks=chunks)
        if self._timeline is not None:
            self._recorder = TimelineRecorder(self._timeline, chunks)

    def follow(self, number: int, chunk: Chunk) -> None:
        """The reduce-scatter of ``chunk``, the ``number``-th in the order, has begun."""
        if self._recorder is not None:
            self._recorder.follow(number, chunk)

    def note(self, moment: str, number: int) -> None:
        """Now is one of the :class:`q7x2.overlap.model.Moments` of a chunk."""
        if self._recorder is not None:
            self._recorder.note(moment, number)

    def note_gather(self, what: str, number: int) -> None:
        """The same, as a CollectiveQueue tells of all-gathers."""
        self.note("stepped" if what == "ready" else "gathered", number)

    def end_forward(self) -> None:
        """A forward of a step on shards has ended."""
        if self._recorder is not None:
            self._recorder.end_forward()
            if self._recorder.is_done:
                self._timeline, self._recorder = self._recorder.timeline, None

    def count(self, **more: float) -> None:
        """Add to the figures of these names."""
        stats = self.stats
        self.stats = replace(stats, **{k: getattr(stats, k) + v for k, v in more.items()})

    @contextmanager
    def waiting(self, figure: str) -> Iterator[None]:
        """Add the seconds of the body to the figure of this name."""
        begin = time.monotonic()
        yield
        self.count(**{figure: time.monotonic() - begin})
