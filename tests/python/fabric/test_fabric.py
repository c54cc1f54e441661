"""The Fabric: measured when a group is made, read from files, shown, drawn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import interpreters
import pytest
import q7x2
import torch
import torch.distributed as dist
from q7x2 import cli
from q7x2._core.units import ranks_text, time_text
from q7x2.fabric import binding_advice as fabric_binding_advice
from q7x2.fabric import files as fabric_files
from q7x2.fabric import show as fabric_show

from tests import lab as lab_package
from tests.lab import Lab, Topology

needs_lab = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)


def two_racks() -> dict[str, Any]:
    """As somebody would write it by hand."""
    return {
        "q7x2_fabric": 1,
        "ranks": [0, 0, 1, 2],
        "hosts": [
            {
                "name": "alpha",
                "rack": 0,
                "cores": 8,
                "egress": 1.25e8,
                "ingress": 1.25e8,
                "hardware": {
                    "cpu": "A CPU",
                    "threads": 16,
                    "nics": [{"name": "eth7", "addresses": ["10.0.0.1"], "numa_node": 1}],
                    "gpus": [{"name": "A GPU", "pci": "0000:01:00.0", "numa_node": 0}],
                },
            },
            {"name": "beta", "rack": 0, "egress": 1.25e8, "ingress": 1.25e8},
            {"name": "gamma", "rack": 1, "egress": 1.25e8, "ingress": 1.25e8},
        ],
        "racks": [{"name": "left", "up": 6.25e6, "down": 6.25e6}, {"name": "right"}],
        "links": [{"a": 0, "b": 2, "rate": 1.25e7, "alpha": 2e-5}],
        "pairs": [
            {"from": 0, "to": 1, "alpha": 3.2e-5, "rate": 1.2e8, "rate_spread": 0.1},
            {"from": 1, "to": 0, "alpha": 3.2e-5, "rate": 1.1e8, "solo": 1.2e8},
        ],
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(two_racks()))
    return path


def world_fabric() -> dict[str, Any]:
    result: dict[str, Any] = q7x2.fabric.of_group()
    return result


# ---- groups --------------------------------------------------------------------------------------


@pytest.mark.beyond("gloo", "a Fabric is q7x2's")
@pytest.mark.ranks(2, 4)
def test_all_ranks_hold_the_same_fabric(world_size: int) -> None:
    mine = world_fabric()
    everybodys: list[Any] = [None] * world_size
    dist.all_gather_object(everybodys, mine)
    assert all(theirs == mine for theirs in everybodys)
    assert mine["ranks"] == [0] * world_size
    assert mine["made"]["source"] == "probe"
    assert mine["made"]["torch"].startswith(torch.__version__.split("+")[0])
    assert mine["memory"]["measured"]


@pytest.mark.ranks(2, backend="gloo", fresh=True)
def test_a_group_of_another_backend_has_no_fabric() -> None:
    with pytest.raises(ValueError, match=r"q7x2.fabric.of_group needs a group with a q7x2 backend"):
        q7x2.fabric.of_group()


@pytest.mark.beyond("gloo", "a Fabric is q7x2's")
@pytest.mark.ranks(3)
def test_a_subgroup_takes_its_part() -> None:
    ranks = [0, 2]
    group = dist.new_group(ranks)
    if dist.get_rank() in ranks:
        part = q7x2.fabric.of_group(group)
        assert part["ranks"] == [0, 0]
        assert part["made"] == world_fabric()["made"]
    dist.barrier()


@pytest.mark.beyond("gloo", "a Fabric is q7x2's")
@pytest.mark.ranks(3, fresh=True)
def test_a_malformed_file_is_an_error_on_all_ranks(shared: str) -> None:
    if dist.get_rank() == 0:  # the others follow it whatever their own environment says
        path = Path(shared) / "fabric.json"
        path.write_text(json.dumps(two_racks() | {"ranks": [0, 0, 1, 7]}))
        os.environ["Q7X2_FABRIC"] = str(path)
    with pytest.raises(ValueError, match=r"fabric.json: ranks\[3\]: expected a whole number"):
        dist.new_group([0, 1, 2])


@pytest.mark.beyond("gloo", "a Fabric is q7x2's")
@pytest.mark.ranks(2, env={"Q7X2_PROBE": "0"})
def test_without_a_probe_the_fabric_says_so() -> None:
    made = world_fabric()["made"]
    assert made["source"] == "default"
    assert "Q7X2_PROBE=0" in made["note"]


# ---- virtual hosts -------------------------------------------------------------------------------


def probe_in(lab: Lab, out: Path, placement: list[int] | None = None) -> dict[str, Any]:
    lab.run(
        [sys.executable, "-m", "q7x2", "fabric", "probe", "--out", str(out)],
        placement=placement,
        timeout_s=60,
    )
    return fabric_files.read(out)


@pytest.mark.nightly("measures the rates of links, which needs a quiet machine")
@needs_lab
def test_racks_behind_shared_uplinks_are_found(tmp_path: Path) -> None:
    topology = Topology(hosts=8, rate="200mbit", racks=2, uplink="50mbit")
    with Lab(topology) as lab:
        for placement in (None, topology.interleaved()):
            found = probe_in(lab, tmp_path / "fabric.json", placement)
            racks = {host["name"]: host["rack"] for host in found["hosts"]}
            left, right = racks["h0"], racks["h7"]
            assert left != right
            assert [racks[f"h{host}"] for host in range(8)] == [left] * 4 + [right] * 4
            assert len(found["racks"]) == 2
            for rack in found["racks"]:
                assert 30e6 / 8 < rack["up"] < 75e6 / 8
                assert 30e6 / 8 < rack["down"] < 75e6 / 8
            for host in found["hosts"]:
                assert 100e6 / 8 < host["egress"] < 300e6 / 8


@pytest.mark.nightly("measures the rates of links, which needs a quiet machine")
@needs_lab
def test_equal_hosts_are_one_rack(tmp_path: Path) -> None:
    with Lab(Topology(hosts=4, rate="1gbit")) as lab:
        found = probe_in(lab, tmp_path / "fabric.json")
        assert len(found["racks"]) == 1
        assert len(found["pairs"]) == 12
        assert found["network"]["measured"]
        assert not found["memory"]["measured"]
        # The next job on these hosts need not measure.
        script = (
            "import json, torch, torch.distributed as dist\n"
            "dist.init_process_group('q7x2')\n"
            "print(dist.group.WORLD._get_backend(torch.device('cpu')).fabric_json)\n"
            "dist.destroy_process_group()\n"
        )
        result = lab.run([sys.executable, "-c", script], timeout_s=60)
        later = [json.loads(rank.output[rank.output.index("{\n") :]) for rank in result.ranks]
        assert all(each["made"] == found["made"] for each in later)


# ---- the command ---------------------------------------------------------------------------------


def test_probe_alone_measures_this_host(tmp_path: Path) -> None:
    out = tmp_path / "host.json"
    done = subprocess.run(
        [
            interpreters.python(),
            "-m",
            "q7x2",
            "fabric",
            "probe",
            "--ranks",
            "2",
            "--json",
            "--out",
            out,
        ],
        env=os.environ | interpreters.environment() | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == out.read_text()
    found = fabric_files.read(out)
    assert found["ranks"] == [0, 0]
    assert found["memory"]["measured"]
    assert found["hosts"][0]["hardware"]["threads"] >= 1
    (entry,) = (tmp_path / "q7x2").glob("fabric-*.json")
    assert entry.read_text() == out.read_text()


def test_show_names_what_matters(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fabric", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    for text in (
        *("alpha", "beta", "gamma", "ranks 0-1", "rank 3", "left", "up 50 Mbit/s", "1 Gbit/s"),
        *("A CPU", "eth7", "NUMA node 1", "A GPU", "alpha = gamma", "100 Mbit/s", "32 µs", "±5 %"),
    ):
        assert text in shown


def test_show_takes_the_newest_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["fabric", "show"]) == 1
    assert "is empty" in capsys.readouterr().err
    (tmp_path / "q7x2").mkdir()
    for number, note in enumerate(("older", "newer")):
        path = tmp_path / "q7x2" / f"fabric-{number}.json"
        path.write_text(json.dumps(two_racks() | {"made": {"note": note}}))
        os.utime(path, (number, number))
    assert cli.main(["fabric", "show"]) == 0
    assert "newer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ranks": [0, 9]}, "ranks[1]: expected a whole number of 0 to 2, got 9"),
        ({"hosts": 10**9}, "hosts: expected an array, got 1000000000"),
        ({"copy_rate": float("nan")}, "not JSON"),
        ({"copy_rat": 1}, 'unknown field "copy_rat"'),
        ({"q7x2_fabric": 2}, "q7x2_fabric: expected a whole number of 1 to 1, got 2"),
    ],
)
def test_a_malformed_file_is_explained(
    change: dict[str, Any], expected: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(two_racks() | change))
    assert cli.main(["fabric", "show", str(file)]) == 1
    complaint = capsys.readouterr().err
    assert str(file) in complaint
    assert expected in complaint


def test_a_missing_file_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fabric", "show", "/nonexistent.json"]) == 1
    assert "No such file" in capsys.readouterr().err


def bound(cpus: list[str], nodes: list[int], **hardware: Any) -> dict[str, Any]:
    """One host with a rank per item of ``cpus``, bound there."""
    return fabric_files.load(
        json.dumps(
            {
                "q7x2_fabric": 1,
                "ranks": [0] * len(cpus),
                "bindings": [
                    {"numa_node": node, "cpus": text}
                    for node, text in zip(nodes, cpus, strict=True)
                ],
                "hosts": [{"name": "a", "hardware": hardware}],
            }
        )
    )


def test_no_advice_where_all_is_well() -> None:
    assert fabric_binding_advice.advice(fabric_files.load(json.dumps(two_racks()))) == []
    two = {"numa_nodes": 2, "threads": 16}
    one = {"numa_nodes": 1, "threads": 8}
    for well in (
        bound(["0-7", "8-15"], [0, 1], **two),
        bound(["0-7", "0-7"], [0, 0], **one),  # not bound, and a core for each
        bound(["0-3", "4-7"], [0, 0], **one),
        bound(["0-7", "8-15"], [0, 1], **two, nics=[{"name": "eth0", "numa_node": 0}]),
        bound(["0-7", ""], [0, -1], **two),  # not known
    ):
        assert fabric_binding_advice.advice(well) == []


def test_ranks_that_span_numa_nodes_are_told_to_bind() -> None:
    two = {"numa_nodes": 2, "threads": 16}
    spanning = bound(["0-7", "0-15", "8-15", "0-15"], [0, -1, 1, -1], **two)
    (text,) = fabric_binding_advice.advice(spanning)
    assert "2 of 4 ranks of host a (1, 3) are not bound to one of its 2 NUMA nodes" in text
    assert "--nproc-per-node=4 --no-python bash -c" in text
    assert 'numactl --cpunodebind="$((LOCAL_RANK * 2 / 4))"' in text
    gpus = [{"name": "g"}] * 4
    (text,) = fabric_binding_advice.advice(bound(["0-15"] * 4, [-1] * 4, **two, gpus=gpus))
    assert "torchrun --numa-binding=node --nproc-per-node=4" in text


def test_ranks_that_share_cores_are_told_which_to_take() -> None:
    one = {"numa_nodes": 1, "threads": 8}
    (text,) = fabric_binding_advice.advice(bound(["0-3", "2-3", "4-5", "6,7"], [0] * 4, **one))
    assert "2 of 4 ranks of host a (0-1) are bound to hardware threads that another" in text
    assert "rank 0: taskset -c 0-1 " in text
    assert "rank 1: taskset -c 2-3 " in text
    assert "rank 3: taskset -c 6-7 " in text
    (text,) = fabric_binding_advice.advice(bound(["0-1"] * 3, [0] * 3, **one))
    assert "The 3 ranks of host a share 2 hardware threads. It has 8" in text
    (text,) = fabric_binding_advice.advice(bound(["0-7"] * 9, [0] * 9, **one))
    assert "Start fewer ranks" in text


def test_ranks_far_from_the_nic_are_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    nic = {"name": "eth0", "numa_node": 0}
    far = bound(["8-15"], [1], numa_nodes=2, threads=16, nics=[nic])
    (text,) = fabric_binding_advice.advice(far)
    assert "No rank of host a is bound to NUMA node 0, where its NIC is" in text
    assert "numactl --cpunodebind=0" in text
    fabric_show.show(far)
    shown = capsys.readouterr().out
    assert text.splitlines()[0] in shown
    assert "NUMA node 1: ranks 0" in shown
    assert "between NUMA nodes" in shown


def test_servers_are_shown_and_drawn(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    servers = [{"name": "adder", "rack": 1, "egress": 1.25e9, "ingress": 1.25e9}]
    file.write_text(json.dumps(two_racks() | {"servers": servers}))
    assert cli.main(["fabric", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "adder  server, 1 usable CPU, NIC 10 Gbit/s" in shown
    picture = tmp_path / "fabric.svg"
    assert cli.main(["fabric", "show", str(file), "--out", str(picture)]) == 0
    assert b"adder" in picture.read_bytes()


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture(suffix: str, file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"fabric.{suffix}"
    assert cli.main(["fabric", "show", str(file), "--out", str(picture)]) == 0
    content = picture.read_bytes()
    if suffix == "svg":
        assert all(text in content for text in (b"alpha", b"gamma", b"50 Mbit/s up"))
    else:
        assert content.startswith(b"\x89PNG")


def test_a_picture_needs_matplotlib_and_a_known_kind_of_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fabric", "show", str(file), "--out", "fabric.pdf"]) == 1
    assert ".svg or .png" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["fabric", "show", str(file), "--out", "fabric.png"]) == 1
    assert "pip install 'q7x2[draw]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fabric show FILE", "plan draw --algorithm ring"])
def test_wrong_settings_of_matplotlib_are_a_sentence(
    command: str, file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.svg"
    words = [str(file) if word == "FILE" else word for word in command.split()]
    done = subprocess.run(  # matplotlib reads the variable when it is imported
        [interpreters.python(), "-m", "q7x2", *words, "--out", picture],
        env=os.environ | {"MPLBACKEND": "nothing"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"q7x2 .*: matplotlib refuses its settings: .*'nothing'.*\n", done.stderr)
    assert not picture.exists()


def test_figures_are_readable() -> None:
    assert fabric_show.rate(1.25e8) == "1 Gbit/s"
    assert fabric_show.rate(0) == "-"
    assert time_text(3.2e-5) == "32 µs"
    assert time_text(0) == "0 s"
    assert ranks_text([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
