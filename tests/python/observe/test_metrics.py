"""Counters for Prometheus and TensorBoard, the Grafana dashboard, and ``q7x2 top``."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import urllib.request

import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import ROOT
from ledger_files import Training
from q7x2 import cli
from q7x2.ledger import live as ledger_live
from q7x2.ledger import reader as ledger_reader
from scraping import page_at


@pytest.fixture
def group() -> object:
    dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1000))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_prometheus_scrapes_the_counters() -> None:
    pytest.importorskip("prometheus_client")
    server = q7x2.observe.serve_metrics(0)
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        page = page_at(url)
    finally:
        server.close()
    found = re.findall(
        r'^q7x2_tensor_bytes_total\{(.*all_reduce.*"input".*|.*)\} (.*)$', page, re.M
    )
    assert sum(float(value) for _, value in found) >= 8000
    assert re.search(r'^q7x2_operations_total\{.*operation="all_reduce".*\} 1\.0$', page, re.M)
    assert re.search(r'^q7x2_operation_duration_seconds\{.*quantile="0\.9".*\}', page, re.M)
    names = set(re.findall(r"^(q7x2_\w+)\{", page, re.M))
    dashboard = json.loads((ROOT / "examples/grafana/q7x2.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"q7x2_\w+", target["expr"])
    }
    assert asked <= names
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'q7x2\[metrics\]'"):
        q7x2.observe.serve_metrics(0)


class Writer:
    def __init__(self) -> None:
        self.written: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written[tag, step] = value


@pytest.mark.usefixtures("group")
def test_tensorboard_gets_differences() -> None:
    writer = Writer()
    scalars = q7x2.observe.Scalars(writer, "a")
    dist.all_reduce(torch.ones(10))
    scalars.log(7)
    scalars.log(8)
    assert writer.written["a/operations", 7] == 1
    assert writer.written["a/operations", 8] == 0
    assert writer.written["a/seconds/took", 7] > 0
    q7x2.stats(reset=True)
    dist.all_reduce(torch.ones(10))
    scalars.log(9)
    assert writer.written["a/operations", 9] == 1
    with pytest.raises(TypeError, match="add_scalar"):
        q7x2.observe.Scalars(object())


def test_the_last_seconds_of_a_job(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Training(steps=400, late={2: ("processor", 15)}, slow_host=1, slow=5).write(tmp_path)
    live = ledger_live.look(ledger_reader.read(tmp_path), 5)
    for each in live.ranks:
        assert each.operations == pytest.approx(1e3 / 45, rel=0.05)
        assert each.network == pytest.approx(each.operations * (1 << 20))
        assert each.slowest == (each.rank - 1) % 4
    assert [round(each.delayed or 0, 1) for each in live.ranks] == [0, 0, 0.3, 0]
    (plan,) = live.plans
    assert plan.rate == pytest.approx(1e3 / 45, rel=0.05)
    prices = tmp_path / "prices.toml"
    prices.write_text("node_hour = 3")
    assert cli.main(["top", str(tmp_path), "--once", "--prices", str(prices)]) == 0
    shown = capsys.readouterr().out
    assert "4 ranks, last 10 s" in shown
    assert "12 USD/h" in shown
    assert re.search(r"^2 +h2 .* 33 % ", shown, re.M)
    assert "rank 0 has written nothing for" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert cli.main(["top", str(tmp_path), "--once", "--window", "0"]) == 1
    assert "above 0" in capsys.readouterr().err
