"""``q7x2 plan draw``, and the schedule it draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from q7x2 import cli
from q7x2._core.extension import load
from q7x2.plan import draw as plan_draw


def steps(collective: str, algorithm: str, ranks: int, root: int = -1) -> int:
    return plan_draw.schedule(load().make_plans(collective, algorithm, ranks, root)).steps


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "root", "expected"),
    [
        ("all_reduce", "direct", 8, -1, 1),
        ("all_reduce", "sra", 8, -1, 2),
        ("all_reduce", "ring", 8, -1, 14),
        ("all_reduce", "recursive_doubling", 8, -1, 3),
        ("all_reduce", "halving_doubling", 8, -1, 6),
        ("all_reduce", "halving_doubling", 13, -1, 6),
        ("reduce_scatter", "halving_doubling", 13, -1, 4),
        ("all_reduce", "double_binary_tree", 15, -1, 6),
        ("broadcast", "double_binary_tree", 16, 3, 4),
        ("all_reduce", "ccube", 8, -1, 8),
        ("all_reduce", "torus", 9, -1, 6),
        ("all_reduce", "torus", 12, -1, 8),
        ("reduce_scatter", "torus", 12, -1, 5),
        ("all_reduce", "aggregator:2", 8, -1, 2),
        ("broadcast", "binomial_tree", 8, 3, 3),
        ("broadcast", "chain", 8, 3, 7),
        ("barrier", "dissemination", 8, -1, 3),
    ],
)
def test_steps_are_those_of_the_documentation(
    collective: str, algorithm: str, ranks: int, root: int, expected: int
) -> None:
    assert steps(collective, algorithm, ranks, root) == expected


def test_every_contribution_of_a_ring_arrives() -> None:
    timeline = plan_draw.schedule(load().make_plans("all_reduce", "ring", 5))
    assert len(timeline.messages) == 2 * 4 * 5
    assert sum(is_final for *_, is_final in timeline.folds) == 5


def test_servers_stand_after_the_ranks() -> None:
    hosts = [{"name": f"h{host}"} for host in range(4)]
    fabric = {"q7x2_fabric": 1, "hosts": hosts, "ranks": [0, 1, 2, 3], "servers": hosts[:2]}
    plans = load().make_plans("all_reduce", "servers:2", fabric=json.dumps(fabric))
    assert [plan["world_size"] for plan in plans] == [4] * 6
    timeline = plan_draw.schedule(plans)
    assert timeline.steps == 2
    assert sorted({rank for rank, *_ in timeline.folds}) == [4, 5]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_is_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"ccube.{suffix}"
    assert (
        cli.main(["plan", "draw", "--algorithm", "ccube", "--ranks", "8", "--out", str(out)]) == 0
    )
    assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--algorithm", "rings"], "expected one of aggregator, "),
        (["--algorithm", "hierarchical"], "nothing to offer for 8 ranks without a fabric"),
        (
            ["--algorithm", "aggregator:99"],
            "aggregator does not take 99 here: expected one of 1, 2",
        ),
        (["--algorithm", "ring:2"], "ring takes no parameter"),
        (["--algorithm", "chain", "--op", "broadcast", "--root", "8"], "invalid root 8"),
    ],
)
def test_what_does_not_exist_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["plan", "draw", *arguments, "--out", str(tmp_path / "picture.svg")]) == 1
    assert complaint in capsys.readouterr().err
