"""What forward overlap has done: its figures, and when things happened in some steps."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from q7x2.overlap.chunk import Chunk
from q7x2.overlap.options import OverlapStats
from q7x2.overlap.timeline import ForwardTimeline, TimelineRecorder

_WAITS = ("step_wait_seconds", "forward_wait_seconds")


class Record:
    """Counts everything, and records some steps if their times were predicted."""

    def __init__(self) -> None:
        self._figures: dict[str, Any] = asdict(OverlapStats())
        self._waits = {name: _Waiting(self._figures, name) for name in _WAITS}
        self._timeline: ForwardTimeline | None = None
        self._recorder: TimelineRecorder | None = None  # while it has steps to record

    @property
    def stats(self) -> OverlapStats:
        """The figures so far."""
        return OverlapStats(**self._figures)

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
        for name, value in more.items():
            self._figures[name] += value

    def waiting(self, figure: str) -> _Waiting:
        """Add the seconds of the body to the figure of this name; bodies do not nest."""
        return self._waits[figure]


class _Waiting:
    """Adds seconds to one figure. It is kept, because each chunk of each step waits twice."""

    def __init__(self, figures: dict[str, Any], name: str) -> None:
        self._figures, self._name = figures, name
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._figures[self._name] += time.monotonic() - self._begin
