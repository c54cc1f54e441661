"""What ``q7x2`` prints is whole on a terminal of 80 columns, and errors are exit codes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

import interpreters
import pytest
from q7x2 import cli
from q7x2._core.units import time_text
from q7x2.plan import explain as plan_explain
from q7x2.plan import tune_collectives as plan_tune_collectives
from q7x2.plan import tuning as plan_tuning


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == 0
    return assert_fits(capsys.readouterr().out)


def assert_fits(text: str) -> str:
    too_long = [line for line in text.splitlines() if len(line.rstrip()) > 80]
    assert too_long == []
    assert "…" not in text, "a cell was cut"
    return text


def cluster() -> dict[str, Any]:
    """Eight large hosts with long names, in two racks."""
    names = [f"gpu-node-{number:04d}.cluster.example.org" for number in range(8)]
    hardware = {
        "cpu": "AMD EPYC 9654 96-Core Processor",
        "packages": 2,
        "numa_nodes": 8,
        "cores": 192,
        "threads": 384,
        "memory": 3 << 39,
        "nics": [{"name": "enp65s0f0np0", "addresses": ["10.128.0.21"], "numa_node": 1}],
    }
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    return {
        "q7x2_fabric": 1,
        "ranks": [rank // 4 for rank in range(32)],
        "racks": [{"up": 1e9, "down": 1e9}] * 2,
        "links": [{"a": 0, "b": 7, "rate": 1.25e9, "alpha": 2e-5}],
        "hosts": [
            {"name": name, "rack": number // 4, "cores": 64, "egress": 1.25e9, "ingress": 1.25e9}
            | {"hardware": hardware}
            for number, name in enumerate(names)
        ],
        "pairs": [
            {"from": a, "to": b, "alpha": 3e-5, "alpha_spread": 0.2, "rate": 1.2e9, "solo": 1.2e9}
            | {"rate_spread": 0.1}
            for a, b in pairs
        ],
    }


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(cluster()))
    return str(path)


# ---- q7x2 plan explain ---------------------------------------------------------------------------

RACKS = ("--op", "all_reduce", "--size", "16M", "--hosts", "8", "--racks", "2")
SLOW = ("--rate", "200mbit", "--uplink", "50mbit")


@pytest.mark.parametrize("codec", [(), ("--codec", "int8")], ids=["dense", "int8"])
def test_explain_has_a_line_per_candidate(
    capsys: pytest.CaptureFixture[str], codec: tuple[str, ...]
) -> None:
    text = printed(capsys, "plan", "explain", *RACKS, *SLOW, *codec)
    candidates = json.loads(printed_json(capsys, "plan", "explain", *RACKS, *SLOW, *codec))
    lines = text.splitlines()
    names = {candidate["algorithm"] for candidate in candidates}
    rows = [line for line in lines if names & set(line.split()[:1])]
    for candidate, line in zip(candidates, rows, strict=True):
        assert line.split()[0] == candidate["algorithm"]
        assert time_text(candidate["seconds"]) in line
        assert "iB" in line
    assert any("up rack 0" in line for line in rows)
    assert ("coded" in text) == bool(codec)


@pytest.mark.parametrize("edges", ["auto", "slow", "rack"])
def test_explain_says_why_these_edges_are_compressed(
    capsys: pytest.CaptureFixture[str], edges: str
) -> None:
    """All codings that compete are shown with their best time, and the chosen one with a reason."""
    call = ("plan", "explain", *RACKS, *SLOW, "--codec", "int8", "--edges", edges)
    candidates = json.loads(printed_json(capsys, *call))
    text = printed(capsys, *call)
    if edges == "rack":
        assert "edges=rack compresses edges between racks: nothing to compare" in text
        return
    assert f"edges={edges} compares what is compressed:" in text
    best = {
        name: min(each["seconds"] for each in candidates if each["edges"] == name)
        for name in {each["edges"] for each in candidates}
    }
    assert best.keys() == {"racks", "all"} | ({"none"} if edges == "slow" else set())
    for name, seconds in best.items():
        (line,) = [each for each in text.splitlines() if each[2:].split()[:1] == [name]]
        assert line.startswith("*") == (name == candidates[0]["edges"])
        assert time_text(seconds) in line
    assert candidates[0]["edges"] == "racks"
    assert candidates[0]["seconds"] <= 1.05 * min(best.values())
    expected = "the fewest lossy edges within 5%" if edges == "auto" else "chosen: the fastest"
    assert expected in text


def test_explain_marks_what_a_device_can_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A device takes part if all that is sent is coded."""
    call = ("plan", "explain", "--size", "1M", "--hosts", "2", "--codec", "int4")
    for algorithm, ranks, is_for_device in (("sra", "2", True), ("hierarchical:2", "4", False)):
        arguments = (*call, "--edges", "host", "--algorithm", algorithm, "--ranks", ranks)
        (line,) = [each for each in printed(capsys, *arguments).splitlines() if algorithm in each]
        assert ("hosts*" in line) == is_for_device
        (candidate,) = json.loads(printed_json(capsys, *arguments))
        assert candidate["on_device"] == is_for_device


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main([*arguments, "--json"]) == 0
    return capsys.readouterr().out


def test_measured_times_have_a_column_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = json.loads(printed_json(capsys, "plan", "explain", *RACKS, *SLOW))
    candidates[0]["measured"] = 0.00271
    plan_explain.print_candidates(candidates, "all_reduce of 16 MiB")
    text = assert_fits(capsys.readouterr().out)
    assert "measured" in text
    assert "2.71 ms" in text


def test_a_history_of_many_decisions_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["recursive_doubling", "double_binary_tree", "hierarchical:4"]
    events = [
        {
            "call": 6 * number,
            "choices": names[: 1 + number % 3],
            "measured": {name: {"seconds": 0.1 + number, "noise": 0.02} for name in names},
        }
        for number in range(12)
    ]
    kind = {
        "collective": "all_reduce",
        "bytes": 1 << 24,
        "codec": "",
        "calls": 100,
        "candidates": [{"algorithm": name, "predicted": 1.0} for name in names],
        "events": events,
    }
    plan_explain.print_history(kind)
    text = assert_fits(capsys.readouterr().out)
    assert all(f"from call {event['call']}" in text for event in events)
    assert text.count(" *") == sum(len(event["choices"]) for event in events)


# ---- q7x2 fabric show ----------------------------------------------------------------------------


def test_a_fabric_is_whole(capsys: pytest.CaptureFixture[str], file: str) -> None:
    text = printed(capsys, "fabric", "show", file)
    assert "gpu-node-0000 = gpu-node-0007" in text
    assert "gpu-node-0003.cluster.example.org" in text
    assert "2 packages, 8 NUMA nodes, 192 cores, 384 hardware threads, 1.5 TiB" in text
    assert text.count("9.6 Gbit/s") == 2 * 12


def test_a_fabric_as_json(capsys: pytest.CaptureFixture[str], file: str) -> None:
    fabric = json.loads(printed_json(capsys, "fabric", "show", file))
    assert fabric["ranks"] == cluster()["ranks"]
    assert fabric["hosts"][7]["name"] == cluster()["hosts"][7]["name"]


# ---- q7x2 info -----------------------------------------------------------------------------------


def test_info_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "info")
    assert "Not available here" in text
    assert "(s)" not in text


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan explain --size 1M", "fabric probe"])
def test_a_ucx_that_is_not_there_is_an_error(command: str, tmp_path: pathlib.Path) -> None:
    arguments = command.split()
    if command == "fabric probe":
        arguments += ["--init-method", f"file://{tmp_path}/store"]
    done = subprocess.run(
        [interpreters.python(), "-m", "q7x2", *arguments],
        env=os.environ | {"Q7X2_UCX": "/nonexistent", "RANK": "0"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no file /nonexistent" in done.stderr
    assert "Traceback" not in done.stderr


# ---- q7x2 simulate, tune, plan check, blame ------------------------------------------------------

RING = ("simulate", "--size", "16M", "--algorithm", "ring")


def test_a_simulation_is_whole_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    best = json.loads(printed_json(capsys, *RING, "--json"))
    text = printed(capsys, *RING)
    assert f"by ring: {time_text(best['seconds'])}," in text.replace("\n", " ")
    assert "share of the time" in text


def test_measurements_of_tune_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    call = {"collective": "reduce_scatter", "bytes": 16 << 20, "predicted": 1.0, "measured": 2.0}
    names = ("double_binary_tree", "hierarchical:16")
    results = [plan_tuning.Measurement(algorithm=n, chosen=n in names[:1], **call) for n in names]
    plan_tune_collectives.print_measurements(results)
    lines = assert_fits(capsys.readouterr().out).splitlines()
    chosen = [line for line in lines if line.rstrip().endswith("*")]
    assert [line.split()[3] for line in chosen] == ["double_binary_tree"]


def test_what_is_proven_as_json(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    plan = str(tmp_path / "ring.json")
    assert cli.main(["plan", "export", "--algorithm", "ring", "--ranks", "2", "-o", plan]) == 0
    proven = json.loads(printed_json(capsys, "plan", "check", plan, "--json"))
    assert proven["algorithm"].startswith("file:ring@")
    assert proven["contributors"] == [0, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("fabric", "show", "/nonexistent.json"),
        ("fabric", "show", "{file}", "--out", "/nonexistent/fabric.svg"),
        ("plan", "draw", "--algorithm", "ring", "--out", "/nonexistent/plan.svg"),
        ("plan", "explain", "--size", "16M", "--algorithm", "rung"),
        ("plan", "export", "--algorithm", "rung", "--ranks", "2"),
        ("plan", "check", "{file}", "--json"),
        ("simulate", "--size", "16M", "--fabric", "/nonexistent.json", "--json"),
        ("tune",),
        ("blame", "/nonexistent", "--json"),
        ("trace", "/nonexistent"),
        ("report", "/nonexistent"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_an_error_is_one_line_and_an_exit_code(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert cli.main([argument.format(file=file) for argument in arguments]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("q7x2 ")
    assert "Traceback" not in streams.err
