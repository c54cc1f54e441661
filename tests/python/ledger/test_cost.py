"""``q7x2 cost``: prices, bills, energy, and bytes beside the counters of interfaces."""

from __future__ import annotations

import json
import pathlib
import textwrap
from typing import Any

import interpreters
import pytest
from ledger_files import Training
from q7x2 import cli
from q7x2.ledger import prices as ledger_prices
from q7x2.ledger import reader as ledger_reader
from q7x2.ledger.samples import Sampler

from tests import lab as lab_package
from tests.lab import Lab, Topology

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)
PRICES = """
currency = "EUR"
node_hour = 3.6
kwh = 0.36
watts = 100
[[gigabyte]]
host = "h0"
price = 1000
[[gigabyte]]
interface = "eth*"
price = 10
"""


def cost(
    directory: pathlib.Path, capsys: pytest.CaptureFixture[str], prices: str, *more: str
) -> dict[str, Any]:
    path = directory / "prices.toml"
    path.write_text(prices)
    assert cli.main(["cost", str(directory), "--prices", str(path), "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_bill_is_a_recount(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Each host sends 1,000 bytes per millisecond.
    seconds = Training(loss_every=1).write(tmp_path)
    run = cost(tmp_path, capsys, PRICES)["run"]
    assert run["seconds"] == pytest.approx(seconds)
    assert run["node_hours"] == pytest.approx(4 * seconds / 3600)
    assert run["money_nodes"] == pytest.approx(3.6 * 4 * seconds / 3600)
    assert run["bytes"] == pytest.approx(4 * 1e6 * seconds, rel=1e-3)
    assert run["money_traffic"] == pytest.approx((1000 + 3 * 10) * 1e-3 * seconds, rel=1e-3)
    assert run["joules"] == pytest.approx(4 * 100 * seconds)
    assert run["energy_estimated_on"] == ["h0", "h1", "h2", "h3"]
    assert run["money_energy"] == pytest.approx(0.36 * 400 * seconds / 3.6e6)
    assert run["money"] == pytest.approx(
        run["money_nodes"] + run["money_traffic"] + run["money_energy"]
    )


def test_a_target_costs_a_part_of_the_run(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = Training(loss_every=1, watts=50).write(tmp_path)  # losses 1, 1/2, 1/3, ...
    found = cost(tmp_path, capsys, PRICES, "--target-loss", "0.04")
    assert found["target"]["step"] == 24
    part = 24 / 50
    assert found["target"]["seconds"] == pytest.approx(part * seconds, rel=0.05)
    assert found["target"]["money"] == pytest.approx(part * found["run"]["money"], rel=0.05)
    assert found["run"]["joules"] == pytest.approx(4 * 50 * seconds)  # measured now
    assert found["run"]["energy_estimated_on"] == []
    assert found["joules_per_step"] == pytest.approx(4 * 50 * seconds / 50)
    path = str(tmp_path / "prices.toml")
    assert cli.main(["cost", str(tmp_path), "--prices", path, "--target-loss", "0.001"]) == 1
    said = capsys.readouterr().out
    assert "to a loss of 0.001: no step has a loss of 0.001 or less; the lowest is 0.01" in said
    assert said.startswith("the run: ")
    arguments = ["cost", str(tmp_path), "--prices", path, "--target-loss", "0.001", "--json"]
    assert cli.main(arguments) == 1
    assert json.loads(capsys.readouterr().out)["target"] == {"loss": 0.001, "step": None}
    assert cli.main(["cost", str(tmp_path), "--prices", path]) == 0
    assert "processor packages, by RAPL" in capsys.readouterr().out


def test_messages_may_be_counted_instead(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Training().write(tmp_path)
    found = cost(tmp_path, capsys, 'bytes = "messages"\n[[gigabyte]]\nprice = 1\n')
    assert found["run"]["bytes"] == 4 * 51 * (1 << 20)
    assert found["run"]["money"] == pytest.approx(4 * 51 * (1 << 20) * 1e-9)
    assert found["run"]["joules"] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node_hour = -1", "node_hour: expected a number of at least 0, got -1"),
        ("kwh = true", "kwh: expected a number"),
        ("node_hours = 1", "unknown entries \\['node_hours'\\]"),
        ("[[gigabyte]]\nhost = 'a'", r"gigabyte\[0\]: price: is missing"),
        ("gigabyte = 3", r"expected \[\[gigabyte\]\] tables"),
        ("bytes = 'few'", "expected one of"),
        ("bytes = 'messages'\n[[gigabyte]]\ninterface = 'eth0'\nprice = 1", "knows no interfaces"),
        ("watts = nan", "watts: expected a number"),
        ("a = ", "expected TOML"),
    ],
)
def test_wrong_prices_are_refused(text: str, expected: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=expected):
        ledger_prices.Prices.read(path)


def test_energy_counters_that_begin_again_go_on(tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(("package-0", "package-1", "dram")):
        package = tmp_path / f"intel-rapl:{number}"
        package.mkdir()
        (package / "name").write_text(f"{name}\n")
        (package / "max_energy_range_uj").write_text("1000\n")
        (package / "energy_uj").write_text("900\n")
    sampler = Sampler(rapl=tmp_path)
    assert sampler.take().energy_uj == 0
    for number in range(3):
        (tmp_path / f"intel-rapl:{number}" / "energy_uj").write_text("100\n")
    assert sampler.take().energy_uj == 400
    assert Sampler(rapl=tmp_path / "none").take().energy_uj is None


@needs_lab
def test_bytes_are_those_of_the_interfaces(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch
            import torch.distributed as dist
            dist.init_process_group("q7x2")
            tensor = torch.ones(1 << 20)
            for _ in range(10):
                dist.all_reduce(tensor)
            dist.destroy_process_group()
            """
        )
    )
    ledger = tmp_path / "ledger"
    with Lab(Topology(hosts=2, rate="1gbit")) as lab:
        run = lab.run(
            [interpreters.python(), str(path)],
            env={"Q7X2_LEDGER": str(ledger), "Q7X2_PROBE": "0"},
            timeout_s=120,
        )
    counted = sum(each.sent for each in run.traffic)
    assert counted > 2 * 10 * (4 << 20)
    billed = cost(ledger, capsys, "node_hour = 1")["run"]["bytes"]
    assert billed == pytest.approx(counted, rel=0.03)
    messages = sum(each.sent()[0] for each in ledger_reader.read(ledger))
    assert messages == pytest.approx(counted, rel=0.03)
