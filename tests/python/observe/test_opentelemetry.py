"""Counters and steps for OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import interpreters
import pytest
import q7x2
import torch
import torch.distributed as dist
from scraping import page_at

needs_sdk = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", "import opentelemetry.sdk"], capture_output=True
    ).returncode
    != 0,
    reason="the package opentelemetry-sdk is missing",
)


@pytest.fixture
def group() -> object:
    dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1000))
    yield
    dist.destroy_process_group()


def collected(reader: Any) -> dict[str, Any]:
    """The metrics that a reader gets, by name."""
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    assert len({each.name for each in scope.metrics}) == len(scope.metrics)
    return {each.name: each for each in scope.metrics}


@needs_sdk
@pytest.mark.usefixtures("group")
def test_a_reader_gets_the_counters() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for _ in range(2):  # the second call changes nothing
        q7x2.observe.export_to_opentelemetry(meter_provider=provider)
    found = collected(reader)
    (point,) = [
        each
        for each in found["q7x2_operations"].data.data_points
        if each.attributes["operation"] == "all_reduce"
    ]
    assert point.value == 1
    assert set(point.attributes) == {"rank", "group", "operation"}
    assert found["q7x2_operations"].data.is_monotonic
    assert found["q7x2_tensor_bytes"].unit == "By"
    assert sum(each.value for each in found["q7x2_tensor_bytes"].data.data_points) >= 8000
    quantiles = found["q7x2_operation_duration_seconds"].data.data_points
    assert {each.attributes["quantile"] for each in quantiles} == {"0.5", "0.9", "0.99"}
    dist.all_reduce(torch.ones(1000))
    points = collected(reader)["q7x2_operations"].data.data_points
    assert 2 in [each.value for each in points]


@needs_sdk
@pytest.mark.usefixtures("group")
def test_names_are_those_of_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    q7x2.observe.export_to_opentelemetry(meter_provider=MeterProvider([reader]))
    server = q7x2.observe.serve_metrics(0)
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        page = page_at(url)
    finally:
        server.close()
    families = parser.text_string_to_metric_families(page)
    scraped = {each.name for each in families if each.samples}
    assert set(collected(reader)) == scraped


@needs_sdk
def test_each_step_is_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    monkeypatch.setenv("RANK", "3")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    q7x2.observe.export_to_opentelemetry(tracer_provider=provider)
    q7x2.log_step(0.75)
    q7x2.log_step(0.5)
    q7x2.log_step()
    first, second = exporter.get_finished_spans()
    assert first.name == second.name == "q7x2.step"
    assert first.end_time == second.start_time
    assert first.attributes == {"q7x2.step": 0, "q7x2.rank": "3", "q7x2.loss": 0.5}
    assert second.attributes == {"q7x2.step": 1, "q7x2.rank": "3"}


def with_variable(value: str, code: str) -> subprocess.CompletedProcess[str]:
    """A program that makes a group, and then runs ``code``."""
    begin = """
import sys, torch, torch.distributed as dist
dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
"""
    return subprocess.run(
        [interpreters.python(), "-c", begin + code],
        env=os.environ | {"Q7X2_OPENTELEMETRY": value},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_sdk
def test_the_variable_exports_to_the_global_providers() -> None:
    done = with_variable(
        "1",
        """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))  # later than the group
other = dist.new_group([0])  # a second group adds nothing
dist.all_reduce(torch.ones(1000))
(resource,) = reader.get_metrics_data().resource_metrics
names = [each.name for each in resource.scope_metrics[0].metrics]
print(names.count("q7x2_operations"))
dist.destroy_process_group()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
    assert "already" not in done.stderr  # OpenTelemetry's warning about instruments made twice


def test_a_wrong_value_of_the_variable_is_an_error() -> None:
    done = with_variable("yes", "")
    assert done.returncode == 1
    assert "Q7X2_OPENTELEMETRY: expected 0 or 1, got 'yes'" in done.stderr


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install 'q7x2\[opentelemetry\]'"):
        q7x2.observe.export_to_opentelemetry()
