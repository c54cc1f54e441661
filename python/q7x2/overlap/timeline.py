"""``ForwardTimeline``: a step with forward overlap, as predicted and as measured."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from q7x2._core.json_values import parse
from q7x2._core.overlap_trial import OverlapDecision
from q7x2._core.units import bytes_text, time_text
from q7x2.overlap.choice import Candidate
from q7x2.overlap.model import MOMENTS, BucketCosts, Moments, StepCosts

_WARM_UP, _STEPS = 2, 5
_SHOWN = 5  # candidates
_NAME = 21  # characters of a parameter's name


@dataclass(frozen=True)
class ForwardTimeline:
    """How the options of :class:`q7x2.overlap.OverlapOptions` were chosen, and what came of it.

    ``print`` shows it as text; ``q7x2 plan timeline FILE`` does so with a saved one.

    Attributes:
        costs: What a step consists of, measured in the first steps.
        candidates: What the options were chosen from, the chosen one first.
        predicted: What happens to each chunk, in the order of all-gathers.
        measured: What happened to each chunk in a step of this rank. Empty until some steps on
            shards have been taken.
        measured_seconds: Seconds of a step, the median over some steps of this rank; None until
            then.
        decisions: What trials have found: whether steps overlap at all. The last is in force.
    """

    costs: StepCosts
    candidates: tuple[Candidate, ...]
    predicted: tuple[Moments, ...]
    measured: tuple[Moments, ...] = ()
    measured_seconds: float | None = None
    decisions: tuple[OverlapDecision, ...] = ()

    @property
    def predicted_seconds(self) -> float:
        """The seconds of a step that the simulation predicts for the chosen options."""
        return self.candidates[0].seconds

    def save(self, path: str | Path) -> None:
        """Write it to the file ``path``, as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1))

    @staticmethod
    def load(path: str | Path) -> ForwardTimeline:
        """Read what :meth:`save` has written to the file ``path``.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not the JSON of a timeline.
        """
        try:
            read = parse(Path(path).read_text())
            costs = read["costs"]
            costs["buckets"] = tuple(_bucket(each) for each in costs["buckets"])
            return ForwardTimeline(
                StepCosts(**costs),
                tuple(Candidate(**each) for each in read["candidates"]),
                tuple(Moments(**each) for each in read["predicted"]),
                tuple(Moments(**each) for each in read["measured"]),
                read["measured_seconds"],
                tuple(OverlapDecision(**each) for each in read["decisions"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a timeline that ForwardTimeline.save wrote") from error

    def __str__(self) -> str:
        best, costs = self.candidates[0], self.costs
        lines = [
            f"overlap with forward: {best.chunks} chunks of up to {bytes_text(best.chunk_bytes)}, "
            f"window {best.window}, early {best.early:g}",
            f"step: predicted {time_text(best.seconds)}{self._comparison()}",
            *(str(each) for each in self.decisions[-1:]),
            f"with DDP's all-reduce: measured {time_text(costs.ddp)}; computation alone "
            f"{time_text(costs.compute)}, messages alone {time_text(costs.wire)}",
            f"together, computation is {costs.compute_slowdown:.2f} x slower and messages "
            f"{costs.wire_slowdown:.2f} x",
            "candidates:",
            *(
                f"  {each.chunks:4} chunks, window {each.window}, early {each.early:g}: "
                f"{time_text(each.seconds)}"
                for each in self.candidates[:_SHOWN]
            ),
            "milliseconds since the end of forward, predicted / measured:",
            f"{'first parameter':{_NAME}} {'size':>8} "
            + " ".join(f"{name:>9}" for name in MOMENTS),
        ]
        for number, each in enumerate(self.predicted):
            measured = self.measured[number] if self.measured else None
            lines.append(
                f"{each.parameter[-_NAME:]:{_NAME}} {bytes_text(each.bytes):>8} "
                + " ".join(f"{_pair(each, measured, name):>9}" for name in MOMENTS)
            )
        return "\n".join(lines)

    def _comparison(self) -> str:
        if self.measured_seconds is None:
            return ", not measured yet"
        more = self.measured_seconds / self.predicted_seconds - 1
        return f", measured {time_text(self.measured_seconds)} ({more:+.0%})"


def _bucket(read: dict[str, Any]) -> BucketCosts:
    lists_as_tuples: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in read.items()
    }
    return BucketCosts(**lists_as_tuples)


def _pair(predicted: Moments, measured: Moments | None, name: str) -> str:
    texts = [f"{1e3 * getattr(each, name):.0f}" for each in (predicted, measured) if each]
    return "/".join(texts)


@dataclass
class TimelineRecorder:
    """Records some steps on shards, and then no more.

    Args:
        timeline: To be completed.
        count: Number of chunks.
    """

    timeline: ForwardTimeline
    count: int
    _periods: list[float] = field(default_factory=list)
    _origin: float = 0.0
    _moments: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """All steps are recorded."""
        return len(self._periods) == _WARM_UP + _STEPS

    def follow(self, number: int, chunk: Any) -> None:
        """The reduce-scatter of ``chunk`` has begun."""
        self.note("ready", number)
        step = self._moments

        def ended(_: Any) -> None:
            if step is self._moments:  # else it comes late, in the next step
                self.note("scattered", number)

        chunk.when_scattered(ended)

    def note(self, name: str, number: int) -> None:
        """Now is one of the :class:`Moments` of a chunk; the first time in a step counts."""
        moments = self._moments
        # An all-gather's callback may come after the forward that has waited for it.
        is_of_this_step = name == "ready" or (moments and moments["ready"][number])
        if moments and is_of_this_step and not moments[name][number]:
            moments[name][number] = time.monotonic() - self._origin

    def end_forward(self) -> None:
        """A forward has ended: a step ends, and the next one begins."""
        now = time.monotonic()
        if self._origin:
            self._periods.append(now - self._origin)
        if self.is_done:
            self._complete()
        self._origin = now
        self._moments = {name: [0.0] * self.count for name in MOMENTS}

    def _complete(self) -> None:
        columns = zip(*(self._moments[name] for name in MOMENTS), strict=True)
        self.timeline = replace(
            self.timeline,
            measured=tuple(
                Moments(each.parameter, each.bytes, *moments)
                for each, moments in zip(self.timeline.predicted, columns, strict=True)
            ),
            measured_seconds=statistics.median(self._periods[_WARM_UP:]),
        )
