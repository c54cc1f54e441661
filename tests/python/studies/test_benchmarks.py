"""What the benchmarks compute from their figures, and tiny runs of the newest commands."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import write_figures

from benchmarks.harness import openmpi, ranks, startup, study
from benchmarks.harness.report import console
from benchmarks.regress import bars, goals, raw
from benchmarks.studies import ledger, sweep
from tests import lab as lab_package
from tests.diagnoses import causes, verdicts
from tests.diagnoses.processor_quota import ProcessorQuota
from tests.lab import LabError, Topology, iperf


def cell(size: int, ours: float, theirs: float) -> dict:
    def figures(seconds: float) -> dict:
        return {"median": seconds, "cpu_seconds": seconds, "block_medians": [seconds, seconds]}

    backends = {"q7x2": figures(ours), "gloo": figures(theirs)}
    return {"op": "all_reduce", "size": size, "ranks": 2, "backends": backends}


def test_rows_of_one_run_take_their_own_sizes() -> None:
    rows = [bar for bar in goals.BARS if bar.name.startswith("network-2-10gbit-")]
    assert [bar.sizes for bar in rows] == [("64K",), ("1M",), ("16M",)]
    cells = [cell(65536, 1, 10), cell(2**20, 1, 2), cell(2**24, 2, 3)]
    found = [bars.figures_of(bar, "q7x2", cells) for bar in rows]
    assert [[each["size"] for each in figures] for figures in found] == [[65536], [2**20], [2**24]]
    assert [figures[0]["ratio"] for figures in found] == [10, 2, 1.5]


def test_the_line_needs_as_long_for_several_ranks_of_a_host() -> None:
    (bar,) = [bar for bar in goals.BARS if bar.name == "hosts-2x4-line"]
    (figures,) = bars.figures_of(bar, "q7x2", [{**cell(2**24, 0.14, 1), "hosts": 2}])
    assert figures["against_time"] == pytest.approx(2**24 * 8 / 1e9)
    assert figures["ratio"] == pytest.approx(2**24 * 8 / 1e9 / 0.14)


def test_interleaved_ranks_are_compared_with_block_order() -> None:
    (bar,) = [bar for bar in goals.BARS if bar.name == "hosts-2x4-interleaved"]
    assert bars.placement_of(bar) == (0, 1) * 4
    assert bar.what == "all_reduce 16 MiB, 8 ranks on 2 hosts x 1gbit, ranks interleaved"
    cells = [cell(2**24, 0.2, 1)]
    del cells[0]["backends"]["gloo"]
    beside = bars.with_block_order(cells, "q7x2", [cell(2**24, 0.15, 1)])
    (figures,) = bars.figures_of(bar, "q7x2", beside)
    assert (figures["time"], figures["against_time"]) == (0.2, 0.15)
    assert figures["ratio"] == pytest.approx(0.75)


def test_the_start_of_a_group_is_measured_phase_by_phase() -> None:
    cells = startup.run(ranks=2, backends=("q7x2", "gloo"), turns=2)
    assert [each["op"] for each in cells] == list(startup.PHASES)
    rows = [bar for bar in goals.BARS if bar.name.startswith("start-")]
    for bar in rows:
        (figures,) = bars.figures_of(bar, "q7x2", cells)
        assert figures["time"] > 0 < figures["against_time"]
        assert bar.what == f"{bar.op}, 32 ranks, one host"


def test_rows_are_chosen_by_patterns() -> None:
    names = [bar.name for bar in goals.BARS]
    fast = bars.names_like(["network-2-*", "latency-2"], names)
    assert len(fast) == len(goals.FAST_RATES) * len(goals.FAST_GOALS) + 2
    with pytest.raises(ValueError, match=r"no bar network-9-\*; there are latency-2"):
        bars.names_like(["network-9-*"], names)


def test_rows_of_a_busy_machine_are_named() -> None:
    def row(name: str, load: float) -> dict:
        return {"bar": {"name": name}, "machine": {"load_average": [load, 0, 0], "cores": 2}}

    assert write_figures.note_on_load([row("a", 1), row("b", 5)]) == ""
    assert write_figures.note_on_load([row("a", 1), row("b", 7)]).endswith(
        "busy with other work: `b`.\n"
    )
    assert write_figures.note_on_load([row("a", 7), row("b", 7)]).endswith(
        "busy with other work: all rows.\n"
    )


def test_iperf3_reports_both_directions() -> None:
    end = {
        "sum_sent": {"bits_per_second": 9},
        "sum_received": {"bits_per_second": 5e9},
        "sum_received_bidir_reverse": {"bits_per_second": 4e9},
    }
    assert iperf.rates(json.dumps({"end": end})) == [5e9, 4e9]


@pytest.mark.parametrize("said", ["", json.dumps({"end": {}, "error": "unable to connect"})])
def test_iperf3_without_rates_is_an_error_that_shows_what_it_said(said: str) -> None:
    with pytest.raises(LabError, match="no rates.*" + ("unable" if said else "")):
        iperf.rates(said)


def test_without_iperf3_the_bound_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bars, "lab_unavailable", lambda: None)
    rows = [bar for bar in goals.BARS if bar.bound]
    assert bars.measured_bounds(console(), rows) == {}
    assert "iperf3 not found: apt-get install iperf3" in capsys.readouterr().out


def test_a_failing_iperf3_costs_only_its_own_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def both_ways(topology: Topology) -> dict:
        if topology.rate == "5gbit":
            raise LabError("iperf3 gave no rates")
        return {"bits_per_second": [1.0, 2.0]}

    monkeypatch.setattr(bars, "lab_unavailable", lambda: None)
    monkeypatch.setattr(iperf, "unavailable", lambda: None)
    monkeypatch.setattr(iperf, "both_ways", both_ways)
    bounds = bars.measured_bounds(console(), [bar for bar in goals.BARS if bar.bound])
    rates = sorted(each.rate for each in bounds if each)
    assert rates == ["10gbit", "2.5gbit", "25gbit", "unshaped"]
    assert "2 hosts x 5gbit: iperf3 gave no rates" in capsys.readouterr().out


needs_iperf3 = pytest.mark.skipif(
    bool(lab_package.unavailable() or iperf.unavailable()),
    reason=str(lab_package.unavailable() or iperf.unavailable()),
)


@needs_iperf3
def test_iperf3_stays_within_the_rate_of_the_link() -> None:
    measured = iperf.both_ways(Topology(hosts=2, rate="100mbit"))["bits_per_second"]
    assert len(measured) == 2
    assert all(2e7 < rate < 1.1e8 for rate in measured)


@needs_iperf3
def test_iperf3_waits_for_a_server_that_listens_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    late = tmp_path / "iperf3"
    late.write_text(f"""#!/bin/sh
[ "$1" = --server ] && sleep 2
exec {shutil.which("iperf3")} "$@"
""")
    late.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    measured = iperf.both_ways(Topology(hosts=2, rate="100mbit"))
    assert len(measured["bits_per_second"]) == 2


def test_figures_of_bars_are_those_of_the_raw_data(repository: Path, tmp_path: Path) -> None:
    file = repository / "benchmarks/results/bars.json"
    rows, cells = json.loads(file.read_text())["rows"], raw.read_raw(raw.raw_path(file))
    assert list(cells) == [row["bar"]["name"] for row in rows]
    for row in rows:
        if "time" in row:
            subject = row["bar"]["subject"] or goals.SUBJECT
            each = cells[row["bar"]["name"]]
            sizes = [c for c in each if (c["op"], c["size"]) == (row["bar"]["op"], row["size"])]
            assert [c["backends"][subject]["median"] for c in sizes] == [row["time"]]
    raw.write_raw(tmp_path / "again.gz", cells)
    assert (tmp_path / "again.gz").read_bytes() == raw.raw_path(file).read_bytes()


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
def test_a_sweep_has_quartiles_and_cpu_time_and_keeps_other_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(openmpi, "unavailable", lambda: "mpi4py is not installed")
    out = tmp_path / "sweep.json"
    arguments = ["--sizes", "4,4K", "--blocks", "2", "--block-seconds", "0.005", "--out", str(out)]
    study.main(sweep, ["--parts", "one-host", *arguments])
    assert "Open MPI is left out: mpi4py is not installed" in capsys.readouterr().out
    (part,) = json.loads(out.read_text())["parts"]
    assert [cell["size"] for cell in part["cells"]] == [4, 4096]
    for each in part["cells"]:
        assert list(each["backends"]) == ["q7x2", "gloo"]
        for figures in each["backends"].values():
            assert 0 < figures["p25"] <= figures["median"] <= figures["p75"]
            assert figures["cpu_seconds"] > 0
    assert out.with_suffix(".png").stat().st_size > 10_000

    # The other part of an earlier run stays, and the measured one is replaced.
    earlier = {**part, "name": "four-hosts", "link_bytes_per_second": 1.25e8}
    out.write_text(json.dumps({"parts": [earlier, {**part, "cells": part["cells"][:1]}]}))
    study.main(sweep, ["--parts", "one-host", *arguments])
    one, four = json.loads(out.read_text())["parts"]
    assert (one["name"], four) == ("one-host", earlier)
    assert len(one["cells"]) == 2


def test_an_unknown_part_of_a_sweep_is_named() -> None:
    with pytest.raises(ValueError, match="no part two-hosts; there are one-host, four-hosts"):
        study.main(sweep, ["--parts", "two-hosts"])


def test_a_quota_has_members_may_change_and_leaves_nothing() -> None:
    try:
        quota = ProcessorQuota(0.5)
        with quota:
            shell = f"echo $$ > {quota.members}; cat /proc/self/cgroup"
            done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
            assert "q7x2-quota" in done.stdout
            quota.set(0.25)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no cgroups here: {error}")
    assert not quota.members.parent.exists()


def test_causes_are_counted_by_kind_and_by_who_is_to_blame() -> None:
    def said(kind: str, who: object) -> dict:
        first = {"kind": kind, "who": who, "text": f"{kind} {who}"}
        return {"causes": [first], "parts": {}, "seconds": 1.0}

    row = causes.row("launch", [said("launch", 1), said("launch", 0), said("link", 1)])
    assert (row["right"], row["runs"]) == (1, 3)
    assert row["wrong"] == ["launch 0", "link 1"]


def test_verdicts_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    out = tmp_path / "verdicts.json"
    spec = {"seeds": 6, "steps": 10}
    assert verdicts.so_far(out, spec) == {"same": [], "slower": []}
    known = [{"verdict": "undecided"}]
    out.write_text(json.dumps({**spec, "rows": [verdicts.row("same", known)]}))
    assert verdicts.so_far(out, spec) == {"same": known, "slower": []}
    assert verdicts.so_far(out, spec | {"steps": 20}) == {"same": [], "slower": []}


def test_the_ledgers_overhead_is_that_of_pairs() -> None:
    row = ledger.row_of("step", [1.0, 2.0, 4.0] * 5, [1.1, 2.2, 4.4] * 5)
    share = 0.1 * ledger.WINDOW / ledger.PERIOD
    assert row["overhead"] == pytest.approx(share)
    assert row["low"] == pytest.approx(share)
    assert row["high"] == pytest.approx(share)


def _study(**declared: Any) -> ModuleType:
    """A study that is declared here."""
    made = ModuleType("benchmarks.studies.made_up", "Its protocol.")
    vars(made).update({"OPTIONS": {}, **declared})
    return made


def test_the_options_of_a_study_have_the_types_of_their_defaults(tmp_path: Path) -> None:
    seen: list[argparse.Namespace] = []
    options = {"count": 2, "share": 0.5, "ranks": [1, 2], "fresh": False, "some_name": "a"}

    def measure(args: argparse.Namespace) -> dict[str, Any]:
        seen.append(args)
        return {"count": args.count}

    made = _study(OPTIONS=options, measure=measure, lines=lambda body: [str(body["count"])])
    out = tmp_path / "made_up.json"
    study.main(made, ["--out", str(out)])
    given = ["--count", "3", "--share", "1", "--ranks", "4", "5", "--fresh", "--some-name", "b"]
    study.main(made, ["--out", str(out), *given])
    assert [vars(each) | {"out": None} for each in seen] == [
        {**options, "out": None},
        {"count": 3, "share": 1.0, "ranks": [4, 5], "fresh": True, "some_name": "b", "out": None},
    ]
    kept = json.loads(out.read_text())
    assert kept["count"] == 3
    assert kept["machine"]["cores"] > 0


def test_a_study_that_is_stopped_keeps_its_rows_and_those_of_earlier_runs(tmp_path: Path) -> None:
    out = tmp_path / "made_up.json"
    before = {"cpu": "another one"}
    measured = [{"name": "a", "n": 1}, {"name": "b", "n": 1}]
    out.write_text(json.dumps({"machine": before, "rows": measured}))

    def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
        yield {"name": "b", "n": 2}
        yield {"name": "c", "n": 2}
        raise KeyboardInterrupt

    def row_lines(row: dict[str, Any]) -> list[str]:
        return [f"{row['name']} {row['n']}"]

    made = _study(KEY=itemgetter("name"), rows=rows, row_lines=row_lines)
    with pytest.raises(KeyboardInterrupt):
        study.main(made, ["--out", str(out)])
    body = json.loads(out.read_text())
    assert study.lines_of(made, body) == ["a 1", "b 2", "c 2"]
    assert [row.get("machine") for row in body["rows"]] == [before, None, None]
    del made.KEY  # then a run replaces the rows
    with pytest.raises(KeyboardInterrupt):
        study.main(made, ["--out", str(out)])
    assert [row["name"] for row in json.loads(out.read_text())["rows"]] == ["b", "c"]


def test_parts_that_are_not_measured_stay(tmp_path: Path) -> None:
    out = tmp_path / "made_up.json"
    before = {"cpu": "another one"}
    out.write_text(json.dumps({"machine": before, "first": 1, "second": 1, "unknown": 1}))
    parts = {"first": lambda args: 2, "second": lambda args: 2}
    made = _study(PARTS=parts, lines=lambda body: [])
    study.main(made, ["--out", str(out), "--parts", "second"])
    body = json.loads(out.read_text())
    assert {name: each for name, each in body.items() if name != "machine"} == {
        "first": 1,
        "second": 2,
        "machines": {"first": before},
    }
    study.main(made, ["--out", str(out)])
    assert "machines" not in json.loads(out.read_text())


RANK = """
import os

def rank_main(spec):
    rank = int(os.environ["RANK"])
    return rank + spec["more"] if rank else None
"""


def test_the_first_rank_with_a_result_counts(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "ranks_of_a_test.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert ranks.run("ranks_of_a_test", {"more": 10}, 3) == 11
    assert ranks.run("ranks_of_a_test", {"more": 10}, 1) is None
