"""The lab with distance: rates and losses meet the formulas of TCP, and all-reduces cross it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wide_packets import python

from benchmarks.harness import study
from benchmarks.studies import distance
from tests.lab import Line, WideLab, WideTopology, iperf, wide

needs_lab = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))
SEGMENT = 1448  # bytes of payload in a packet of 1,500
QUIET_MACHINE = "a minute: rates and times of a quiet machine"
needs_iperf = pytest.mark.skipif(bool(iperf.unavailable()), reason=str(iperf.unavailable()))


@pytest.mark.nightly(QUIET_MACHINE)
@needs_lab
@needs_iperf
@pytest.mark.parametrize(
    ("line", "connections", "expected"),
    [
        (Line(rate="100mbit", rtt="20ms"), 1, 100e6),
        (Line(rate="200mbit", rtt="100ms"), 8, 200e6),
        (Line(rate="200mbit", rtt="80ms", flow_rate="20mbit"), 1, 20e6),
        (Line(rate="200mbit", rtt="80ms", flow_rate="20mbit"), 4, 80e6),
    ],
)
def test_connections_get_the_rate(line: Line, connections: int, expected: float) -> None:
    with WideLab(WideTopology(line=line)) as lab:
        rate = iperf.one_way(lab, connections, seconds=10, omitted=5)
    assert rate == pytest.approx(expected * SEGMENT / 1500, rel=0.1)


@pytest.mark.nightly(QUIET_MACHINE)
@needs_lab
@needs_iperf
@pytest.mark.parametrize("loss", [0.0025, 0.01])
def test_losses_bound_a_connection_by_the_formula(loss: float) -> None:
    """Mathis et al., The macroscopic behavior of the TCP congestion avoidance algorithm, 1997."""
    rtt, connections = 0.08, 16
    line = Line(rate="unshaped", rtt="80ms", loss=f"{loss:%}")
    with WideLab(WideTopology(line=line, congestion="reno")) as lab:
        rate = iperf.one_way(lab, connections, seconds=30, omitted=5)
    expected = connections * SEGMENT * 8 / rtt * (1.5 / loss) ** 0.5
    assert rate == pytest.approx(expected, rel=0.1)


ALL_REDUCES = """
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    for count in (1, 1000, 1 << 18):
        tensor = torch.arange(count) % 100 + float(dist.get_rank())
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.arange(count) % 100 * 4 + 6.0), count
    dist.destroy_process_group()
    print("right")
"""


@pytest.mark.nightly("half a minute: between distant sites a group begins slowly")
@needs_lab
def test_an_all_reduce_between_distant_sites_is_right() -> None:
    line = Line(rate="200mbit", rtt="100ms", loss="0.1%")
    with WideLab(WideTopology(hosts_per_site=2, line=line)) as lab:
        ranks = lab.run(python(ALL_REDUCES), timeout_s=300).ranks
        assert [rank.output.splitlines()[-1] for rank in ranks] == ["right"] * 4
        assert lab.line.counts()[0, 1].delivered_bytes > 1 << 20


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
@needs_lab
def test_all_reduces_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "distance.json"
    small = ["--rtts", "10ms", "--losses", "0%", "--sizes", "4,64K", "--rounds", "1"]
    study.main(distance, [*small, "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert [each["size"] for each in row["sizes"]] == [4, 65536]
    assert all(way["seconds"] >= 0.005 for each in row["sizes"] for way in each["ways"].values())
    assert row["packets"]["lost"] == 0
    assert "RTT 10ms, loss 0%: 0 of" in capsys.readouterr().out
