"""How long a group takes to be there: creation, its first all-reduce, a further group.

Every turn starts new ranks, since a process makes its first group only once. They are forked from
one process that has imported torch (startup_ranks.py): the imports would take minutes, and are
nobody's to win. What a backend loads on its first use counts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.launch import python_path
from benchmarks.harness.processes import run_ranks

PHASES = ("init_process_group", "first_all_reduce", "new_group")


def run(ranks: int, backends: tuple[str, ...], turns: int) -> list[dict[str, Any]]:
    """A cell for each of PHASES, as summary.summarize makes them; each turn is a block.

    The time is that of the slowest rank, the CPU time that of all ranks together.

    Raises:
        RanksFailed: with the ranks' output.
    """
    with tempfile.TemporaryDirectory(prefix="q7x2-startup-") as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(
            json.dumps({"ranks": ranks, "backends": backends, "turns": turns, "folder": folder})
        )
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # installed packages are compiled
            "PYTHONPATH": python_path(),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        run_ranks(
            [[sys.executable, "-m", "benchmarks.harness.startup_ranks", str(spec)]], [env], 600
        )
        samples = json.loads((Path(folder) / "samples.json").read_text())
    return [_cell(phase, ranks, samples) for phase in PHASES]


def _cell(phase: str, ranks: int, samples: dict[str, list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """`samples`: by backend and turn, what each rank says of each phase."""
    cell: dict[str, Any] = {"op": phase, "size": 0, "ranks": ranks, "backends": {}}
    for backend, turns in samples.items():
        times = [max(rank[phase]["seconds"] for rank in turn) for turn in turns]
        cpu = [sum(rank[phase]["cpu_seconds"] for rank in turn) for turn in turns]
        cell["backends"][backend] = {
            "median": float(np.median(times)),
            "min": min(times),
            "block_medians": times,
            "cpu_seconds": float(np.median(cpu)),
            "iterations": len(times),
        }
    return cell
