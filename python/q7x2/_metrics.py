"""Counters of this process for Prometheus and TensorBoard.

Both have what ``q7x2.stats()`` has. A scrape or a log takes the engine's lock for as long as
``q7x2.stats()`` does; calls pay nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from q7x2._stats import stats

_BYTES = (
    ("sent", "network"),
    ("received", "network"),
    ("sent", "memory"),
    ("received", "memory"),
)
_LABELS = ("rank", "group", "operation")


class MetricsServer:
    """The HTTP server of ``serve_metrics``."""

    def __init__(self, server: Any, thread: Any) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    def close(self) -> None:
        """End the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(port: int, *, addr: str = "127.0.0.1") -> MetricsServer:
    """Let Prometheus scrape the counters of this process.

    Names follow Prometheus' conventions: ``q7x2_operations_total``, ``q7x2_message_bytes_total``,
    ``q7x2_operation_seconds_total`` and others, with the labels ``rank``, ``group`` and
    ``operation``. ``examples/grafana`` has a dashboard. Processes of one host need different ports.

    >>> server = q7x2.serve_metrics(9400 + local_rank, addr="0.0.0.0")

    Args:
        port: The TCP port; 0 takes one that is free.
        addr: The address of the interface. By default only this host can connect. The page has no
            secrets, but tells who trains what; open it to networks that you trust.

    Returns:
        A server with the attribute ``port``, which runs in a daemon thread until ``close()``.

    Raises:
        ImportError: The package ``prometheus_client`` is missing.
        OSError: The port is taken.
    """
    try:
        import prometheus_client
    except ModuleNotFoundError:
        raise ImportError(
            "serve_metrics needs prometheus_client: pip install 'q7x2[metrics]'"
        ) from None
    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector())
    server, thread = prometheus_client.start_http_server(port, addr, registry)
    return MetricsServer(server, thread)


class _Collector:
    """Makes metrics of the counters at each scrape."""

    def describe(self) -> list[Any]:
        """Nothing, so that registering it collects nothing."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        done = Counter("q7x2_operations", "Operations that succeeded.", labels=_LABELS)
        failed = Counter("q7x2_failed_operations", "Operations that failed.", labels=_LABELS)
        tensors = Counter("q7x2_tensor_bytes", "Bytes of tensors.", labels=(*_LABELS, "direction"))
        messages = Counter(
            "q7x2_message_bytes",
            "Bytes of messages without headers, through networks or shared memory.",
            labels=(*_LABELS, "direction", "via"),
        )
        seconds = Counter(
            "q7x2_operation_seconds",
            "Seconds by phase. Phases of threads that work at once add up.",
            labels=(*_LABELS, "phase"),
        )
        duration = Gauge(
            "q7x2_operation_duration_seconds",
            "Quantiles of the duration of one operation since the start.",
            labels=(*_LABELS, "quantile"),
        )
        predicted = Counter("q7x2_predicted_seconds", "What the planner expected.", labels=_LABELS)
        took = Counter(
            "q7x2_predicted_took_seconds",
            "What operations with an expectation took.",
            labels=_LABELS,
        )
        for rank, group, operation, counted in _counters():
            labels = (rank, group, operation)
            done.add_metric(labels, counted["count"])
            failed.add_metric(labels, counted["failed"])
            for direction in ("input", "output"):
                tensors.add_metric((*labels, direction), counted[f"{direction}_bytes"])
            for direction, via in _BYTES:
                messages.add_metric((*labels, direction, via), counted[f"{direction}_{via}_bytes"])
            for phase, value in counted["seconds"].items():
                seconds.add_metric((*labels, phase), value)
            for quantile in ("50", "90", "99"):
                value = counted["took"][f"p{quantile}"]
                duration.add_metric((*labels, f"0.{quantile.rstrip('0')}"), value)
            predicted.add_metric(labels, counted["predicted"]["seconds"])
            took.add_metric(labels, counted["predicted"]["took"])
        yield from (done, failed, tensors, messages, seconds, duration, predicted, took)
        norms = Gauge(
            "q7x2_codec_norm",
            "L2 norms of gradients, and of what codecs held back, when last measured.",
            labels=("rank", "hook", "parameter", "of"),
        )
        for hook in stats()["hooks"]:
            for name, each in hook["parameters"].items():
                for of in ("gradient", "residual"):
                    rank = os.environ.get("RANK", "")
                    norms.add_metric((rank, _name(hook), name, of), each[of])
        yield norms


def _name(hook: dict[str, Any]) -> str:
    return f"{hook['name']} {hook['hook']}"


def _counters() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Rank in the job, group, operation and counters, with each combination once."""
    merged: dict[tuple[str, str, str], dict[str, Any]] = {}
    for group in stats()["groups"]:
        rank = os.environ.get("RANK", str(group["rank"]))
        for operation, counted in group["operations"].items():
            # A group's name may be used again once it is closed; the later one counts.
            merged[rank, group["name"], operation] = counted
    for (rank, name, operation), counted in merged.items():
        yield rank, name, operation, counted


class Scalars:
    """Writes what operations have done since the last call to TensorBoard.

    >>> scalars = q7x2.Scalars(torch.utils.tensorboard.SummaryWriter())
    >>> for step, batch in enumerate(loader):
    ...     train(batch)
    ...     scalars.log(step)

    Args:
        writer: A ``SummaryWriter``, or anything with ``add_scalar(tag, value, step)``.
        prefix: What tags begin with.

    Raises:
        TypeError: ``writer`` has no ``add_scalar``.
    """

    def __init__(self, writer: Any, prefix: str = "q7x2") -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                f"expected a SummaryWriter with add_scalar, got {type(writer).__name__}"
            )
        self._writer = writer
        self._prefix = prefix
        self._last = _totals()

    def log(self, step: int) -> None:
        """Write the differences since the last call, or since this object was made.

        Tags are ``seconds/<phase>``, ``bytes/<direction>_<via>`` and ``operations``, over all
        groups of this process. ``relative_error/<hook>`` is not a difference: it is what codecs
        held back relative to the gradient, in the step that was measured last.

        Args:
            step: The number of the step.
        """
        now = _totals()
        for tag, value in now.items():
            before = self._last.get(tag, 0)
            # Somebody may have reset the counters.
            change = value - before if value >= before else value
            self._writer.add_scalar(f"{self._prefix}/{tag}", change, step)
        self._last = now
        for hook in stats()["hooks"]:
            tag = f"{self._prefix}/relative_error/{_name(hook).replace(' ', '_')}"
            self._writer.add_scalar(tag, hook["relative_error"], step)


def _totals() -> dict[str, float]:
    totals: dict[str, float] = {}

    def add(tag: str, value: float) -> None:
        totals[tag] = totals.get(tag, 0) + value

    for group in stats()["groups"]:
        for counted in group["operations"].values():
            add("operations", counted["count"])
            for direction, via in _BYTES:
                add(f"bytes/{direction}_{via}", counted[f"{direction}_{via}_bytes"])
            for phase, value in counted["seconds"].items():
                add(f"seconds/{phase}", value)
    return totals
