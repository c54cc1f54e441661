"""The study that looks for algorithms which no network needs."""

from __future__ import annotations

import json
import random

from q7x2._core.extension import load

from benchmarks.studies import generators


def test_networks_at_random_are_fabrics_and_come_again() -> None:
    for seed in range(60):
        fabric = generators.random_fabric(random.Random(seed), 24)
        assert fabric == generators.random_fabric(random.Random(seed), 24)
        assert load().explain("broadcast", 65536, json.dumps(fabric), 0, ""), fabric


def test_who_is_best_and_who_is_needed() -> None:
    winners = generators.Winners("all_reduce")
    winners.add(_candidates(ring=1.0, torus=3.0, direct=2.0))
    winners.add(_candidates(ring=4.0, torus=3.9, direct=8.0))  # torus is best, ring would do
    winners.add(_candidates(ring=1.0, direct=1.0))
    rows = {row.pop("algorithm"): row for row in winners.rows()}
    assert list(rows) == ["ring", "torus", "direct"]
    assert rows["ring"] == {
        "collective": "all_reduce",
        "cases": 3,
        "candidate": 3,
        "best": 2,
        "needed": 1,
        "largest_loss": 2.0,
    }
    assert (rows["torus"]["candidate"], rows["torus"]["best"], rows["torus"]["needed"]) == (2, 1, 0)
    assert rows["direct"]["best"] == 1


def _candidates(**seconds: float) -> list[dict[str, object]]:
    """Of each algorithm a variant that is slower, too."""
    variants = {f"{name}:2": 2 * each for name, each in seconds.items()}
    return [{"algorithm": name, "seconds": each} for name, each in (seconds | variants).items()]
