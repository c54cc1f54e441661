"""``q7x2 plan export`` and ``check``, and Plans of a user's own that run: ``Q7X2_PLAN``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from q7x2.cli import main


def exported(*arguments: str, out: Path) -> str:
    assert main(["plan", "export", *arguments, "-o", str(out)]) == 0
    return out.read_text()


def test_what_is_exported_is_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    for arguments in (
        ["--algorithm", "ring", "--ranks", "4"],
        ["--op", "broadcast", "--algorithm", "chain", "--ranks", "5", "--root", "3"],
        ["--algorithm", "torus:4", "--ranks", "12"],
    ):
        text = exported(*arguments, out=out)
        assert main(["plan", "check", str(out)]) == 0
        said = capsys.readouterr().out
        assert f"file:{json.loads(text)['algorithm']}@" in said
        assert "no deadlock" in said
    assert main(["plan", "export", "--algorithm", "ring", "--ranks", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 2


def test_a_broken_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    plan = json.loads(exported("--algorithm", "ring", "--ranks", "3", out=out))
    plan["plans"][1][0]["to"] = 0
    out.write_text(json.dumps(plan))
    assert main(["plan", "check", str(out)]) == 1
    assert f"q7x2 plan check: {out}: bad Plan: all_reduce" in capsys.readouterr().err
    out.write_text('{"format": 1}')
    assert main(["plan", "check", str(out)]) == 1
    assert "collective is missing" in capsys.readouterr().err
    assert main(["plan", "check", str(tmp_path / "none.json")]) == 1
    assert main(["plan", "export", "--algorithm", "rings", "--ranks", "3"]) == 1
    assert "expected one of" in capsys.readouterr().err


def test_explain_knows_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "plan.json"
    exported("--algorithm", "halving_doubling", "--ranks", "4", out=out)
    monkeypatch.setenv("Q7X2_PLAN", str(out))
    assert main(["plan", "explain", "--json", "--size", "16M", "--hosts", "4"]) == 0
    only = json.loads(capsys.readouterr().out)
    assert [each["algorithm"].split("@")[0] for each in only] == ["file:halving_doubling"]
    monkeypatch.setenv("Q7X2_PLAN", str(tmp_path / "none.json"))
    assert main(["plan", "explain", "--size", "16M", "--hosts", "4"]) == 1
    assert "Q7X2_PLAN: cannot read" in capsys.readouterr().err


def start(backend: str, shared: str, ranks: int) -> None:
    from harness import current_rank

    store = dist.FileStore(f"{shared}/s", ranks)
    dist.init_process_group(backend, store=store, rank=current_rank(), world_size=ranks)


@pytest.mark.beyond("gloo", "reads no such variable")
@pytest.mark.ranks(3, init="none", fresh=True)
def test_an_edited_ring_runs(backend: str, shared: str) -> None:
    from q7x2._core.extension import load

    text = load().export_plan("all_reduce", "ring", 3)
    # Each part changes its place with another one, on all ranks.
    for before, after in (("out[0]", "out[x]"), ("out[2]", "out[0]"), ("out[x]", "out[2]")):
        text = text.replace(before, after)
    file = Path(shared) / f"ring-{os.getpid()}.json"
    file.write_text(text.replace('"ring"', '"turned"'))
    os.environ["Q7X2_PLAN"] = str(file)
    start(backend, shared, 3)
    for count in (1, 1000, 300_001):
        tensor = torch.arange(count, dtype=torch.float32) + dist.get_rank()
        dist.all_reduce(tensor)
        assert tensor.equal(3 * torch.arange(count, dtype=torch.float32) + 3)
    halves = torch.ones(1000, dtype=torch.bfloat16)  # these are planned freely
    dist.all_reduce(halves)
    assert halves.eq(3).all()


# Rank 2 serves: its own tensor neither counts nor changes.
SERVED = {
    "format": 1,
    "collective": "all_reduce",
    "ranks": 3,
    "algorithm": "served",
    "contract": {"contributors": [0, 1], "receivers": [0, 1], "quorum": 2},
    "plans": [
        [{"send": "out[0]", "to": 2}, {"recv": "out[0]", "from": 2, "after": [0]}],
        [{"send": "out[0]", "to": 2}, {"recv": "out[0]", "from": 2, "after": [0]}],
        [
            {"recv": "scratch[0]", "from": 0, "length": "out[0]"},
            {"recv": "scratch[1]", "from": 1, "length": "out[0]"},
            {
                "reduce": ["scratch[0]", "scratch[1]"],
                "into": "scratch[0]",
                "length": "out[0]",
                "final": True,
                "after": [0, 1],
            },
            {"send": "scratch[0]", "to": 0, "length": "out[0]", "after": [2]},
            {"send": "scratch[0]", "to": 1, "length": "out[0]", "after": [2]},
        ],
    ],
}


@pytest.mark.beyond("gloo", "reads no such variable")
@pytest.mark.ranks(3, init="none", fresh=True)
def test_a_contract_of_its_own(backend: str, shared: str) -> None:
    file = Path(shared) / f"served-{os.getpid()}.json"
    file.write_text(json.dumps(SERVED))
    os.environ["Q7X2_PLAN"] = str(file)
    start(backend, shared, 3)
    tensor = torch.full((50_000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(3.0).all()  # 1 + 2, and rank 2's own 3


@pytest.mark.beyond("gloo", "reads no such variable")
@pytest.mark.ranks(2, init="none", fresh=True)
def test_different_files_are_named_when_the_group_is_made(backend: str, shared: str) -> None:
    from harness import current_rank
    from q7x2._core.extension import load

    algorithm = ("ring", "sra")[current_rank()]
    file = Path(shared) / f"{algorithm}.json"
    file.write_text(load().export_plan("all_reduce", algorithm, 2))
    os.environ["Q7X2_PLAN"] = str(file)
    with pytest.raises(
        dist.DistBackendError, match=r"'file:ring@\w{8}' and 'file:sra@\w{8}': .*Q7X2_PLAN"
    ):
        start(backend, shared, 2)


@pytest.mark.beyond("gloo", "reads no such variable")
@pytest.mark.ranks(1, init="none", fresh=True)
def test_a_bad_file_is_refused_when_the_group_is_made(backend: str, shared: str) -> None:
    file = Path(shared) / "bad.json"
    file.write_text('{"format": 2}')
    os.environ["Q7X2_PLAN"] = str(file)
    with pytest.raises(ValueError, match=r"Q7X2_PLAN: .*bad.json: format: expected"):
        start(backend, shared, 1)
