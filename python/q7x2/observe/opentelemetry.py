"""Counters as metrics of OpenTelemetry, and training steps as spans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from q7x2._core import observers
from q7x2.observe.metric_families import FAMILIES, Family
from q7x2.observe.statistics import stats

_providers: list[Any] = []  # that have the metrics already; None is the global one
_steps: _Steps | None = None


def export_to_opentelemetry(*, meter_provider: Any = None, tracer_provider: Any = None) -> None:
    """Give OpenTelemetry the counters of this process, and a span for each training step.

    The metrics have the names and labels of ``q7x2.observe.serve_metrics``, without the ending
    ``_total``. They are observable instruments: q7x2 reads its counters when a reader of the
    provider collects. Each call of ``q7x2.log_step`` but the first ends a span ``q7x2.step``, which
    began with the call before. Its attributes are ``q7x2.step`` (a number, from 0 on),
    ``q7x2.rank`` under torchrun, and ``q7x2.loss`` if the call has one. ``Q7X2_OPENTELEMETRY=1``
    does this when the first group is made.

    >>> metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))
    >>> q7x2.observe.export_to_opentelemetry()

    A second call with the same ``meter_provider`` adds no metrics. Spans go to the provider of the
    last call.

    Args:
        meter_provider: An OpenTelemetry ``MeterProvider``; None: the global one, also if it is set
            later.
        tracer_provider: An OpenTelemetry ``TracerProvider``; None: the global one, too.

    Raises:
        ImportError: The package ``opentelemetry-api`` is missing.
    """
    try:
        from opentelemetry import metrics, trace
    except ModuleNotFoundError:
        raise ImportError(
            "export_to_opentelemetry needs OpenTelemetry: pip install 'q7x2[opentelemetry]'"
        ) from None
    from q7x2 import __version__

    global _steps
    _steps = _Steps(trace.get_tracer("q7x2", __version__, tracer_provider))
    if any(each is meter_provider for each in _providers):
        return
    _providers.append(meter_provider)
    meter = metrics.get_meter("q7x2", __version__, meter_provider)
    for family in FAMILIES:
        kind = "counter" if family.is_counter else "gauge"
        create: Any = getattr(meter, f"create_observable_{kind}")
        create(family.name, [_callback(family)], family.unit, family.description)


def end_step(loss: float | None) -> None:
    """A step ends now. Any thread."""
    if _steps is not None:
        _steps.end(loss)


def _callback(family: Family) -> Callable[[Any], Iterator[Any]]:
    from opentelemetry.metrics import Observation

    def observe(_: Any) -> Iterator[Any]:
        for labels, value in family.samples(stats()):
            yield Observation(value, dict(zip(family.labels, labels, strict=True)))

    return observe


class _Steps:
    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._begin: int | None = None  # nanoseconds since 1970
        self._number = 0
        self._rank = os.environ.get("RANK", "")

    def end(self, loss: float | None) -> None:
        now, begin = time.time_ns(), self._begin
        self._begin = now
        if begin is None:
            return
        attributes: dict[str, Any] = {"q7x2.step": self._number}
        if self._rank:
            attributes["q7x2.rank"] = self._rank
        if loss is not None:
            attributes["q7x2.loss"] = loss
        self._tracer.start_span("q7x2.step", attributes=attributes, start_time=begin).end(now)
        self._number += 1


observers.step_ended.append(end_step)
