"""The planner from Python: explain, simulate, and algorithms forced for a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import q7x2
import torch
import torch.distributed as dist
from pairs import nightly
from q7x2.cli import main


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["plan", "explain", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_explain_ranks_the_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = explain(capsys, "--size", "16M", "--hosts", "4")
    times = [each["seconds"] for each in candidates]
    assert times == sorted(times)
    assert {"ring", "sra", "direct"} <= {each["algorithm"] for each in candidates}
    bound = 1.5 * 2**24 / 125e6
    assert bound <= times[0] <= 1.05 * bound


def test_explain_prices_codecs(capsys: pytest.CaptureFixture[str]) -> None:
    dense = explain(capsys, "--size", "16M", "--hosts", "4")[0]
    coded = explain(capsys, "--size", "16M", "--hosts", "4", "--codec", "int8")[0]
    assert (coded["algorithm"], coded["edges"]) == ("sra", "all")
    assert 3.5 < float(str(dense["seconds"])) / float(str(coded["seconds"])) < 4
    shared = explain(capsys, "--size", "16M", "--hosts", "4", "--ranks", "8", "--codec", "int8")[0]
    assert (shared["algorithm"], shared["edges"]) == ("hierarchical:2", "hosts")
    assert main(["plan", "explain", "--size", "1M", "--codec", "int9"]) == 1
    assert "did you mean" in capsys.readouterr().err


def test_explain_prices_selections(capsys: pytest.CaptureFixture[str]) -> None:
    def best(*arguments: str) -> float:
        return float(
            str(explain(capsys, "--size", "100M", "--hosts", "4", *arguments)[0]["seconds"])
        )

    dense = best()
    # Of four random hundredths the sums hold nearly four: by far not the bytes of one.
    assert dense / 32 < best("--codec", "topk:0.01") < dense / 10
    assert best("--codec", "topk:0.01:reselect") < best("--codec", "topk:0.01")
    assert best("--codec", "topk:0.01:balanced") == best("--codec", "topk:0.01")
    # What does not pay is sent dense, whichever it is.
    assert best("--codec", "topk:0.6") < 1.2 * dense


def test_explain_knows_racks(capsys: pytest.CaptureFixture[str]) -> None:
    racks = ("--hosts", "8", "--racks", "2", "--rate", "200mbit", "--uplink", "50mbit")
    best = explain(capsys, "--size", "16M", *racks)[0]
    assert str(best["algorithm"]).startswith("hierarchical")


SERVERS = ("--hosts", "16", "--rate", "100mbit", "--servers", "2", "--server-rate")


def test_explain_says_what_servers_do(capsys: pytest.CaptureFixture[str]) -> None:
    without = explain(capsys, "--size", "16M", "--hosts", "16", "--rate", "100mbit")[0]
    best = explain(capsys, "--size", "16M", *SERVERS, "1gbit")[0]
    assert best["algorithm"] == "servers:2"
    assert float(str(without["seconds"])) > 1.6 * float(str(best["seconds"]))
    assert main(["plan", "explain", "--size", "16M", *SERVERS, "1gbit"]) == 0
    assert "server s1: adds up 50% of the data of 16 ranks" in capsys.readouterr().out
    assert main(["plan", "explain", "--size", "16M", *SERVERS, "10mbit"]) == 0
    assert "server s1: nothing" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "explain", "--size", "16M", "--servers", "-1"])
    assert "--servers: expected a whole number from 0 to 65536" in capsys.readouterr().err


def test_explain_says_what_servers_of_racks_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nic = {"egress": 12.5e6, "ingress": 12.5e6}
    fabric = {
        "q7x2_fabric": 1,
        "hosts": [{"name": f"h{i}", "rack": i // 4, **nic} for i in range(8)],
        "ranks": list(range(8)),
        "racks": [{"name": f"r{i}", "up": 12.5e6, "down": 12.5e6} for i in range(2)],
        "servers": [
            {"name": f"s{i}", "rack": i, "egress": 125e6, "ingress": 125e6} for i in range(2)
        ],
    }
    file = tmp_path / "fabric.json"
    file.write_text(json.dumps(fabric))
    assert main(["plan", "explain", "--size", "16M", "--fabric", str(file)]) == 0
    out = capsys.readouterr().out
    assert "rack_servers:1" in out
    for server in range(2):
        assert f"server s{server}: adds up 100% of the data of its rack and 50% of" in out


def test_simulate_servers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "timeline.svg"
    arguments = ["simulate", "--size", "1M", *SERVERS, "1gbit", "--timeline", str(picture)]
    assert main(arguments) == 0
    assert "servers:2" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


def test_explain_takes_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "fabric.json"
    file.write_text(
        json.dumps({"q7x2_fabric": 1, "hosts": [{"name": "a", "cores": 4}], "ranks": [0, 0]})
    )
    candidates = explain(capsys, "--size", "4", "--fabric", str(file), "--ranks", "4")
    assert candidates[0]["algorithm"] == "direct"
    assert main(["plan", "explain", "--size", "4", "--fabric", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err


def test_explain_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "explain", "--op", "broadcast", "--size", "1M"]) == 0
    assert "chain" in capsys.readouterr().out


@pytest.mark.parametrize("hosts", [64, nightly(1024, "22 s of a core")])
def test_simulate_many_ranks(capsys: pytest.CaptureFixture[str], hosts: int) -> None:
    arguments = ["simulate", "--size", "64M", "--hosts", str(hosts)]
    assert main([*arguments, "--algorithm", "halving_doubling"]) == 0
    assert "halving_doubling" in capsys.readouterr().out


def test_simulate_draws_a_timeline(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    assert main(["simulate", "--size", "1M", "--timeline", str(picture)]) == 0
    assert picture.read_text().startswith("<?xml")


def test_unknown_algorithms_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--size", "1M", "--algorithm", "rung"]) == 1
    assert "did you mean 'ring'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="did you mean 'ring'"), q7x2.collectives.algorithm("rung"):
        pass


@pytest.mark.beyond("gloo", "has no algorithms to force")
@pytest.mark.ranks(2, 3)
def test_an_algorithm_for_one_block(world_size: int) -> None:
    for names in ("ring", "sra,aggregator:1", "ring"):
        with q7x2.collectives.algorithm(names):
            tensor = torch.full((1000,), float(dist.get_rank()))
            dist.all_reduce(tensor)
            assert tensor.eq(world_size * (world_size - 1) / 2).all()
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert tensor.eq(world_size).all()


@pytest.mark.beyond("gloo", "has no algorithms to force")
@pytest.mark.ranks(2, fresh=True)
def test_algorithms_that_differ_between_ranks_are_an_error(world_size: int) -> None:
    names = ("ring", "direct")[dist.get_rank()]
    with q7x2.collectives.algorithm(names), pytest.raises(dist.DistBackendError, match="disagree"):
        dist.all_reduce(torch.ones(1000))
