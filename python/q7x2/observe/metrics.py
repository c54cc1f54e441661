"""Counters of this process for Prometheus and TensorBoard.

Both have what ``q7x2.stats()`` has, also after ``destroy_process_group``. A scrape or a log takes
the engine's lock for as long as ``q7x2.stats()`` does; calls pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from q7x2.observe.metric_families import BYTES, FAMILIES, name_of
from q7x2.observe.statistics import stats


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

    >>> server = q7x2.observe.serve_metrics(9400 + local_rank, addr="0.0.0.0")

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
    registry.register(Collector())
    server, thread = prometheus_client.start_http_server(port, addr, registry)
    return MetricsServer(server, thread)


class Collector:
    """Makes metrics of the counters at each scrape."""

    def describe(self) -> list[Any]:
        """Nothing, so that registering it collects nothing."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        now = stats()
        for family in FAMILIES:
            make = Counter if family.is_counter else Gauge
            metric = make(family.name, family.description, labels=family.labels)
            for labels, value in family.samples(now):
                metric.add_metric(labels, value)
            yield metric


class Scalars:
    """Writes what operations have done since the last call to TensorBoard.

    >>> scalars = q7x2.observe.Scalars(torch.utils.tensorboard.SummaryWriter())
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
        changes: dict[str, float] = {}
        for (group, tag), value in now.items():
            before = self._last.get((group, tag), 0)
            # Somebody may have reset the counters.
            change = value - before if value >= before else value
            changes[tag] = changes.get(tag, 0) + change
        for tag, change in changes.items():
            self._writer.add_scalar(f"{self._prefix}/{tag}", change, step)
        self._last = now
        for hook in stats()["hooks"]:
            tag = f"{self._prefix}/relative_error/{name_of(hook).replace(' ', '_')}"
            self._writer.add_scalar(tag, hook["relative_error"], step)


def _totals() -> dict[tuple[str, str], float]:
    """What each group has done, by its identity and the tag."""
    totals: dict[tuple[str, str], float] = {}
    for group in stats()["groups"]:

        def add(tag: str, value: float, identity: str = group["identity"]) -> None:
            totals[identity, tag] = totals.get((identity, tag), 0) + value

        for counted in group["operations"].values():
            add("operations", counted["count"])
            for direction, via in BYTES:
                add(f"bytes/{direction}_{via}", counted[f"{direction}_{via}_bytes"])
            for phase, value in counted["seconds"].items():
                add(f"seconds/{phase}", value)
    return totals
